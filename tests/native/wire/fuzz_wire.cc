// Fuzzes the decoder of packets and a pair of stacks that get them: no crash, no write beyond a receive, and no event
// that nobody asked for.
//
// An input is a byte that selects the receiving end and what is left wrong, and then the packet.
#include <memory>
#include <string>

#include "tests/native/fuzz/fuzz.h"
#include "tests/native/wire/fuzz_target.h"

namespace {

using namespace weft;
using core::u64;
using fuzz::require;
using test::FuzzTarget;
using test::Wired;

// Bits of an input's first byte.
constexpr core::u8 kToEnd1 = 1, kKeepChecksum = 2, kKeepLength = 4, kKeepPayloadChecksum = 8;
constexpr int kInputsPerStack = 500;
constexpr std::size_t kLengthAt = 22, kPayloadChecksumAt = 44, kDataHeaderBytes = 48;

Wired packet_of(const std::uint8_t* data, std::size_t bytes) {
  Wired packet;
  packet.to = data[0] & kToEnd1;
  const wire::RxDatagram cut = wire::datagram_at(data + 1, bytes - 1, false);
  packet.header.assign(cut.header, cut.header + cut.header_bytes);
  packet.payload.assign(cut.payload, cut.payload + cut.payload_bytes);
  if (packet.header.size() < wire::kCommonBytes) return packet;
  const bool is_data = packet.type() == wire::Type::data;
  if ((data[0] & kKeepLength) == 0) {
    const std::size_t body = is_data ? packet.payload.size() : packet.header.size() - wire::kCommonBytes;
    const auto length = static_cast<core::u16>(body);
    std::memcpy(packet.header.data() + kLengthAt, &length, sizeof length);
  }
  if ((data[0] & kKeepPayloadChecksum) == 0 && is_data && packet.header.size() >= kDataHeaderBytes) {
    const core::u32 crc = wire::crc32c(0, packet.payload.data(), packet.payload.size());
    std::memcpy(packet.header.data() + kPayloadChecksumAt, &crc, sizeof crc);
  }
  if ((data[0] & kKeepChecksum) == 0) test::reseal(&packet.header);
  return packet;
}

// Reads a decoded packet up to its last entry, which must not be beyond it. Returns a number that depends on all of it,
// so that no read is optimised away.
u64 read_all(const wire::Packet& packet) {
  u64 sum = 0;
  if (packet.common.type == wire::Type::nack) {
    for (std::size_t k = 0; k < packet.nack.count; ++k) sum += packet.nack.entry(k).seq;
  } else if (packet.common.type == wire::Type::advert) {
    for (std::size_t k = 0; k < packet.advert.count; ++k) sum += packet.advert.entry(k).capacity_bytes;
  } else if (packet.common.type == wire::Type::ack) {
    for (std::size_t k = 0; k < 8u * packet.ack.bitmap_words; ++k) sum += packet.ack.bitmap[k];
  }
  return sum;
}

}  // namespace

std::vector<fuzz::Input> fuzz::corpus() {
  std::vector<Input> made;
  bool seen[10] = {};
  for (const Wired& packet : test::corpus()) {
    seen[packet.header[3] % 10] = true;
    Input input{static_cast<core::u8>(packet.to)};
    input.insert(input.end(), packet.header.begin(), packet.header.end());
    input.insert(input.end(), packet.payload.begin(), packet.payload.end());
    made.push_back(std::move(input));
  }
  for (int type = 1; type <= 9; ++type) require(seen[type], "no packet of type " + std::to_string(type));
  return made;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t bytes) {
  static std::unique_ptr<FuzzTarget> target;
  static u64 inputs = 0, sum = 0;
  if (inputs++ % kInputsPerStack == 0) target = std::make_unique<FuzzTarget>(inputs * 2 + inputs / kInputsPerStack);
  if (bytes == 0) return 0;
  const Wired packet = packet_of(data, bytes);
  wire::Packet decoded;
  if (wire::decode(packet.header.data(), packet.header.size(), packet.payload.size(), &decoded) == wire::Verdict::ok) {
    ++fuzz::accepted;
    sum += read_all(decoded);
    require(sum != 0xDEAD'BEEF'0000'0001u, "the sum");
  }
  target->feed(packet);
  require(target->complaint().empty(), target->complaint());
  return 0;
}
