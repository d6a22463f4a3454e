// Fuzzes the reader of trace files: every record that it finds lies in the file.
//
// An input is a byte, whose first bit says whether checksums are left wrong, and then the blocks of a file.
#include <cstring>

#include "native/telemetry/trace_layout.h"
#include "native/telemetry/trace_reader.h"
#include "native/wire/crc32c.h"
#include "tests/native/fuzz/fuzz.h"

namespace {

using namespace weft;
using fuzz::require;
using telemetry::TraceBlockHeader;
using telemetry::TraceHead;

void append(fuzz::Input* to, const void* data, std::size_t bytes) {
  const std::size_t at = to->size();
  to->resize(at + bytes);
  if (bytes != 0) std::memcpy(to->data() + at, data, bytes);
}

// Corrects the checksums of the blocks that are whole.
void repair(std::uint8_t* file, std::size_t bytes) {
  for (std::size_t at = 0; bytes - at >= sizeof(TraceBlockHeader);) {
    TraceBlockHeader header;
    std::memcpy(&header, file + at, sizeof header);
    if (header.bytes > bytes - at - sizeof header) return;
    header.crc = 0;
    const std::uint32_t crc = wire::crc32c(0, &header, sizeof header);
    header.crc = wire::crc32c(crc, file + at + sizeof header, header.bytes);
    std::memcpy(file + at, &header, sizeof header);
    at += sizeof header + header.bytes;
  }
}

fuzz::Input block(std::initializer_list<std::uint16_t> record_bytes) {
  fuzz::Input records;
  for (const std::uint16_t bytes : record_bytes) {
    const TraceHead head{7, bytes, 1, 2};
    append(&records, &head, sizeof head);
    records.resize(records.size() + bytes - sizeof head);
  }
  TraceBlockHeader header{};
  header.magic = telemetry::kTraceBlockMagic;
  header.bytes = static_cast<std::uint32_t>(records.size());
  fuzz::Input made;
  append(&made, &header, sizeof header);
  append(&made, records.data(), records.size());
  return made;
}

}  // namespace

std::vector<fuzz::Input> fuzz::corpus() {
  Input all{0};
  std::vector<Input> made;
  for (const Input& one : {block({16}), block({16, 40, 24}), block({}), block({1024, 16, 16, 16, 16})}) {
    append(&all, one.data(), one.size());
    made.push_back({0});
    append(&made.back(), one.data(), one.size());
  }
  made.push_back(all);
  return made;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t bytes) {
  if (bytes == 0) return 0;
  fuzz::Input file(data + 1, data + bytes);
  if ((data[0] & 1) == 0) repair(file.data(), file.size());
  const std::size_t begin = data[0] >> 1;
  const auto found = telemetry::read_trace_blocks(std::as_bytes(std::span(file)), begin, &wire::crc32c);
  if (!found.offsets.empty()) ++fuzz::accepted;
  for (const std::uint64_t at : found.offsets) {
    require(at >= begin && at + sizeof(TraceHead) <= file.size(), "a record is not in the file");
    TraceHead head;
    std::memcpy(&head, file.data() + at, sizeof head);
    require(head.bytes >= sizeof head && at + head.bytes <= file.size(), "a record ends beyond the file");
  }
  return 0;
}
