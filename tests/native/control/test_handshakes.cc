// Tests a live listener with handshakes of unauthenticated peers whose frames are truncated, changed, repeated or out
// of order. The listener serves its real peer throughout. WEFT_HANDSHAKES=1000000 sets the number of handshakes.
#include <arpa/inet.h>
#include <dirent.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "native/control/frames.h"
#include "native/core/random.h"
#include "native/wire/crc32c.h"
#include "tests/native/runtime_pair.h"

namespace {

using namespace weft;
using namespace weft::engine;
using namespace weft::control;
using namespace weft::message;
using core::Random;
using test::RuntimePair;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr long kHandshakes = 300;
#else
constexpr long kHandshakes = 2'000;
#endif

std::size_t descriptors() {
  std::size_t count = 0;
  DIR* directory = ::opendir("/proc/self/fd");
  while (::readdir(directory) != nullptr) ++count;
  ::closedir(directory);
  return count;
}

datapath::SocketAddress localhost(std::uint16_t port = 0) {
  datapath::SocketAddress address;
  address.v4.sin_family = AF_INET;
  address.v4.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.set_port(port);
  return address;
}

Hello greeting(Random& random) {
  Hello hello;
  hello.node = random.next() | 1;
  hello.session = random.next() | 1;
  hello.engines = 1;
  hello.from = hello.to = hello.control = localhost();
  hello.addresses = {localhost()};
  return hello;
}

Open offer(Random& random) {
  Open open;
  open.dial = random.next() | 1;
  open.segment_bytes = 1472;
  open.train_bytes = 65'000;
  open.buffer_bytes = 1 << 20;
  open.eager_bytes = 8192;
  open.eager_slots = 16;
  open.addresses = {localhost()};
  FlowEnd flow;
  flow.peer = static_cast<std::uint32_t>(random.next() % 4);
  flow.peer_token = random.next() | 1;
  flow.flow_token = random.next() | 1;
  // Encoded path ends: port 9 (discard), where no socket of weft listens.
  flow.params = std::string("u\x09\x00", 3);
  open.flows.assign(1 + random.next() % 3, flow);
  return open;
}

// Changes, removes or adds a few bytes of a frame, and usually corrects its length and checksum.
std::string damaged(std::string frame, Random& random) {
  for (std::uint64_t changes = 1 + random.next() % 3; changes != 0 && !frame.empty(); --changes) {
    const std::size_t at = random.next() % frame.size();
    switch (random.next() % 4) {
      case 0:
        frame[at] = static_cast<char>(frame[at] ^ (1 << random.next() % 8));
        break;
      case 1:
        frame[at] = static_cast<char>(random.next());
        break;
      case 2:
        frame.resize(at);
        break;
      default:
        frame.append(random.next() % 40, static_cast<char>(random.next()));
    }
  }
  if (frame.size() < kFrameHeaderBytes || random.next() % 4 == 0) return frame;
  const auto body_bytes = static_cast<std::uint32_t>(frame.size() - kFrameHeaderBytes);
  const std::uint32_t crc = wire::crc32c(0, frame.data() + kFrameHeaderBytes, body_bytes);
  std::memcpy(frame.data() + 8, &body_bytes, 4);
  std::memcpy(frame.data() + 12, &crc, 4);
  return frame;
}

// The frames of a dialler, of which some are damaged, duplicated, swapped or left out.
std::string conversation(Random& random) {
  const Open open = offer(random);
  std::vector<std::string> frames = {encode(FrameType::hello, greeting(random)), encode(FrameType::open, open)};
  if (random.next() % 2 == 0) frames.push_back(encode(FrameType::open, offer(random)));
  if (random.next() % 4 == 0) frames.push_back(encode(Confirm{open.dial}));
  if (random.next() % 4 == 0) frames.push_back(encode(Ping{random.next()}));
  if (random.next() % 8 == 0) frames.push_back(encode(Pong{random.next(), {1, 2, 3}}));
  if (random.next() % 8 == 0) frames.push_back(encode(Verdict{static_cast<std::uint32_t>(random.next() % 30), "why"}));
  if (random.next() % 8 == 0) frames.push_back(encode(Refuse{open.dial, 7, kControlVersion, "no\n\x1b[31m"}));
  std::string bytes;
  for (std::size_t i = 0; i < frames.size(); ++i) {
    const std::uint64_t chance = random.next() % 16;
    const std::string& frame = chance == 0 ? frames[random.next() % frames.size()] : frames[i];
    if (chance == 1) continue;
    bytes += chance < 6 && i != 0 ? damaged(frame, random) : chance == 6 ? damaged(frame, random) : frame;
    if (chance == 2) bytes += frame;
  }
  return bytes;
}

// The test uses many addresses, because an address has 28,000 ports, each occupied for a minute after a close.
datapath::SocketAddress own_address(long number) {
  datapath::SocketAddress address = localhost();
  address.v4.sin_addr.s_addr = htonl(INADDR_LOOPBACK + 0x100 + static_cast<std::uint32_t>(number % 0xFFFF));
  return address;
}

void play(std::uint16_t port, long number, Random& random) {
  const int descriptor = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const datapath::SocketAddress from = own_address(number), to = localhost(port);
  const int on = 1;  // lets connect() choose the port, because bind() would search the sockets of every port
  ::setsockopt(descriptor, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &on, sizeof on);
  CHECK(descriptor >= 0 && ::bind(descriptor, &from.any, from.bytes()) == 0);
  CHECK(::connect(descriptor, &to.any, to.bytes()) == 0);
  const std::string bytes = conversation(random);
  // Send in pieces, so that frames are split.
  for (std::size_t at = 0; at < bytes.size();) {
    const std::size_t piece = std::min<std::size_t>(1 + random.next() % 600, bytes.size() - at);
    if (::send(descriptor, bytes.data() + at, piece, MSG_NOSIGNAL) < 0) break;
    at += piece;
  }
  // Some connections wait for the answer, some close at once, some are reset.
  if (random.next() % 2 == 0) {
    pollfd answer{descriptor, POLLIN, 0};
    char buffer[4096];
    if (::poll(&answer, 1, 5) > 0) static_cast<void>(!::read(descriptor, buffer, sizeof buffer));
  }
  const linger reset{1, 0};
  if (random.next() % 4 == 0) ::setsockopt(descriptor, SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
  ::close(descriptor);
}

void exchange(RuntimePair& pair, std::uint32_t seed) {
  const auto sent = test::pattern(100'000, seed);
  std::vector<std::uint8_t> received(sent.size());
  Request *send = nullptr, *receive = nullptr;
  CHECK_EQUAL(pair.there->post_receive(received.data(), received.size(), 0, &receive), Status::ok);
  CHECK_EQUAL(pair.here->post_send(sent.data(), sent.size(), 0, &send), Status::ok);
  CHECK_EQUAL(test::finish(*pair.there, receive), Status::ok);
  CHECK_EQUAL(test::finish(*pair.here, send), Status::ok);
  CHECK(sent == received);
}

// Plays handshakes at a listener that is open, or that only holders of its handle may dial.
void play_all(bool open) {
  Knobs knobs;
  knobs.log_level = LogLevel::error;
  knobs.handshake_timeout_ns = 2'000'000'000;
  RuntimePair pair(knobs, open);
  exchange(pair, 0);
  const std::size_t before = descriptors();
  const char* wanted = std::getenv("WEFT_HANDSHAKES");
  const long count = wanted != nullptr ? std::atol(wanted) : kHandshakes;
  const std::uint16_t port = pair.listener->port();
  std::shared_ptr<Connection> unasked;
  for (long i = 0; i < count; ++i) {
    Random random(static_cast<std::uint64_t>(i) + 1);
    play(port, i, random);
    if (i % 200 == 0) exchange(pair, static_cast<std::uint32_t>(i));
    while (pair.listener->accept(&unasked) == Status::ok) {
      CHECK(open);  // nobody without the handle gets in
      unasked.reset();
    }
  }
  exchange(pair, 1);
  // Use another listener, because at the first one confirmed connections of strangers may still wait to be accepted.
  std::string error;
  CHECK_EQUAL(pair.a->listen(0, 0, open, "", &pair.listener, &error), Status::ok);
  pair.connect();
  exchange(pair, 2);
  // Sessions of strangers end when their sockets close; only few stay until the handshake timeout.
  for (const std::int64_t until = now_ns() + test::kPatienceNs; descriptors() > before + 40;) {
    CHECK(now_ns() < until);
    ::usleep(10'000);
  }
}

}  // namespace

TEST(handshakes__of_strangers_leave_an_open_listener_and_its_peer_well) { play_all(true); }

TEST(handshakes__of_strangers_get_nowhere_without_the_handle) { play_all(false); }
