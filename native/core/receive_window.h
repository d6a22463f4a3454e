// Tracks which sequence numbers have arrived: a cumulative position and, while segments are missing, a bitmap of
// kWindowSegments bits from a pool.
#pragma once

#include "native/core/slab_pool.h"
#include "native/core/types.h"

namespace weft::core {

class ReceiveWindow {
 public:
  static constexpr std::size_t kBitmapBytes = kWindowSegments / 8;
  enum class Arrival : u8 { fresh, duplicate, beyond };

  // `bitmaps`: a pool of blocks of kBitmapBytes, zero at first. Windows give them back zeroed, too.
  explicit ReceiveWindow(SlabPool* bitmaps) noexcept : bitmaps_(bitmaps) {}
  ReceiveWindow(const ReceiveWindow&) = delete;
  ReceiveWindow& operator=(const ReceiveWindow&) = delete;
  ~ReceiveWindow();

  // Returns what on_arrival() would return for `seq`, but changes nothing.
  Arrival classify(u64 seq) const noexcept;
  // Marks `seq` as received. Returns `beyond` and changes nothing if `seq` is outside the window or there is no memory
  // for a bitmap.
  Arrival on_arrival(u64 seq) noexcept;

  void prefetch() const noexcept {
    if (words_ != nullptr) __builtin_prefetch(&words_[(end_ % kWindowSegments) / 64]);
  }
  u64 cumulative_seq() const noexcept { return cumulative_; }
  u64 highest_end() const noexcept { return end_; }  // 1 + the highest received number
  bool has_gap() const noexcept { return end_ != cumulative_; }
  // Copies up to `words_max` 64-bit words of the bitmap, starting with the bit of `base_seq`, which must be in
  // [cumulative_seq(), highest_end()).
  u16 copy_words(u64 base_seq, std::size_t words_max, u64* out) const noexcept;

 private:
  bool bit(u64 seq) const noexcept { return (words_[(seq % kWindowSegments) / 64] >> (seq % 64) & 1u) != 0; }
  void advance() noexcept;

  SlabPool* bitmaps_;
  u64* words_ = nullptr;  // circular bitmap, indexed by sequence number; bits outside (cumulative_, end_) are zero
  u64 cumulative_ = 0;
  u64 end_ = 0;
};

}  // namespace weft::core
