// Fuzzes the parser of frames from AF_XDP sockets: what it accepts lies within the frame, and has right checksums.
#include <cstring>

#include "native/datapath/xdp/frames.h"
#include "tests/native/fuzz/fuzz.h"

using namespace weft;
using namespace weft::datapath::xdp;
using fuzz::require;

namespace {

fuzz::Input frame_of(bool v6, std::size_t payload_bytes) {
  datapath::SocketAddress from, to;
  if (v6) {
    from.v6.sin6_family = to.v6.sin6_family = AF_INET6;
    from.v6.sin6_addr.s6_addr[15] = 1;
    to.v6.sin6_addr.s6_addr[15] = 2;
  } else {
    from.v4.sin_family = to.v4.sin_family = AF_INET;
    from.v4.sin_addr.s_addr = 0x0100000A;
    to.v4.sin_addr.s_addr = 0x0200000A;
  }
  from.set_port(5000);
  to.set_port(6000);
  FrameHeaders headers;
  headers.set(from, to, 2);
  fuzz::Input frame(kHeadersBytesMax + payload_bytes, 0x33);
  headers.write(payload_bytes, frame.data());
  std::memset(frame.data() + headers.bytes(), 0x33, payload_bytes);
  headers.write_checksum(payload_bytes, sum_of(frame.data() + headers.bytes(), payload_bytes), frame.data());
  frame.resize(headers.bytes() + payload_bytes);
  return frame;
}

}  // namespace

std::vector<fuzz::Input> fuzz::corpus() {
  return {frame_of(false, 0), frame_of(false, 101), frame_of(true, 0), frame_of(true, 64)};
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t bytes) {
  ParsedFrame parsed;
  if (!parse_frame(data, bytes, &parsed)) return 0;
  ++fuzz::accepted;
  require(parsed.payload_offset + parsed.payload_bytes <= bytes, "a payload reaches beyond its frame");
  require(parsed.to >= data && parsed.to + (parsed.v6 ? 16 : 4) <= data + bytes, "an address lies beyond its frame");
  return 0;
}
