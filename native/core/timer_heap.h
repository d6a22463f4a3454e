// Who is to be woken when. Entries are never moved: a later deadline leaves the old entry, which fires early and is
// ignored. Knows ids, not what they stand for.
#pragma once

#include <algorithm>
#include <vector>

#include "native/core/types.h"

namespace weft::core {

class TimerHeap {
 public:
  struct Entry {
    i64 at_ns;
    u32 id;
  };
  // Room for `ids` ids, called when one is added and never on the segment path. An id holds more than one entry only
  // while its deadline moves forward faster than old entries fire: a few are kept free for that.
  void reserve(std::size_t ids) {
    const std::size_t wanted = 64 + 4 * ids;
    if (entries_.capacity() < wanted) entries_.reserve(wanted + wanted / 2);
  }
  void push(i64 at_ns, u32 id) {
    entries_.push_back({at_ns, id});
    std::push_heap(entries_.begin(), entries_.end(), later);
  }
  i64 next_ns() const noexcept { return entries_.empty() ? kNever : entries_.front().at_ns; }
  // The earliest entry that is due; false when none is.
  bool pop_due(i64 now_ns, Entry* out) noexcept {
    if (entries_.empty() || entries_.front().at_ns > now_ns) return false;
    *out = entries_.front();
    std::pop_heap(entries_.begin(), entries_.end(), later);
    entries_.pop_back();
    return true;
  }

 private:
  // Ties in order of id, so that a run does not depend on how the heap happens to lie (P-8).
  static bool later(const Entry& a, const Entry& b) noexcept {
    return a.at_ns != b.at_ns ? a.at_ns > b.at_ns : a.id > b.id;
  }
  std::vector<Entry> entries_;
};

}  // namespace weft::core
