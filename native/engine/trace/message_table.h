// The stripes in progress of a traced engine. All memory is allocated at the start, because the engine must not
// allocate while it handles segments.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace weft::engine {

// A stripe of a message in progress: one flow's part, from when it is posted until it ends.
struct TracedStripe {
  static constexpr std::size_t kPaths = 33;  // counters: one for each of the paths 0 to 31, and one for all other paths

  std::uint64_t message = 0;
  std::uint32_t flow = 0;
  bool receives = false;
  std::int64_t posted_ns = 0, first_ns = 0, last_ns = 0;
  std::uint32_t segments = 0, resent = 0;
  std::array<std::uint32_t, kPaths> by_path{};  // number of segments sent on each path
  std::uint32_t next = 0;                       // index of the next entry of the same bucket, or of the free list
  std::uint32_t older = 0, newer = 0;           // indexes of the receives posted before and after this receive
};

class MessageTable {
 public:
  static constexpr std::size_t kStripesMax = 4096;

  MessageTable() : entries_(kStripesMax), buckets_(kStripesMax, kNone) {
    for (std::size_t i = 0; i < kStripesMax; ++i) entries_[i].next = static_cast<std::uint32_t>(i + 1);
    entries_.back().next = kNone;
  }

  // Adds a stripe. Null: too many sends are in progress.
  //
  // A receive is posted on every flow of a connection, but a short message does not arrive on all of them, and nothing
  // tells when such a receive is over. So if the table is full, the oldest receive makes room.
  TracedStripe* add(std::uint32_t flow, std::uint64_t message, bool receives) noexcept {
    TracedStripe oldest;
    if (free_ == kNone && oldest_ != kNone) {
      const TracedStripe& entry = entries_[oldest_];
      static_cast<void>(remove(entry.flow, entry.message, true, &oldest));
    }
    if (free_ == kNone) return nullptr;
    const std::uint32_t index = free_;
    TracedStripe& entry = entries_[index];
    free_ = entry.next;
    std::uint32_t& bucket = bucket_of(flow, message, receives);
    entry = {};
    entry.message = message;
    entry.flow = flow;
    entry.receives = receives;
    entry.next = std::exchange(bucket, index);
    if (receives) append(index);
    return &entry;
  }
  TracedStripe* find(std::uint32_t flow, std::uint64_t message, bool receives) noexcept {
    for (std::uint32_t at = bucket_of(flow, message, receives); at != kNone; at = entries_[at].next) {
      if (is(entries_[at], flow, message, receives)) return &entries_[at];
    }
    return nullptr;
  }
  // Removes a stripe and copies it to `out`. False: it is not in the table.
  bool remove(std::uint32_t flow, std::uint64_t message, bool receives, TracedStripe* out) noexcept {
    for (std::uint32_t* at = &bucket_of(flow, message, receives); *at != kNone; at = &entries_[*at].next) {
      TracedStripe& entry = entries_[*at];
      if (!is(entry, flow, message, receives)) continue;
      *out = entry;
      const std::uint32_t index = *at;
      *at = entry.next;
      entry.next = std::exchange(free_, index);
      if (receives) detach(entry);
      return true;
    }
    return false;
  }

 private:
  static constexpr std::uint32_t kNone = 0xFFFF'FFFF;

  static bool is(const TracedStripe& entry, std::uint32_t flow, std::uint64_t message, bool receives) noexcept {
    return entry.message == message && entry.flow == flow && entry.receives == receives;
  }
  void append(std::uint32_t index) noexcept {
    entries_[index].older = newest_;
    entries_[index].newer = kNone;
    (newest_ == kNone ? oldest_ : entries_[newest_].newer) = index;
    newest_ = index;
  }
  void detach(const TracedStripe& entry) noexcept {
    (entry.older == kNone ? oldest_ : entries_[entry.older].newer) = entry.newer;
    (entry.newer == kNone ? newest_ : entries_[entry.newer].older) = entry.older;
  }
  std::uint32_t& bucket_of(std::uint32_t flow, std::uint64_t message, bool receives) noexcept {
    // Consecutive messages of a flow go to different buckets.
    const std::uint64_t key = (message * 2 + (receives ? 1 : 0)) + std::uint64_t{flow} * 0x9E37'79B9;
    return buckets_[key % kStripesMax];
  }

  std::vector<TracedStripe> entries_;
  std::vector<std::uint32_t> buckets_;
  std::uint32_t free_ = 0;
  std::uint32_t oldest_ = kNone, newest_ = kNone;  // indexes of the oldest and the newest receive
};

}  // namespace weft::engine
