// Tests that payloads damaged after the kernel has verified all checksums are not delivered with default knobs. This
// program's own recvmmsg does the damage, where datagrams leave the kernel.
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "native/wire/wire.h"
#include "tests/native/check.h"
#include "tests/native/runtime_pair.h"

namespace {

using namespace weft;
using namespace weft::engine;
using namespace weft::control;
using namespace weft::message;
using weft::test::kPatienceNs;

std::atomic<bool> damaging{false};
std::atomic<std::int64_t> seen{0}, damaged{0};

// Occasionally flips a bit of the first segment's payload; its header is unchanged.
void damage(const msghdr& message, std::size_t bytes) {
  constexpr std::uint8_t kDataType = 1;
  if (message.msg_iovlen == 0 || message.msg_iov[0].iov_len < wire::kDataBytes) return;
  const auto* header = static_cast<const std::uint8_t*>(message.msg_iov[0].iov_base);
  if (bytes <= wire::kDataBytes + 8 || header[3] != kDataType || seen++ % 5 != 2) return;
  std::size_t at = wire::kDataBytes + 7;
  for (std::size_t i = 0; i < message.msg_iovlen; ++i) {
    const iovec& part = message.msg_iov[i];
    if (at < part.iov_len) {
      static_cast<std::uint8_t*>(part.iov_base)[at] ^= 0x10;
      ++damaged;
      return;
    }
    at -= part.iov_len;
  }
}

// Sends messages to eager blocks and to small and large posted receives. Returns the number of wrong messages.
int wrong_of(test::RuntimePair& pair, int rounds) {
  int wrong = 0;
  for (int round = 0; round < rounds; ++round) {
    for (const std::size_t bytes : {std::size_t{100}, std::size_t{5'000}, std::size_t{300'000}}) {
      for (const bool early : {false, true}) {
        const std::vector<std::uint8_t> sent = test::pattern(bytes, static_cast<std::uint32_t>(round));
        std::vector<std::uint8_t> received(bytes);
        Request *send = nullptr, *receive = nullptr;
        if (early) CHECK_EQUAL(pair.here->post_send(sent.data(), bytes, 0, &send), Status::ok);
        CHECK_EQUAL(pair.there->post_receive(received.data(), bytes, 0, &receive), Status::ok);
        if (!early) CHECK_EQUAL(pair.here->post_send(sent.data(), bytes, 0, &send), Status::ok);
        CHECK_EQUAL(test::finish(*pair.there, receive), Status::ok);
        CHECK_EQUAL(test::finish(*pair.here, send), Status::ok);
        wrong += sent != received ? 1 : 0;
      }
    }
  }
  return wrong;
}

struct Damage {
  Damage() {
    seen = damaged = 0;
    damaging = true;
  }
  ~Damage() { damaging = false; }
};

}  // namespace

extern "C" int recvmmsg(int descriptor, mmsghdr* messages, unsigned count, int flags, timespec* timeout) {
  const long got = ::syscall(SYS_recvmmsg, descriptor, messages, count, flags, timeout);
  if (damaging) {
    for (long i = 0; i < got; ++i) damage(messages[i].msg_hdr, messages[i].msg_len);
  }
  return static_cast<int>(got);
}

TEST(payload_check__by_default_nothing_damaged_is_delivered) {
  test::RuntimePair pair{Knobs{}};
  CHECK(pair.a->summary().find("payload check") == std::string::npos);
  CHECK(pair.here->reads_payload() && pair.there->reads_payload());
  const Damage now;
  const std::int64_t until = now_ns() + kPatienceNs;
  while (pair.a->counters().bad_crc < 50) {
    CHECK_EQUAL(wrong_of(pair, 1), 0);
    CHECK(now_ns() < until);
  }
  CHECK(pair.a->counters().bad_crc <= damaged);
  CHECK_EQUAL(pair.a->counters().injected_corrupt, 0);
}

// With the payload check turned off by its knob, damaged payloads are delivered, and the summary says that it is off.
TEST(payload_check__off_is_the_operators_word_and_delivers_what_comes) {
  Knobs knobs;
  knobs.payload_crc = CrcMode::off;
  test::RuntimePair pair{knobs};
  CHECK(pair.a->summary().find("payload check off") != std::string::npos);
  CHECK(!pair.here->reads_payload() && !pair.there->reads_payload());
  const Damage now;
  CHECK(wrong_of(pair, 20) > 0);
  CHECK_EQUAL(pair.a->counters().bad_crc, 0);
}

TEST(payload_check__one_end_that_wants_it_is_enough) {
  Knobs off;
  off.payload_crc = CrcMode::off;
  off.interfaces = "lo";
  test::RuntimePair pair{Knobs{}};
  std::string error;
  pair.here.reset();
  pair.there.reset();
  CHECK_EQUAL(Runtime::open(off, &pair.b, &error), Status::ok);
  pair.connect();
  const Damage now;
  CHECK_EQUAL(wrong_of(pair, 10), 0);
  CHECK(damaged > 0);
}
