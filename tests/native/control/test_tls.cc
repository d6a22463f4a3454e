// Tests two ends of a TLS stream without a socket: with equal, different or no secrets, and with a damaged or relayed
// stream.
#include <algorithm>
#include <string>

#include "native/control/tls.h"
#include "tests/native/check.h"

namespace {

using weft::control::TlsContext;
using weft::control::TlsStream;

struct Ends {
  std::unique_ptr<TlsContext> left_context, right_context;
  std::unique_ptr<TlsStream> left, right;
  std::string heard_left, heard_right;
  bool alive = true;

  Ends(const std::string& left_secret, const std::string& right_secret) {
    std::string error;
    left_context = TlsContext::make(left_secret, &error);
    right_context = TlsContext::make(right_secret, &error);
    CHECK(left_context != nullptr && right_context != nullptr);
    left = TlsStream::make(*left_context, true);
    right = TlsStream::make(*right_context, false);
  }
  // Carries bytes between the ends, a few at a time, until neither end has any to send.
  void carry(std::size_t piece = 7) {
    for (bool moved = true; moved && alive;) {
      moved = false;
      std::string cipher;
      left->take_output(&cipher);
      moved |= feed(*right, cipher, piece, &heard_right);
      cipher.clear();
      right->take_output(&cipher);
      moved |= feed(*left, cipher, piece, &heard_left);
    }
  }
  bool feed(TlsStream& to, const std::string& cipher, std::size_t piece, std::string* plain) {
    for (std::size_t at = 0; at < cipher.size() && alive; at += piece) {
      alive = to.on_received(cipher.data() + at, std::min(piece, cipher.size() - at), plain);
    }
    return !cipher.empty();
  }
};

}  // namespace

TEST(tls__same_secret_carries_both_ways) {
  Ends ends("a secret", "a secret");
  CHECK(ends.left->send("said before the handshake"));
  ends.carry();
  CHECK(ends.alive && ends.left->established() && ends.right->established());
  CHECK_EQUAL(ends.heard_right, "said before the handshake");
  const std::string much(100'000, 'x');
  CHECK(ends.right->send(much));
  ends.carry(1000);
  CHECK(ends.heard_left == much);
}

TEST(tls__another_secret_is_refused_by_both) {
  Ends ends("a secret", "another");
  ends.carry();
  CHECK(!ends.alive);
  CHECK(!ends.left->established() && !ends.right->established());
}

TEST(tls__damage_ends_the_stream) {
  Ends ends("a secret", "a secret");
  ends.carry();
  CHECK(ends.right->send("a frame"));
  std::string cipher, plain;
  ends.right->take_output(&cipher);
  cipher[cipher.size() / 2] = static_cast<char>(cipher[cipher.size() / 2] ^ 1);
  CHECK(!ends.left->on_received(cipher.data(), cipher.size(), &plain));
  CHECK(plain.empty());
  CHECK(!ends.left->send("more"));
}

TEST(tls__replayed_bytes_end_the_stream) {
  Ends ends("a secret", "a secret");
  ends.carry();
  CHECK(ends.left->send("once"));
  std::string cipher, plain;
  ends.left->take_output(&cipher);
  CHECK(ends.right->on_received(cipher.data(), cipher.size(), &plain));
  CHECK_EQUAL(plain, "once");
  CHECK(!ends.right->on_received(cipher.data(), cipher.size(), &plain));
  CHECK_EQUAL(plain, "once");
}

TEST(tls__noise_is_refused) {
  std::string error, plain;
  const auto context = TlsContext::make("a secret", &error);
  for (const char* noise : {"GET / HTTP/1.1\r\n\r\n", "WFTC................................"}) {
    const auto stream = TlsStream::make(*context, false);
    const std::string bytes = noise;
    CHECK(!stream->on_received(bytes.data(), bytes.size(), &plain));
  }
  CHECK(plain.empty());
}
