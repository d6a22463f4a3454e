// Finds the records in the blocks of a trace file, whose bytes may be damaged.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace weft::telemetry {

// Returns the CRC-32C of all bytes so far; `crc` is that of the bytes before `data`, 0 at the start.
using TraceChecksum = std::uint32_t (*)(std::uint32_t crc, const void* data, std::size_t bytes) noexcept;

struct TraceRecords {
  std::vector<std::uint64_t> offsets;  // offset of each record in the file; multiples of 8 if `begin` is one
  std::uint64_t dropped = 0;           // records dropped by the process before it wrote the last undamaged block
  std::string damage;                  // why reading ended before the end of the file; empty: the whole file was read
};

// Reads blocks from offset `begin` of the file up to the first damaged one. Each record that is found lies completely
// in the file, and is at least as long as a TraceHead.
TraceRecords read_trace_blocks(std::span<const std::byte> file, std::size_t begin, TraceChecksum checksum);

}  // namespace weft::telemetry
