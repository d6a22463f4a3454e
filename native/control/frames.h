// The frames that two processes exchange over their control socket, to and from bytes.
// Every length is checked before it is used; no frame is trusted to be whole.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "native/core/status.h"
#include "native/datapath/address.h"
#include "native/wire/wire.h"

namespace weft::control {

// Bump with any change of a frame or of the wire format. Both ends refuse another version by name.
inline constexpr std::uint16_t kControlVersion = 4;
static_assert(wire::kVersion == 3, "another wire format: raise kControlVersion as well, and this number");
inline constexpr std::uint32_t kControlMagic = 0x43544657;  // "WFTC" in memory order
inline constexpr std::size_t kFrameHeaderBytes = 16;
inline constexpr std::size_t kFrameBodyMax = 64 * 1024;
inline constexpr std::size_t kStripesMax = 16;
inline constexpr std::size_t kAddressesMax = 64;
inline constexpr std::size_t kWordsBytesMax = 3072;
inline constexpr std::size_t kRefusalTextMax = 512;
inline constexpr std::size_t kEnginesMax = 64;

enum class FrameType : std::uint16_t {
  hello = 1,
  hello_reply = 2,
  open = 4,
  open_reply = 5,
  confirm = 6,
  refuse = 7,
  ping = 8,
  pong = 9,
  verdict = 10,
};

struct Frame {
  FrameType type{};
  std::string body;
};

// The first frame of each end. A session outlives its control sockets: whoever names it by both tokens joins it again.
struct Hello {
  std::uint64_t node = 0;         // of the sender: random, one a process
  std::uint64_t target_node = 0;  // whom it wants to reach; 0: whoever has the address
  std::uint64_t session = 0;      // the sender's token of the session, never 0
  std::uint64_t joined = 0;       // the receiver's token of it; 0: it is new
  std::uint32_t device = 0;       // of the sender
  std::uint16_t engines = 0;
  datapath::SocketAddress from, to;                // the two ends of the socket, as its sender sees them
  datapath::SocketAddress control;                 // where the sender takes control sockets as long as it runs
  std::vector<datapath::SocketAddress> addresses;  // of its device: it takes them at the same port of each
};

// One flow's end: enough for the other end to reach it.
struct FlowEnd {
  std::uint16_t engine = 0;         // of the end that sends this
  std::uint16_t remote_engine = 0;  // and the one it wants to talk to
  std::uint32_t peer = 0;
  std::uint64_t peer_token = 0;
  std::uint32_t flow = 0;
  std::uint64_t flow_token = 0;
  std::string words;  // of its datapath, about its ends of the paths
};

struct Open {
  std::uint64_t dial = 0;
  std::uint64_t listener = 0;  // open: who is to accept, 0: whoever listens on the port now; reply: 0
  std::uint32_t status = 0;    // reply: a Status
  std::uint32_t device = 0;
  std::uint32_t segment_bytes = 0;  // largest datagram this end's route takes; reply: what is in force
  std::uint32_t train_bytes = 0;
  std::uint64_t buffer_bytes = 0;  // that its end of a path holds
  bool payload_crc = false;
  std::uint64_t eager_bytes = 0;  // this end's limits; the smaller of both ends' are in force
  std::uint64_t eager_slots = 0;
  std::vector<datapath::SocketAddress> addresses;
  std::vector<FlowEnd> flows;
};

struct Confirm {
  std::uint64_t dial = 0;
};

struct Refuse {
  std::uint64_t dial = 0;  // 0: the whole channel
  std::uint32_t status = 0;
  std::uint16_t version = kControlVersion;
  std::string text;
};

// Asks the other end's control thread for a sign of life; answered by a pong with the same number.
struct Ping {
  std::uint64_t number = 0;
};
struct Pong {
  std::uint64_t number = 0;
  std::vector<std::uint32_t> engine_age_ms;  // how long ago each engine last took a turn
};

// The sender has ended the session. status: why; ok: nothing was left in it.
struct Verdict {
  std::uint32_t status = 0;
};

std::string encode(FrameType type, const Hello& hello);  // hello and hello_reply
std::string encode(FrameType type, const Open& open);    // open and open_reply
std::string encode(const Confirm& confirm);
std::string encode(const Refuse& refuse);
std::string encode(const Ping& ping);
std::string encode(const Pong& pong);
std::string encode(const Verdict& verdict);

bool decode(const std::string& body, Hello* out);
bool decode(const std::string& body, Open* out);
bool decode(const std::string& body, Confirm* out);
bool decode(const std::string& body, Refuse* out);
bool decode(const std::string& body, Ping* out);
bool decode(const std::string& body, Pong* out);
bool decode(const std::string& body, Verdict* out);

// Takes the next whole frame off the front of `buffer`.
enum class Take : std::uint8_t { frame, more, stranger, version, damaged };
Take take_frame(std::string* buffer, Frame* out, std::uint16_t* version);

}  // namespace weft::control
