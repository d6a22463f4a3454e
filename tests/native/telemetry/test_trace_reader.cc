// Tests that the records of trace files are found, and that damage never makes the reader access bytes outside of the
// file.
#include <algorithm>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "native/telemetry/trace_layout.h"
#include "native/telemetry/trace_reader.h"
#include "native/wire/crc32c.h"
#include "tests/native/check.h"

using namespace weft;
using telemetry::TraceBlockHeader;
using telemetry::TraceHead;

namespace {

using Bytes = std::vector<std::byte>;

void append(Bytes* to, const void* data, std::size_t bytes) {
  const std::size_t at = to->size();
  to->resize(at + bytes);
  if (bytes != 0) std::memcpy(to->data() + at, data, bytes);
}

// A block with these bytes as records, and with the right checksum.
Bytes block(const Bytes& records, std::uint64_t dropped = 0) {
  TraceBlockHeader header{};
  header.magic = telemetry::kTraceBlockMagic;
  header.bytes = static_cast<std::uint32_t>(records.size());
  header.dropped = dropped;
  Bytes made;
  append(&made, &header, sizeof header);
  append(&made, records.data(), records.size());
  header.crc = wire::crc32c(0, made.data(), made.size());
  std::memcpy(made.data(), &header, sizeof header);
  return made;
}

Bytes record(std::uint16_t bytes) {
  const TraceHead head{7, bytes, 1, 2};
  Bytes made;
  append(&made, &head, sizeof head);
  made.resize(std::max<std::size_t>(bytes, sizeof head));
  return made;
}

// Reads a copy that ends where its memory ends, so that the address sanitizer sees every byte read beyond it.
telemetry::TraceRecords read(const Bytes& file, std::size_t begin) {
  const auto copy = std::make_unique<std::byte[]>(file.size());
  if (!file.empty()) std::memcpy(copy.get(), file.data(), file.size());
  return telemetry::read_trace_blocks({copy.get(), file.size()}, begin, &wire::crc32c);
}

void check_inside(const Bytes& file, const telemetry::TraceRecords& found) {
  for (const std::uint64_t at : found.offsets) {
    CHECK(at + sizeof(TraceHead) <= file.size());
    TraceHead head{};
    std::memcpy(&head, file.data() + at, sizeof head);
    CHECK(head.bytes >= sizeof head && at + head.bytes <= file.size());
  }
}

}  // namespace

TEST(trace_reader__finds_the_records_of_all_blocks) {
  Bytes records = record(16);
  append(&records, record(40).data(), 40);
  Bytes file = block(records, 3);
  append(&file, block(record(24), 5).data(), 32 + 24);
  const auto found = read(file, 0);
  CHECK_EQUAL(found.offsets.size(), 3u);
  CHECK_EQUAL(found.offsets[1], 48u);
  CHECK_EQUAL(found.offsets[2], 120u);
  CHECK_EQUAL(found.dropped, 5u);
  CHECK_EQUAL(found.damage, "");
}

TEST(trace_reader__a_begin_beyond_the_file_is_its_end) {
  CHECK(read({}, 0).offsets.empty());
  CHECK(read(block(record(16)), 1'000'000).damage.empty());
}

TEST(trace_reader__survives_any_records_in_a_sound_block) {
  std::mt19937 draw(1);
  for (int round = 0; round < 20'000; ++round) {
    Bytes records(draw() % 80);
    for (std::byte& one : records) one = static_cast<std::byte>(draw() % 4 != 0 ? draw() % 40 : draw());
    const Bytes file = block(records);
    check_inside(file, read(file, 0));
  }
}

TEST(trace_reader__survives_any_damage) {
  std::mt19937 draw(2);
  Bytes whole;
  for (int index = 0; index < 4; ++index) {
    const Bytes one = block(record(static_cast<std::uint16_t>(16 + 8 * index)));
    append(&whole, one.data(), one.size());
  }
  for (int round = 0; round < 20'000; ++round) {
    Bytes file = whole;
    file.resize(draw() % (file.size() + 1));
    for (unsigned flips = draw() % 4; flips > 0 && !file.empty(); --flips) {
      file[draw() % file.size()] ^= static_cast<std::byte>(1u << draw() % 8);
    }
    const auto found = read(file, draw() % 3 == 0 ? draw() % 200 : 0);
    check_inside(file, found);
    CHECK(found.offsets.size() <= 4);
  }
}
