// The 32 bits of immediate data of a segment that is sent by RDMA write. The write and the header after it carry the
// same value, so that a receiver accepts a header only with the write that belongs to it:
//   31..24  generation of the queue pair, incremented when it is re-established
//   23..0   number of the write on its queue pair, counted from 0, wrapping around
// All other information about the segment is in its header.
#pragma once

#include <cstdint>

namespace weft::datapath {

inline constexpr unsigned kWriteNumberBits = 24;
inline constexpr std::uint32_t kWriteNumberMask = (1u << kWriteNumberBits) - 1;

constexpr std::uint32_t immediate_of(std::uint32_t generation, std::uint32_t write_number) noexcept {
  return generation << kWriteNumberBits | (write_number & kWriteNumberMask);
}
static_assert(immediate_of(0, 0) == 0);
static_assert(immediate_of(0, 0x0123'4567) == 0x0023'4567, "the write number wraps below the generation's bits");
static_assert(immediate_of(0xAB, 0x123456) == 0xAB12'3456);
static_assert(immediate_of(0x1AB, 0) == 0xAB00'0000, "only the low eight bits of the generation are used");

}  // namespace weft::datapath
