// A heap of deadlines, one per id, earliest first. Equal deadlines are ordered by id, so that simulations are
// reproducible (P-8).
#pragma once

#include <algorithm>
#include <utility>
#include <vector>

#include "native/core/types.h"

namespace weft::core {

class TimerHeap {
 public:
  struct Entry {
    i64 at_ns;
    u32 id;
  };
  // The id of a flow is its index; the id of a peer is its index with this bit set.
  static constexpr u32 kPeerBit = 0x8000'0000u;

  // Allocate memory for the ids of this many flows and peers, and for this many deadlines, so that set() and pop_due()
  // never allocate.
  void reserve_entries(std::size_t count) {
    if (entries_.capacity() < count) entries_.reserve(std::max(count, 2 * entries_.capacity()));
  }
  void reserve_ids(std::size_t flows, std::size_t peers) {
    if (places_[0].size() < flows) places_[0].resize(flows, kNone);
    if (places_[1].size() < peers) places_[1].resize(peers, kNone);
  }
  // Sets the deadline of an id; kNever removes it.
  void set(i64 at_ns, u32 id) noexcept {
    u32& place = place_of(id);
    if (place == kNone) {
      if (at_ns == kNever) return;
      place = static_cast<u32>(entries_.size());
      entries_.push_back({at_ns, id});
      rise(place);
      return;
    }
    if (at_ns == kNever) {
      remove(place);
      return;
    }
    entries_[place].at_ns = at_ns;
    sink(rise(place));
  }
  i64 next_ns() const noexcept { return entries_.empty() ? kNever : entries_.front().at_ns; }
  void prefetch() const noexcept {
    __builtin_prefetch(entries_.data());
    __builtin_prefetch(places_[0].data());
  }
  // Removes the earliest entry if it is due; otherwise returns false.
  bool pop_due(i64 now_ns, Entry* out) noexcept {
    if (entries_.empty() || entries_.front().at_ns > now_ns) return false;
    *out = entries_.front();
    remove(0);
    return true;
  }

 private:
  static bool before(const Entry& a, const Entry& b) noexcept {
    return a.at_ns != b.at_ns ? a.at_ns < b.at_ns : a.id < b.id;
  }
  u32& place_of(u32 id) noexcept { return places_[(id & kPeerBit) != 0 ? 1 : 0][id & ~kPeerBit]; }
  void swap(std::size_t a, std::size_t b) noexcept {
    std::swap(entries_[a], entries_[b]);
    place_of(entries_[a].id) = static_cast<u32>(a);
    place_of(entries_[b].id) = static_cast<u32>(b);
  }
  std::size_t rise(std::size_t at) noexcept {
    while (at != 0 && before(entries_[at], entries_[(at - 1) / 2])) {
      swap(at, (at - 1) / 2);
      at = (at - 1) / 2;
    }
    return at;
  }
  void sink(std::size_t at) noexcept {
    for (;;) {
      std::size_t first = at;
      for (const std::size_t child : {2 * at + 1, 2 * at + 2}) {
        if (child < entries_.size() && before(entries_[child], entries_[first])) first = child;
      }
      if (first == at) return;
      swap(at, first);
      at = first;
    }
  }
  void remove(std::size_t at) noexcept {
    place_of(entries_[at].id) = kNone;
    const std::size_t last = entries_.size() - 1;
    if (at != last) {
      entries_[at] = entries_[last];
      place_of(entries_[at].id) = static_cast<u32>(at);
    }
    entries_.pop_back();
    if (at != last) sink(rise(at));
  }

  std::vector<Entry> entries_;
  std::vector<u32> places_[2];  // position in the heap of each flow's (0) and peer's (1) entry
};

}  // namespace weft::core
