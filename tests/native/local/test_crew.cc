// Tests copies out of a process's memory that several threads make. The process copies out of itself.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <memory>
#include <thread>
#include <vector>

#include "native/local/crew.h"
#include "native/local/segment.h"
#include "tests/native/check.h"
#include "tests/native/runtime_pair.h"

namespace {

using weft::local::Crew;
using weft::local::own_mark;
using weft::local::PeerMemory;
using weft::local::Side;
using Copied = PeerMemory::Copied;
using weft::test::pattern;
using Bytes = std::vector<std::uint8_t>;

constexpr std::size_t kSizes[] = {1, 4096, 262'143, 262'144, 1'048'577, 2 * 1024 * 1024, 9'000'001};
constexpr std::int64_t kSpinNs = 20'000;

std::uint64_t address_of(const void* at) { return reinterpret_cast<std::uintptr_t>(at); }

// The memory of this process, as its peer.
struct Self {
  Side side{};
  PeerMemory memory{::getpid()};
  Self() {
    for (std::size_t i = 0; i < 2; ++i) side.mark[i].store(own_mark().words[i]);
    side.mark_address.store(address_of(own_mark().words.data()));
    CHECK(memory.open(side));
  }
};

// A crew whose threads end with it.
struct Started {
  std::shared_ptr<Crew> crew;
  explicit Started(std::size_t helpers) : crew(std::make_shared<Crew>(helpers, kSpinNs)) { crew->start(); }
  ~Started() { crew->stop(); }
};

Copied copied(Crew* crew, const PeerMemory& memory, Bytes* to, const void* from, std::size_t bytes) {
  std::uint64_t helped_bytes = 1;
  const Copied outcome = crew->copy(memory, to->data(), address_of(from), bytes, &helped_bytes);
  CHECK(helped_bytes <= bytes);
  return outcome;
}

void copy_all(Crew* crew, const PeerMemory& memory, std::uint32_t seed, std::atomic<int>* wrong) {
  for (int round = 0; round < 2; ++round) {
    for (const std::size_t size : kSizes) {
      const Bytes from = pattern(size, seed + static_cast<std::uint32_t>(round));
      Bytes to(size + 1, 0xEE);
      if (copied(crew, memory, &to, from.data(), size) != Copied::whole) ++*wrong;
      if (!std::equal(from.begin(), from.end(), to.begin()) || to.back() != 0xEE) ++*wrong;
    }
  }
}

}  // namespace

TEST(crew__copies_any_size_with_any_number_of_helpers) {
  const Self self;
  for (const std::size_t helpers : {0u, 1u, 3u, 100u}) {
    std::atomic<int> wrong{0};
    const Started started(helpers);
    copy_all(started.crew.get(), self.memory, 1, &wrong);
    CHECK_EQUAL(wrong.load(), 0);
  }
}

TEST(crew__copies_of_several_threads_do_not_mix) {
  const Self self;
  const Started started(2);
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (std::uint32_t i = 0; i < 4; ++i)
    threads.emplace_back([&, i] { copy_all(started.crew.get(), self.memory, 1'000 * i, &wrong); });
  for (std::thread& thread : threads) thread.join();
  CHECK_EQUAL(wrong.load(), 0);
}

TEST(crew__a_copy_with_a_hole_fails_and_nothing_writes_after_it) {
  const Self self;
  const Started started(3);
  constexpr std::size_t kBytes = 4 << 20, kHole = 4096;
  void* const made = ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  CHECK(made != MAP_FAILED);
  auto* const from = static_cast<std::uint8_t*>(made);
  std::fill_n(from, kBytes, 0x5A);
  for (std::size_t at = 0; at < kBytes; at += 512 * 1024) {
    CHECK_EQUAL(::mprotect(from + at, kHole, PROT_NONE), 0);
    Bytes to(kBytes, 0xEE);
    errno = 0;
    CHECK(copied(started.crew.get(), self.memory, &to, from, kBytes) == Copied::unreadable);
    CHECK_EQUAL(errno, EFAULT);
    const Bytes kept = to;
    ::usleep(1'000);
    CHECK(to == kept);
    CHECK_EQUAL(::mprotect(from + at, kHole, PROT_READ | PROT_WRITE), 0);
  }
  ::munmap(made, kBytes);
}

TEST(crew__each_piece_proves_whose_memory_it_is) {
  Self self;
  self.side.mark[1].fetch_add(1);
  PeerMemory other{::getpid()};
  CHECK(!other.open(self.side));  // but it knows the mark that it looks for
  const Started started(3);
  const Bytes from = pattern(3'000'000, 1);
  Bytes to(from.size());
  CHECK(copied(started.crew.get(), other, &to, from.data(), from.size()) == Copied::gone);
  CHECK(copied(started.crew.get(), self.memory, &to, from.data(), from.size()) == Copied::whole);
  CHECK(to == from);
}

TEST(crew__after_its_end_and_before_its_start_callers_copy_alone) {
  const Self self;
  const auto crew = std::make_shared<Crew>(2, kSpinNs);
  std::atomic<int> wrong{0};
  copy_all(crew.get(), self.memory, 1, &wrong);
  crew->start();
  crew->start();
  copy_all(crew.get(), self.memory, 2, &wrong);
  crew->stop();
  crew->stop();
  copy_all(crew.get(), self.memory, 3, &wrong);
  CHECK_EQUAL(wrong.load(), 0);
}
