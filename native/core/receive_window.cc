// Marks arrivals in a circular bitmap and copies it for acknowledgments. Bits are cleared when the cumulative position
// passes them, so the bitmap is never cleared as a whole.
#include "native/core/receive_window.h"

#include <bit>
#include <cstring>

namespace weft::core {

ReceiveWindow::~ReceiveWindow() {
  if (words_ == nullptr) return;
  std::memset(words_, 0, kBitmapBytes);
  bitmaps_->give(words_);
}

ReceiveWindow::Arrival ReceiveWindow::classify(u64 seq) const noexcept {
  if (seq < cumulative_) return Arrival::duplicate;
  if (seq - cumulative_ >= kWindowSegments) return Arrival::beyond;
  return seq < end_ && words_ != nullptr && bit(seq) ? Arrival::duplicate : Arrival::fresh;
}

ReceiveWindow::Arrival ReceiveWindow::on_arrival(u64 seq) noexcept {
  const Arrival arrival = classify(seq);
  if (arrival != Arrival::fresh) return arrival;
  if (seq == cumulative_ && end_ == cumulative_) {  // in order and nothing is missing: needs no bitmap
    cumulative_ = end_ = seq + 1;
    return Arrival::fresh;
  }
  if (words_ == nullptr) {
    words_ = static_cast<u64*>(bitmaps_->take());
    if (words_ == nullptr) return Arrival::beyond;
  }
  words_[(seq % kWindowSegments) / 64] |= u64{1} << (seq % 64);
  if (seq >= end_) end_ = seq + 1;
  if (seq == cumulative_) advance();
  return Arrival::fresh;
}

void ReceiveWindow::advance() noexcept {
  while (cumulative_ < end_) {
    u64& word = words_[(cumulative_ % kWindowSegments) / 64];
    const u64 shift = cumulative_ % 64;
    const auto run = static_cast<u64>(std::countr_one(word >> shift));
    if (run == 0) break;
    const u64 mask = run == 64 ? ~u64{0} : ((u64{1} << run) - 1) << shift;
    word &= ~mask;
    cumulative_ += run;
    if (shift + run < 64) break;  // a segment within this word is missing
  }
  if (cumulative_ == end_) {
    bitmaps_->give(words_);
    words_ = nullptr;
  }
}

u16 ReceiveWindow::copy_words(u64 base_seq, std::size_t words_max, u64* out) const noexcept {
  if (words_ == nullptr || base_seq >= end_) return 0;
  const u64 bits = end_ - base_seq;
  std::size_t count = (bits + 63) / 64;
  if (count > words_max) count = words_max;
  constexpr std::size_t kWords = kWindowSegments / 64;
  const u64 shift = base_seq % 64;
  std::size_t at = (base_seq % kWindowSegments) / 64;
  for (std::size_t i = 0; i < count; ++i) {
    const u64 low = words_[at] >> shift;
    at = (at + 1) % kWords;
    out[i] = shift == 0 ? low : low | words_[at] << (64 - shift);
    // The bitmap is circular: bits beyond the highest received number belong to older numbers and must not be reported.
    const u64 seen = base_seq + 64 * i;
    if (end_ - seen < 64) out[i] &= (u64{1} << (end_ - seen)) - 1;
  }
  return static_cast<u16>(count);
}

}  // namespace weft::core
