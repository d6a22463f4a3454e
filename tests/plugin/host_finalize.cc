// Finalizes with open comms, listeners and requests, as NCCL does after a failure. Later calls with their handles fail,
// or succeed if they free something.
#include "tests/plugin/host_finalize.h"

#include <malloc.h>

#include <filesystem>
#include <mutex>

namespace host {
namespace {

struct Usage {
  std::size_t descriptors = 0, threads = 0, heap_bytes = 0;
};

std::size_t entries(const char* directory) {
  std::size_t count = 0;
  for (const auto& entry : std::filesystem::directory_iterator(directory)) count += entry.path().empty() ? 0 : 1;
  return count;
}

// Locked, because both sides may be threads of one process, and reading a directory uses a
// descriptor.
Usage usage() {
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
#if __GLIBC_PREREQ(2, 33)
  const struct mallinfo2 heap = mallinfo2();
#else
  const struct mallinfo heap = mallinfo();
#endif
  const auto heap_bytes = static_cast<std::size_t>(heap.uordblks) + static_cast<std::size_t>(heap.hblkhd);
  return {entries("/proc/self/fd"), entries("/proc/self/task"), heap_bytes};
}

// The open objects of one communicator when it ends.
struct Left {
  void* context = nullptr;
  Link link;
  void* listener = nullptr;
  void* request = nullptr;
  void* mhandle = nullptr;
  std::uint8_t handle[weft::nccl::kHandleBytesMax] = {};
  std::unique_ptr<Buffer> memory;
};

constexpr std::size_t kBytes = 1 << 16;

Left open_all(Side& side) {
  Left left;
  left.context = side.context;
  left.link = side.link();
  left.listener = side.listen(left.handle);
  exchange(side, left.link, {1000, 0, kBytes});
  left.memory = std::make_unique<Buffer>(kBytes);
  REQUIRE(side.net.reg(left.link.receive, left.memory->data(), kBytes, &left.mhandle) == Result::success);
  left.request = side.receive(left.link.receive, left.memory->data(), kBytes, left.mhandle);
  return left;
}

// Calls functions with handles of a finalized communicator, each of them twice.
void call_late(Side& side, const Left& left) {
  std::uint8_t* const data = left.memory->data();
  for (int i = 0; i < 2; ++i) {
    auto* out = reinterpret_cast<void*>(0xDEAD0);
    int done = 77;
    REQUIRE(side.net.isend(left.link.send, data, 8, nullptr, &out) == Result::invalid_argument && out == nullptr);
    out = reinterpret_cast<void*>(0xDEAD0);
    REQUIRE(side.net.irecv(left.link.receive, data, 8, left.mhandle, &out) == Result::invalid_argument);
    REQUIRE(out == nullptr);
    REQUIRE(side.net.test(left.request, &done, nullptr) == Result::invalid_argument && done == 0);
    REQUIRE(side.net.reg(left.link.send, data, 8, &out) == Result::invalid_argument && out == nullptr);
    REQUIRE(side.net.accept(left.listener, &out) == Result::invalid_argument && out == nullptr);
    std::uint8_t handle[weft::nccl::kHandleBytesMax];
    std::memcpy(handle, left.handle, sizeof handle);
    REQUIRE(side.net.connect(left.context, 0, handle, &out) == Result::invalid_argument && out == nullptr);
    REQUIRE(side.net.listen(left.context, 0, handle, &out) == Result::invalid_argument && out == nullptr);
    REQUIRE(side.net.dereg(left.link.receive, left.mhandle) == Result::success);
    REQUIRE(side.net.close_send(left.link.send) == Result::success);
    REQUIRE(side.net.close_receive(left.link.receive) == Result::success);
    REQUIRE(side.net.close_listen(left.listener) == Result::success);
    REQUIRE(side.net.finalize(left.context) == Result::success);
  }
}

}  // namespace

void finalize_open(Side& side) {
  constexpr int cycles = 12, warm = 3;  // the heap stops growing after a few cycles
  constexpr std::size_t heap_growth_max = 1 << 20;
  std::vector<Left> all;
  Usage before;
  for (int cycle = 0; cycle < cycles; ++cycle) {
    side.start();
    Left left = open_all(side);
    // Old handles must not refer to new objects that reuse their memory.
    if (side.net.has_finalize()) {
      for (const Left& late : all) call_late(side, late);
    }
    exchange(side, side.link(), {100});
    side.barrier();
    side.stop();
    if (side.net.has_finalize()) call_late(side, left);
    all.push_back(std::move(left));
    side.barrier();
    if (cycle == warm) before = usage();
    if (cycle > warm) {
      // A joined thread may remain in /proc for a moment.
      const Deadline deadline;
      Usage now = usage();
      while (now.threads > before.threads) {
        REQUIRE(!deadline.over());
        now = usage();
      }
      if (now.descriptors > before.descriptors || now.heap_bytes > before.heap_bytes + heap_growth_max) {
        std::fprintf(stderr, "log 0 cycle %d: %zu descriptors after %zu, %zu bytes of heap after %zu\n", cycle,
                     now.descriptors, before.descriptors, now.heap_bytes, before.heap_bytes);
      }
      REQUIRE(now.descriptors <= before.descriptors);
      // Without finalize the plugin cannot know that a comm is unused, so its memory stays
      // allocated.
      if (side.net.has_finalize()) REQUIRE(now.heap_bytes <= before.heap_bytes + heap_growth_max);
    }
    side.barrier();
  }
}

void finalize_one_of_two(Side& side) {
  side.start();
  void* const kept = side.context;
  const Link link = side.link();
  for (int cycle = 0; cycle < 4; ++cycle) {
    side.start();
    const Left left = open_all(side);
    side.barrier();
    side.stop();
    side.context = kept;
    if (side.net.has_finalize()) call_late(side, left);
    exchange(side, link, {100, kBytes});
    side.barrier();
  }
  side.unlink(link);
  side.stop();
}

}  // namespace host
