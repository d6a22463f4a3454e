// Tracks segments of which only some fragments have arrived. If there are too many, the oldest is dropped and the
// sender has to resend it.
#pragma once

#include <memory>
#include <new>

#include "native/core/types.h"

namespace weft::core {

class PartialSegments {
 public:
  static constexpr std::size_t kPartialMax = 64;
  // What must be the same in all fragments of a segment.
  struct Segment {
    u64 seq = ~u64{0};
    u64 message = 0, message_bytes = 0;
    u64 offset_bytes = 0;  // offset of the segment within the message
    u16 bytes = 0;
    bool operator==(const Segment&) const = default;
  };
  // fresh: the fragment is new. complete: it completes the segment. repeated: it has no new byte. foreign: it
  // contradicts earlier fragments with the same sequence number. memory: out of memory.
  enum class Outcome : u8 { fresh, complete, repeated, foreign, memory };

  // `bytes_max`: size of the largest segment, in bytes.
  explicit PartialSegments(u16 bytes_max) noexcept : words_(word_count(bytes_max)) {}

  // Notes that the fragment [from, from + bytes) has arrived. `from` is a multiple of 8, and so is `bytes` except in
  // the last fragment. When the segment is complete, it is removed and `marked` tells whether any fragment had an ECN
  // mark.
  Outcome on_fragment(const Segment& segment, u16 from, u16 bytes, bool* marked) noexcept {
    Entry* entry = find(segment.seq);
    if (entry == nullptr) entry = begin(segment);
    if (entry == nullptr) return Outcome::memory;
    if (entry->segment != segment) return Outcome::foreign;
    entry->marked = entry->marked || *marked;
    const u32 end_unit = unit_count(from + u32{bytes});
    u32 fresh = 0;
    for (u32 unit = from / kUnitBytes; unit < end_unit; ++unit) {
      u64& word = words_of(*entry)[unit / 64];
      const u64 bit = u64{1} << (unit % 64);
      fresh += (word & bit) == 0 ? 1 : 0;
      word |= bit;
    }
    entry->missing_units -= fresh;
    if (fresh == 0) return Outcome::repeated;
    if (entry->missing_units != 0) return Outcome::fresh;
    *marked = entry->marked;
    entry->segment = Segment{};
    return Outcome::complete;
  }
  // Forgets the fragments of a segment that has arrived as a whole.
  void forget(u64 seq) noexcept {
    if (Entry* entry = find(seq)) entry->segment = Segment{};
  }
  std::size_t bytes_held() const noexcept {
    return entries_ == nullptr ? 0 : kPartialMax * (sizeof(Entry) + words_ * sizeof(u64));
  }

 private:
  static constexpr u32 kUnitBytes = 8;  // offsets of fragments are multiples of this
  struct Entry {
    Segment segment;
    u32 missing_units = 0;
    bool marked = false;
  };
  static constexpr u32 unit_count(u32 bytes) noexcept { return (bytes + kUnitBytes - 1) / kUnitBytes; }
  static constexpr u32 word_count(u32 bytes) noexcept { return (unit_count(bytes) + 63) / 64; }

  u64* words_of(const Entry& entry) noexcept {
    return bits_.get() + static_cast<std::size_t>(&entry - entries_.get()) * words_;
  }
  Entry* find(u64 seq) noexcept {
    for (std::size_t i = 0; entries_ != nullptr && i < kPartialMax; ++i) {
      if (entries_[i].segment.seq == seq) return &entries_[i];
    }
    return nullptr;
  }
  Entry* begin(const Segment& segment) noexcept {
    if (entries_ == nullptr) {
      bits_.reset(new (std::nothrow) u64[kPartialMax * words_]);
      if (bits_ != nullptr) entries_.reset(new (std::nothrow) Entry[kPartialMax]);
      if (entries_ == nullptr) return nullptr;
    }
    Entry& entry = entries_[next_++ % kPartialMax];
    entry = {segment, unit_count(segment.bytes), false};
    for (u32 i = 0; i < words_; ++i) words_of(entry)[i] = 0;
    return &entry;
  }

  std::unique_ptr<Entry[]> entries_;
  std::unique_ptr<u64[]> bits_;
  u32 words_;  // 64-bit words of the bitmap of one segment
  u32 next_ = 0;
};

}  // namespace weft::core
