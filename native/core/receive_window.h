// Tracks which sequence numbers have arrived: a cumulative position and, beyond the first gap, a bitmap of
// kWindowSegments that is borrowed from a pool while there is a gap.
#pragma once

#include "native/core/slab_pool.h"
#include "native/core/types.h"

namespace weft::core {

class ReceiveWindow {
 public:
  static constexpr std::size_t kBitmapBytes = kWindowSegments / 8;
  enum class Arrival : u8 { fresh, duplicate, beyond };

  explicit ReceiveWindow(SlabPool* bitmaps) noexcept : bitmaps_(bitmaps) {}
  ReceiveWindow(const ReceiveWindow&) = delete;
  ReceiveWindow& operator=(const ReceiveWindow&) = delete;
  ~ReceiveWindow() { bitmaps_->give(words_); }

  // What on_arrival would return, without changing anything.
  Arrival classify(u64 seq) const noexcept;
  // Marks `seq` as received. `beyond` if it is outside the window or there is no memory for a bitmap; then nothing has
  // changed.
  Arrival on_arrival(u64 seq) noexcept;

  u64 cumulative_seq() const noexcept { return cumulative_; }
  u64 highest_end() const noexcept { return end_; }  // one beyond the highest received
  bool has_gap() const noexcept { return end_ != cumulative_; }
  // Copies up to `words_max` words of the bitmap whose bit 0 is `base_seq` (within [cumulative, highest_end)).
  u16 copy_words(u64 base_seq, std::size_t words_max, u64* out) const noexcept;

 private:
  bool bit(u64 seq) const noexcept { return (words_[(seq % kWindowSegments) / 64] >> (seq % 64) & 1u) != 0; }
  void advance() noexcept;

  SlabPool* bitmaps_;
  u64* words_ = nullptr;  // circular, indexed by seq; bits outside (cumulative, end) are zero
  u64 cumulative_ = 0;
  u64 end_ = 0;
};

}  // namespace weft::core
