// Copies in memory: plain, with non-temporal stores, and weft's own with a checksum.
#include <time.h>

#include <algorithm>
#include <cstring>

#include "bench/native/loops/stages_ends.h"
#include "native/wire/crc32c.h"

#if defined(__x86_64__)
#include <emmintrin.h>
#endif

namespace weft::bench {
namespace stages {
namespace {

std::uint32_t copy_plainly(std::uint8_t* to, const std::uint8_t* from, std::size_t bytes) {
  std::memcpy(to, from, bytes);
  return 0;
}

std::uint32_t copy_checked(std::uint8_t* to, const std::uint8_t* from, std::size_t bytes) {
  return wire::crc32c_copy(0, to, from, bytes);
}

#if defined(__x86_64__)
// The processor's own prefetching stops at page boundaries; the distance is that of weft's copy.
constexpr std::size_t kAheadBytes = 2048;

// Whole cache lines pass by the cache; the rest at either end is copied plainly.
std::uint32_t copy_streaming(std::uint8_t* to, const std::uint8_t* from, std::size_t bytes) {
  constexpr std::size_t kLine = 64;
  const std::size_t head = std::min(bytes, (kLine - reinterpret_cast<std::uintptr_t>(to) % kLine) % kLine);
  std::memcpy(to, from, head);
  std::size_t at = head;
  for (; at + kLine <= bytes; at += kLine) {
    __builtin_prefetch(from + at + kAheadBytes);
    for (std::size_t i = 0; i < kLine; i += 16) {
      const __m128i word = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + at + i));
      _mm_stream_si128(reinterpret_cast<__m128i*>(to + at + i), word);
    }
  }
  std::memcpy(to + at, from + at, bytes - at);
  return 0;
}

std::uint32_t copy_checked_streaming(std::uint8_t* to, const std::uint8_t* from, std::size_t bytes) {
  const std::uint32_t crc = wire::crc32c(0, from, bytes);
  copy_streaming(to, from, bytes);
  return crc;
}
#endif

}  // namespace

Copy copy_of(const std::string& kind) {
  if (kind == "plain") return copy_plainly;
  if (kind == "checked") return copy_checked;
#if defined(__x86_64__)
  if (kind == "streaming") return copy_streaming;
  if (kind == "checked_streaming") return copy_checked_streaming;
#endif
  return nullptr;
}

void settle_copies() {
#if defined(__x86_64__)
  _mm_sfence();
#endif
}

}  // namespace stages

Status bench_copy(const std::string& kind, const std::uint8_t* source, std::uint8_t* target, std::size_t buffer_bytes,
                  std::size_t piece_bytes, std::int64_t bytes, std::int64_t* out_ns) {
  const stages::Copy copy = stages::copy_of(kind);
  if (copy == nullptr || piece_bytes == 0 || piece_bytes > buffer_bytes) return Status::invalid_argument;
  const auto cpu_ns = [] {
    timespec now{};
    ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return std::int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
  };
  stages::Walk walk(buffer_bytes, piece_bytes);
  volatile std::uint32_t checksum = 0;  // keeps the compiler from leaving out the work
  const std::int64_t begin_ns = cpu_ns();
  for (std::int64_t done = 0; done < bytes; done += static_cast<std::int64_t>(piece_bytes)) {
    const std::size_t at = walk.pass(piece_bytes);
    checksum = checksum ^ copy(target + at, source + at, piece_bytes);
  }
  stages::settle_copies();
  *out_ns = cpu_ns() - begin_ns;
  return Status::ok;
}

}  // namespace weft::bench
