// Fuzzes the frames of control sockets: a stream of bytes is cut into frames, whose bodies are read as every type.
//
// An input is a byte that says whether checksums are left wrong, and then the stream.
#include <cstring>

#include "native/control/frames.h"
#include "native/wire/crc32c.h"
#include "tests/native/fuzz/fuzz.h"

namespace {

using namespace weft;
using namespace weft::control;
using fuzz::require;

constexpr std::size_t kLengthAt = 8, kChecksumAt = 12;  // in the header of a frame

Open sample_open() {
  Open open;
  open.dial = 7;
  open.segment_bytes = 9000;
  open.addresses.resize(2);
  open.addresses[0].v4.sin_family = AF_INET;
  open.addresses[0].v4.sin_addr.s_addr = 0x0100007f;
  open.addresses[1].v6.sin6_family = AF_INET6;
  open.addresses[1].v6.sin6_addr.s6_addr[15] = 1;
  open.flows.resize(3);
  for (std::uint16_t i = 0; i < 3; ++i) {
    open.flows[i].engine = i;
    open.flows[i].peer_token = 100u + i;
    open.flows[i].flow_token = 200u + i;
    open.flows[i].params = "u" + std::string(20, static_cast<char>(i));
  }
  return open;
}

// Corrects the length and the checksum of the first frame, as if it were the only one.
void repair(std::string* stream) {
  if (stream->size() < kFrameHeaderBytes) return;
  std::uint32_t length = 0;
  std::memcpy(&length, stream->data() + kLengthAt, sizeof length);
  const std::size_t rest = stream->size() - kFrameHeaderBytes;
  if (length > rest) {
    length = static_cast<std::uint32_t>(rest);
    std::memcpy(stream->data() + kLengthAt, &length, sizeof length);
  }
  const std::uint32_t crc = wire::crc32c(0, stream->data() + kFrameHeaderBytes, length);
  std::memcpy(stream->data() + kChecksumAt, &crc, sizeof crc);
}

void decode_as_every_type(const std::string& body) {
  Open open;
  Hello hello;
  Refuse refuse;
  Confirm confirm;
  Ping ping;
  Pong pong;
  Verdict verdict;
  if (decode(body, &open)) {
    require(open.flows.size() <= kStripesMax && open.addresses.size() <= kAddressesMax, "an open is too large");
    for (const FlowEnd& flow : open.flows)
      require(flow.params.size() <= kParamsBytesMax, "the endpoint parameters are too long");
  }
  if (decode(body, &hello)) require(hello.addresses.size() <= kAddressesMax, "a hello is too large");
  if (decode(body, &refuse)) require(refuse.text.size() <= kRefusalTextMax, "the text of a refusal is too long");
  if (decode(body, &pong)) require(pong.engine_age_ms.size() <= kEnginesMax, "a pong is too large");
  static_cast<void>(decode(body, &confirm));
  static_cast<void>(decode(body, &ping));
  static_cast<void>(decode(body, &verdict));
}

}  // namespace

std::vector<fuzz::Input> fuzz::corpus() {
  Hello greeting;
  greeting.node = greeting.session = 1;
  greeting.addresses.resize(2);
  Refuse refusal;
  refusal.status = 2;
  refusal.text = "text";
  const std::string frames[] = {encode(FrameType::open, sample_open()),
                                encode(FrameType::hello, greeting),
                                encode(Confirm{1}),
                                encode(refusal),
                                encode(Ping{1}),
                                encode(Pong{1, {1, 2, 3}}),
                                encode(Verdict{6, "why"})};
  std::vector<Input> made;
  std::string all;
  for (const std::string& frame : frames) {
    made.push_back(input_of('\0' + frame));
    all += frame;
  }
  made.push_back(input_of('\0' + all));
  return made;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t bytes) {
  if (bytes == 0) return 0;
  std::string stream(reinterpret_cast<const char*>(data) + 1, bytes - 1);
  for (;;) {
    if ((data[0] & 1) == 0) repair(&stream);
    const std::size_t before = stream.size();
    Frame frame;
    std::uint16_t version = 0;
    if (take_frame(&stream, &frame, &version) != Take::frame) return 0;
    require(stream.size() + kFrameHeaderBytes + frame.body.size() == before, "a frame has a wrong size");
    ++fuzz::accepted;
    decode_as_every_type(frame.body);
  }
}
