// Encodes and decodes the frames that two processes exchange over a control socket. Every length is checked before it
// is used, and incomplete frames are expected.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "native/core/status.h"
#include "native/datapath/address.h"
#include "native/wire/wire.h"

namespace weft::control {

// Increment this with any change of a frame or of the wire format. Each end refuses another version, and its message
// names both versions.
inline constexpr std::uint16_t kControlVersion = 7;
static_assert(wire::kVersion == 3,
              "the wire format has changed: raise kControlVersion, and the number in this assertion");
inline constexpr std::uint32_t kControlMagic = 0x43544657;  // "WFTC" in memory order
inline constexpr std::size_t kFrameHeaderBytes = 16;
inline constexpr std::size_t kFrameBodyMax = 64 * 1024;
inline constexpr std::size_t kStripesMax = 16;
inline constexpr std::size_t kAddressesMax = 64;
inline constexpr std::size_t kParamsBytesMax = 3072;
inline constexpr std::size_t kRefusalTextMax = 512;
inline constexpr std::size_t kEnginesMax = 64;
inline constexpr std::size_t kLocalBytesMax = 64;

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

// The first frame of each end. A session outlives its control sockets: a hello with both tokens of a session joins a
// new control socket to it.
struct Hello {
  std::uint64_t node = 0;         // random number of the sender's process
  std::uint64_t target_node = 0;  // the process that the sender wants to reach; 0: any process at the address
  std::uint64_t session = 0;      // the sender's token for the session, never 0
  std::uint64_t joined = 0;       // the receiver's token for the session; 0: a new session
  std::uint32_t device = 0;       // the sender's device
  std::uint16_t engines = 0;
  datapath::SocketAddress from, to;  // the two ends of the control socket, as the sender sees them
  datapath::SocketAddress control;   // where the sender accepts control sockets while it runs
  // Addresses of the sender's device; the sender accepts control sockets on each of them, at the port of `control`.
  std::vector<datapath::SocketAddress> addresses;
  std::string local;  // name of the Unix socket at which processes of its host meet the sender; empty: there is none
};

// One end of a flow, with all that the other end needs to reach it.
struct FlowEnd {
  std::uint16_t engine = 0;         // the sender's engine
  std::uint16_t remote_engine = 0;  // the receiver's engine
  std::uint32_t peer = 0;
  std::uint64_t peer_token = 0;
  std::uint32_t flow = 0;
  std::uint64_t flow_token = 0;
  std::string params;  // the sender's endpoint parameters, opaque except to its kind of datapath
};

struct Open {
  std::uint64_t dial = 0;
  std::uint64_t listener = 0;  // in an open frame: the listener's id, 0: any listener on the port; in a reply: 0
  std::uint32_t status = 0;    // in a reply: a Status
  std::uint32_t device = 0;
  // In an open frame: the largest datagram on its sender's route; in a reply: the size to use.
  std::uint32_t segment_bytes = 0;
  std::uint32_t train_bytes = 0;
  std::uint64_t buffer_bytes = 0;  // received bytes that this frame's sender can buffer per path
  bool payload_crc = false;
  std::uint64_t eager_bytes = 0;  // limit of an eager message; the smaller of both ends applies, also for eager_slots
  std::uint64_t eager_slots = 0;
  std::vector<datapath::SocketAddress> addresses;
  std::vector<FlowEnd> flows;
  // In an open frame: names the memory that the sender has handed over at the receiver's Unix socket, for all messages
  // of the connection; in a reply: the same if the memory will be used. Empty: messages go over the flows.
  std::string local;
};

struct Confirm {
  std::uint64_t dial = 0;
};

struct Refuse {
  std::uint64_t dial = 0;  // the refused dial; 0: the control socket itself is refused
  std::uint32_t status = 0;
  std::uint16_t version = kControlVersion;
  std::string text;
};

// Asks the peer's control thread for a reply: a pong with the same number.
struct Ping {
  std::uint64_t number = 0;
};
struct Pong {
  std::uint64_t number = 0;
  std::vector<std::uint32_t> engine_age_ms;  // time since each engine's last iteration
};

// Says that the sender has ended the session. status: the reason; ok if the session had no connection. text: the
// reason in plain text; may be empty.
struct Verdict {
  std::uint32_t status = 0;
  std::string text;
};

std::string encode(FrameType type, const Hello& hello);  // for hello and hello_reply frames
std::string encode(FrameType type, const Open& open);    // for open and open_reply frames
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

// Removes the next complete frame from the front of `buffer`.
enum class Take : std::uint8_t { frame, more, stranger, version, damaged };
Take take_frame(std::string* buffer, Frame* out, std::uint16_t* version);

}  // namespace weft::control
