// The memory that the two processes of a connection share, and what each tells the other in it. The dialling process
// makes it; its size is sealed, so that it cannot be shrunk under the other process, which would get SIGBUS.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "native/engine/loan.h"
#include "native/local/lane.h"

namespace weft::local {

// Bits of Side::wants.
inline constexpr std::uint32_t kWantsData = 1;  // wake this side when a message arrives
inline constexpr std::uint32_t kWantsRoom = 2;  // wake this side when the other has read from its lane

// An engine::Loan.
using Trial = std::array<std::atomic<std::uint64_t>, sizeof(engine::Loan) / sizeof(std::uint64_t)>;

// Written by one process, for the other.
struct Side {
  alignas(128) std::atomic<std::uint32_t> wants;  // what the process sleeps for; the other clears what it has seen
  std::atomic<std::uint32_t> sleepers;            // callers of the process that sleep on `bell`
  std::atomic<std::int32_t> bell;                 // counts the times that they were woken
  alignas(128) std::atomic<std::uint64_t> mark_address;
  std::array<std::atomic<std::uint64_t>, 2> mark;
  std::atomic<std::uint32_t> copies;  // 1: the process can copy lent messages out of the other's memory
  std::atomic<std::uint32_t> ended;   // 1: the process will receive no more
  // A bit for each device: the process lets the other try to read its memory, by the trial; it can read the other's.
  std::atomic<std::uint32_t> offers, accepts;
  std::atomic<std::uint32_t> advice;  // LendingRates::advice() of the process, about messages to it
  std::array<Trial, engine::Loans::kDevices> trials;
};

struct Shared {
  std::atomic<std::uint64_t> magic;
  Side sides[2];  // dialler, listener
  Lane lanes[2];  // from the dialler, from the listener
  alignas(4096) Ring rings[2];
};
static_assert(offsetof(Shared, rings) == 4096);

// A random number in this process's memory. Each copy out of another process reads its mark as well: the process id
// alone may by then belong to another process or, after exec(), to another program.
struct Mark {
  std::array<std::uint64_t, 2> words{};
};
const Mark& own_mark() noexcept;

class Segment {
 public:
  static std::unique_ptr<Segment> make(int* descriptor, std::string* error) noexcept;
  // Maps memory of another process, and closes the descriptor.
  static std::unique_ptr<Segment> adopt(int descriptor, std::string* error) noexcept;
  ~Segment();
  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;
  Shared& shared() const noexcept { return *shared_; }
  // Gives the shared memory up, and puts private memory in its place: other threads may still look at it.
  void part() noexcept;
  // Takes memory for the first bytes of a ring, before they are written. False: there is none left.
  bool reserve(std::size_t ring, std::uint64_t bytes) noexcept;

 private:
  explicit Segment(Shared* shared) noexcept : shared_(shared) {}
  Shared* const shared_;
  std::uint64_t reserved_[2] = {};
};

}  // namespace weft::local
