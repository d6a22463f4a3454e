// Before a size in the file is used, it is compared with the number of bytes that remain.
#include "native/telemetry/trace_reader.h"

#include <cstring>

#include "native/telemetry/trace_layout.h"

namespace weft::telemetry {
namespace {

template <class Header>
Header read_at(std::span<const std::byte> file, std::size_t at) noexcept {
  Header header;
  std::memcpy(&header, file.data() + at, sizeof header);
  return header;
}

// What is wrong with the block at offset `at`; empty: nothing.
std::string check_block(std::span<const std::byte> file, std::size_t at, TraceChecksum checksum) {
  if (file.size() - at < sizeof(TraceBlockHeader)) return "the last block is cut off";
  auto header = read_at<TraceBlockHeader>(file, at);
  if (header.magic != kTraceBlockMagic) return "no block begins at byte " + std::to_string(at);
  if (header.bytes > file.size() - at - sizeof header) return "the last block is cut off";
  const std::uint32_t wanted = header.crc;
  header.crc = 0;
  std::uint32_t crc = checksum(0, &header, sizeof header);
  crc = checksum(crc, file.data() + at + sizeof header, header.bytes);
  return crc == wanted ? "" : "the checksum of the block at byte " + std::to_string(at) + " is wrong";
}

}  // namespace

TraceRecords read_trace_blocks(std::span<const std::byte> file, std::size_t begin, TraceChecksum checksum) {
  TraceRecords found;
  std::size_t at = begin;
  while (at < file.size()) {
    found.damage = check_block(file, at, checksum);
    if (!found.damage.empty()) return found;
    const auto block = read_at<TraceBlockHeader>(file, at);
    at += sizeof block;
    const std::size_t end = at + block.bytes;
    while (at < end) {
      TraceHead head{0, 0, 0, 0};
      if (end - at >= sizeof head) head = read_at<TraceHead>(file, at);
      if (head.bytes < sizeof head || head.bytes % 8 != 0 || head.bytes > end - at) {
        found.damage = "the record at byte " + std::to_string(at) + " has a wrong size";
        return found;
      }
      found.offsets.push_back(at);
      at += head.bytes;
    }
    found.dropped = block.dropped;
  }
  return found;
}

}  // namespace weft::telemetry
