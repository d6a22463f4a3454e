// Random numbers and piece sizes for tests of the kernels; a seed gives the same numbers on any machine.
#pragma once

#include <cstddef>
#include <cstdint>

namespace weft::test {

// A small random number generator that gives the same numbers on every machine.
class Draw {
 public:
  explicit Draw(std::uint64_t seed) : state_(seed * 0x9e3779b97f4a7c15u + 1) {}
  std::uint64_t bits() {
    state_ ^= state_ << 13;
    state_ ^= state_ >> 7;
    state_ ^= state_ << 17;
    return state_ * 0x2545f4914f6cdd1du;
  }
  std::uint64_t below(std::uint64_t bound) { return (bits() >> 11) % bound; }
  bool one_in(std::uint64_t n) { return below(n) == 0; }
  void fill(std::uint8_t* bytes, std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) bytes[i] = static_cast<std::uint8_t>(bits() >> 40);
  }

 private:
  std::uint64_t state_;
};

// Draws a common piece size, or one at which the kernels take another branch.
inline std::size_t draw_piece_bytes(Draw* draw) {
  switch (draw->below(8)) {
    case 0:
      return 0;
    case 1:
      return draw->below(4);
    case 2:
    case 3:
      return draw->below(80);
    case 4:
      return 16 * draw->below(40);
    case 5:
      return 1'400 + draw->below(100);
    case 6:
      return draw->below(5'000);
    default:
      return draw->one_in(20) ? draw->below(70'000) : draw->below(300);
  }
}

}  // namespace weft::test
