// Calls a hook over a ring of events and times it. The overhead of a measurement is one indirect
// call. After each use the event's clock advances by one lap.
#include <stdint.h>
#include <string.h>
#include <time.h>

typedef int32_t (*hook_t)(void*, void*, int64_t, const void*, const void*, void*);

enum { kEventBytes = 224, kResultBytes = 24 };

int32_t empty_hook(void* flow, void* shared, int64_t count, const void* params, const void* event, void* result) {
  (void)flow, (void)shared, (void)count, (void)params, (void)event, (void)result;
  return 0;
}

static void move_on(char* event, int64_t lap_ns) {
  int64_t now_ns;
  memcpy(&now_ns, event, sizeof now_ns);
  now_ns += lap_ns;
  memcpy(event, &now_ns, sizeof now_ns);
}

// Nanoseconds for `calls` calls; -1 if a call did not return 0.
double time_calls(hook_t hook, void* flow, const void* params, char* events, int64_t ring, int64_t lap_ns,
                  int64_t calls, char* result) {
  struct timespec from, to;
  int32_t status = 0;
  int64_t at = 0;
  clock_gettime(CLOCK_MONOTONIC, &from);
  for (int64_t i = 0; i < calls; ++i) {
    char* event = events + at * kEventBytes;
    status |= hook(flow, 0, 0, params, event, result);
    move_on(event, lap_ns);
    at = at + 1 == ring ? 0 : at + 1;
  }
  clock_gettime(CLOCK_MONOTONIC, &to);
  if (status != 0) return -1.0;
  return (double)(to.tv_sec - from.tv_sec) * 1e9 + (double)(to.tv_nsec - from.tv_nsec);
}

// A hash of all results: FNV-1a over 64-bit words.
uint64_t digest_calls(hook_t hook, void* flow, const void* params, char* events, int64_t ring, int64_t lap_ns,
                      int64_t calls, char* result) {
  uint64_t digest = UINT64_C(14695981039346656037);
  for (int64_t i = 0; i < calls; ++i) {
    char* event = events + (i % ring) * kEventBytes;
    if (hook(flow, 0, 0, params, event, result) != 0) return 0;
    move_on(event, lap_ns);
    for (int part = 0; part < kResultBytes / 8; ++part) {
      uint64_t word;
      memcpy(&word, result + 8 * part, sizeof word);
      digest = (digest ^ word) * UINT64_C(1099511628211);
    }
  }
  return digest;
}
