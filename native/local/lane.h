// One direction of a connection in shared memory: a ring of bytes, in which messages follow each other. The other
// process may be hostile: every position that it wrote is copied out once and checked before it is used.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>

#include "native/local/violation.h"

namespace weft::local {

inline constexpr std::uint64_t kRingBytes = 256 * 1024;
inline constexpr std::uint64_t kAlign = 16;  // of each message in the ring

// What precedes a message in the ring.
struct Head {
  std::uint64_t bytes_and_kind = 0;  // size of the message; the highest bits: it is lent, or lent by a device
  std::uint64_t address = 0;         // lent: where it is in the sender's memory
  static constexpr std::uint64_t kLent = std::uint64_t{1} << 63;
  static constexpr std::uint64_t kLoan = std::uint64_t{1} << 62;  // an engine::Loan follows instead of the bytes
};
static_assert(sizeof(Head) == kAlign);

// Shared between the two processes. Positions count bytes since the connection began.
struct Lane {
  alignas(128) std::atomic<std::uint64_t> produced;  // written by the sender
  alignas(128) std::atomic<std::uint64_t> consumed;  // written by the receiver
  // Number of lent messages that the receiver has copied, times two, plus one if the sender has taken the others back.
  alignas(128) std::atomic<std::uint64_t> lent;
  alignas(128) std::atomic<std::uint64_t> loans;  // the same for messages that a device lends
};
// Messages of a lane that the receiver copies: out of the sender's memory, and out of its device's.
struct LentCounts {
  std::uint64_t lent = 0, loans = 0;
};
using Ring = std::uint8_t[kRingBytes];
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

// The sending end of a lane.
class LaneWriter {
 public:
  LaneWriter(Lane* lane, std::uint8_t* ring) noexcept : lane_(lane), ring_(ring) {}
  // Bytes that fit into the ring. False: the receiver's position is impossible, see violation().
  bool room(std::uint64_t* bytes) noexcept {
    const std::uint64_t consumed = lane_->consumed.load(std::memory_order_acquire);
    if (consumed > produced_ || consumed < consumed_ || consumed % kAlign != 0) {
      violation_ = {"consumed", consumed, consumed_, produced_, kAlign};
      return false;
    }
    consumed_ = consumed;
    *bytes = kRingBytes - (produced_ - consumed_);
    return true;
  }
  // Copies bytes into the ring, where room() must have been. They are seen by the receiver after publish().
  void write(const void* data, std::uint64_t bytes) noexcept {
    const std::uint64_t at = produced_ % kRingBytes, first = std::min(bytes, kRingBytes - at);
    std::memcpy(&ring_[at], data, first);
    if (first != bytes) std::memcpy(ring_, static_cast<const std::uint8_t*>(data) + first, bytes - first);
    produced_ += bytes;
  }
  std::uint64_t position() const noexcept { return produced_; }
  void align() noexcept { produced_ = (produced_ + kAlign - 1) / kAlign * kAlign; }
  // Only at a multiple of kAlign.
  void publish() noexcept { lane_->produced.store(produced_, std::memory_order_release); }
  // How many lent messages were copied. False: a count is impossible; `lent`: how many were lent so far.
  bool copied(const LentCounts& lent, LentCounts* count) noexcept {
    return check(lane_->lent.load(std::memory_order_acquire), lane_->loans.load(std::memory_order_acquire), lent,
                 count);
  }
  // Takes back all lent messages that were not copied.
  bool take_back(const LentCounts& lent, LentCounts* count) noexcept {
    const std::uint64_t copied = lane_->lent.fetch_or(1, std::memory_order_acq_rel);
    return check(copied, lane_->loans.fetch_or(1, std::memory_order_acq_rel), lent, count);
  }
  // What the receiver did wrong when a function above last returned false.
  const Violation& violation() const noexcept { return violation_; }

 private:
  bool check(std::uint64_t lent_word, std::uint64_t loans_word, const LentCounts& lent, LentCounts* count) noexcept {
    *count = {lent_word / 2, loans_word / 2};
    if (count->lent > lent.lent) violation_ = {"the count of copied messages", count->lent, 0, lent.lent};
    if (count->loans > lent.loans) violation_ = {"the count of copied loans", count->loans, 0, lent.loans};
    return count->lent <= lent.lent && count->loans <= lent.loans;
  }
  Lane* const lane_;
  std::uint8_t* const ring_;
  std::uint64_t produced_ = 0, consumed_ = 0;
  Violation violation_;
};

// The receiving end of a lane.
class LaneReader {
 public:
  LaneReader(Lane* lane, const std::uint8_t* ring) noexcept : lane_(lane), ring_(ring) {}
  // Bytes that wait in the ring. False: the sender's position is impossible, see violation().
  bool waiting(std::uint64_t* bytes) noexcept {
    const std::uint64_t produced = lane_->produced.load(std::memory_order_acquire);
    if (produced < produced_ || produced - consumed_ > kRingBytes || produced % kAlign != 0) {
      violation_ = {"produced", produced, produced_, consumed_ + kRingBytes, kAlign};
      return false;
    }
    produced_ = produced;
    *bytes = produced_ - consumed_;
    return true;
  }
  // Copies bytes out of the ring; waiting() must have covered them.
  void read(void* data, std::uint64_t bytes) noexcept {
    const std::uint64_t at = consumed_ % kRingBytes, first = std::min(bytes, kRingBytes - at);
    std::memcpy(data, &ring_[at], first);
    if (first != bytes) std::memcpy(static_cast<std::uint8_t*>(data) + first, ring_, bytes - first);
    consumed_ += bytes;
  }
  void align() noexcept { consumed_ = (consumed_ + kAlign - 1) / kAlign * kAlign; }
  // Gives the room of what was read back to the sender.
  void publish() noexcept { lane_->consumed.store(consumed_, std::memory_order_release); }
  // Counts a lent message as copied. False: the sender has taken it back meanwhile, and what was copied may be wrong.
  bool count_copied() noexcept { return count(&lane_->lent, &copied_.lent); }
  bool count_loan() noexcept { return count(&lane_->loans, &copied_.loans); }
  bool has_taken_loans_back() const noexcept { return lane_->loans.load(std::memory_order_acquire) % 2 != 0; }
  // What the sender wrote instead of the count of loans that this end has written; 0: that count.
  std::uint64_t foreign_loans() const noexcept {
    const std::uint64_t word = lane_->loans.load(std::memory_order_acquire);
    return word == copied_.loans * 2 ? 0 : word;
  }
  // Whether the sender has taken back its lent messages.
  bool taken_back() const noexcept { return lane_->lent.load(std::memory_order_acquire) % 2 != 0; }
  // What the sender did wrong when waiting() last returned false.
  const Violation& violation() const noexcept { return violation_; }

 private:
  static bool count(std::atomic<std::uint64_t>* word, std::uint64_t* copied) noexcept {
    std::uint64_t before = *copied * 2;
    if (!word->compare_exchange_strong(before, before + 2, std::memory_order_acq_rel)) return false;
    ++*copied;
    return true;
  }
  Lane* const lane_;
  const std::uint8_t* const ring_;
  std::uint64_t produced_ = 0, consumed_ = 0;
  LentCounts copied_;
  Violation violation_;
};

}  // namespace weft::local
