// Counts values in logarithmic buckets, each about 1/16 wide relative to its values, so that percentiles need a fixed
// amount of memory. A percentile is reported as the upper end of its bucket.
#pragma once

#include <array>
#include <bit>

#include "native/core/types.h"

namespace weft::sim {

class Histogram {
 public:
  void add(core::i64 value) noexcept {
    ++counts_[bucket_of(value < 0 ? 0 : static_cast<core::u64>(value))];
    ++total_;
  }
  core::u64 total() const noexcept { return total_; }

  // The smallest bucket end such that at least this share of the values does not exceed it; 0 if there are no values.
  core::i64 percentile(double share) const noexcept {
    const double wanted = share * static_cast<double>(total_);
    core::u64 seen = 0;
    for (std::size_t bucket = 0; bucket < counts_.size(); ++bucket) {
      seen += counts_[bucket];
      if (seen != 0 && static_cast<double>(seen) >= wanted) return end_of(bucket);
    }
    return 0;
  }

 private:
  static constexpr core::u32 kSubBits = 4;
  static constexpr core::u64 kSub = 1u << kSubBits;

  static std::size_t bucket_of(core::u64 value) noexcept {
    if (value < kSub) return value;
    const auto shift = static_cast<core::u32>(std::bit_width(value)) - 1 - kSubBits;
    return (shift + 1) * kSub + ((value >> shift) - kSub);
  }
  static core::i64 end_of(std::size_t bucket) noexcept {
    if (bucket < kSub) return static_cast<core::i64>(bucket);
    const std::size_t shift = bucket / kSub - 1;
    return static_cast<core::i64>((((bucket % kSub) + kSub + 1) << shift) - 1);
  }

  std::array<core::u64, (64 - kSubBits + 1) * kSub> counts_{};
  core::u64 total_ = 0;
};

}  // namespace weft::sim
