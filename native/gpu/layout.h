// Where the bytes of a message are on a device: in one run, or in many pieces, such as a caller's tensors.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "native/gpu/driver.h"
#include "native/gpu/jobs.h"

namespace weft::gpu {

class Layout {
 public:
  Layout() = default;
  Layout(Address address, std::uint64_t bytes) { add(address, bytes); }

  // Adds a piece in message order. Empty pieces are skipped. Adjacent pieces are not merged: they may belong to two
  // allocations, and no copy may cross from one allocation to another.
  void add(Address address, std::uint64_t bytes) {
    if (bytes == 0) return;
    pieces_.push_back({address, bytes, bytes_});
    bytes_ += bytes;
  }
  std::uint64_t bytes() const noexcept { return bytes_; }
  const std::vector<Piece>& pieces() const noexcept { return pieces_; }

  // Whether [begin, begin + bytes) of the message is in more than two pieces.
  bool scattered(std::uint64_t begin, std::uint64_t bytes) const {
    int runs = 0;
    return !each_run(begin, bytes, [&](Address, std::uint64_t, std::uint64_t) { return ++runs <= 2; });
  }
  // Calls act(address, offset, bytes) for every run of [begin, begin + bytes) of the message, until it returns false.
  template <class Act>
  bool each_run(std::uint64_t begin, std::uint64_t bytes, const Act& act) const {
    const std::uint64_t end = begin + bytes;
    auto piece = std::upper_bound(pieces_.begin(), pieces_.end(), begin,
                                  [](std::uint64_t at, const Piece& other) { return at < other.offset_bytes; });
    if (piece != pieces_.begin()) --piece;
    for (; piece != pieces_.end() && piece->offset_bytes < end; ++piece) {
      const std::uint64_t from = std::max(begin, piece->offset_bytes),
                          to = std::min(end, piece->offset_bytes + piece->bytes);
      if (from < to && !act(piece->address + (from - piece->offset_bytes), from, to - from)) return false;
    }
    return true;
  }

 private:
  std::vector<Piece> pieces_;
  std::uint64_t bytes_ = 0;
};

}  // namespace weft::gpu
