// Observes every memory access of kernels that run on the host, and reports each byte read or written that the test did
// not allow. Must be included before the kernels' headers.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#define WEFT_WATCH_ACCESS(address, bytes, stores) ::weft::test::watched().see(address, bytes, stores)

namespace weft::test {

class Watched {
 public:
  void allow(std::uint64_t begin, std::uint64_t bytes, bool stores) {
    if (bytes != 0) allowed_[stores].push_back({begin, begin + bytes});
    sorted_ = false;
  }
  void forget() {
    allowed_[0].clear();
    allowed_[1].clear();
    breaches_.clear();
    accesses_ = 0;
  }
  void see(std::uint64_t address, std::uint64_t bytes, bool stores) {
    if (!sorted_) {
      for (auto& ranges : allowed_) std::sort(ranges.begin(), ranges.end());
      sorted_ = true;
    }
    ++accesses_;
    const auto& ranges = allowed_[stores];
    auto after = std::upper_bound(ranges.begin(), ranges.end(), Range{address, ~std::uint64_t{0}});
    if (after != ranges.begin() && address + bytes <= std::prev(after)->end) return;
    if (breaches_.empty()) {
      breaches_ = (stores ? "stored " : "loaded ") + std::to_string(bytes) + " bytes that it may not";
    }
  }
  // Describes the first access that was not allowed; empty if there was none.
  const std::string& breaches() const { return breaches_; }
  std::uint64_t accesses() const { return accesses_; }

 private:
  struct Range {
    std::uint64_t begin, end;
    bool operator<(const Range& other) const { return begin != other.begin ? begin < other.begin : end < other.end; }
  };
  std::vector<Range> allowed_[2];  // loads, stores; adjacent ranges are not merged
  std::string breaches_;
  std::uint64_t accesses_ = 0;
  bool sorted_ = false;
};

inline Watched& watched() {
  static Watched one;
  return one;
}

// An array with a given alignment modulo 16, which ends exactly with its allocation, and guard bytes before it.
class Placed {
 public:
  Placed(std::size_t bytes, std::size_t place, std::uint8_t fill)
      : shift_(16 + place % 16), bytes_(bytes), memory_(new std::uint8_t[shift_ + bytes]) {
    std::memset(memory_, kGuard, shift_);
    std::memset(data(), fill, bytes);
  }
  Placed(Placed&& other) noexcept : shift_(other.shift_), bytes_(other.bytes_), memory_(other.memory_) {
    other.memory_ = nullptr;
  }
  Placed(const Placed&) = delete;
  Placed& operator=(const Placed&) = delete;
  ~Placed() { delete[] memory_; }

  std::uint8_t* data() { return memory_ + shift_; }
  std::size_t bytes() const { return bytes_; }
  std::uint64_t address() { return reinterpret_cast<std::uint64_t>(data()); }
  bool guarded() const {
    return std::all_of(memory_, memory_ + shift_, [](std::uint8_t byte) { return byte == kGuard; });
  }

 private:
  static constexpr std::uint8_t kGuard = 0xA5;
  std::size_t shift_, bytes_;
  std::uint8_t* memory_;  // a multiple of 16, as new[] returns
};

}  // namespace weft::test

#include "tests/native/draw.h"
#include "tests/native/host_driver.h"
