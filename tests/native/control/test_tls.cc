// Tests two ends of a TLS stream without a socket: with equal, different and unknown keys, and with a damaged or
// relayed stream.
#include <dlfcn.h>

#include <algorithm>
#include <string>

#include "native/control/keys.h"
#include "native/control/tls.h"
#include "tests/native/check.h"

namespace {

using weft::control::Digest;
using weft::control::TlsContext;
using weft::control::TlsKeys;
using weft::control::TlsStream;

const std::string kName = "the key";

Digest key_of(const std::string& secret) { return weft::control::hmac_sha256(secret, "a label"); }

// A server's keys: one, named kName.
struct OneKey final : TlsKeys {
  Digest key;
  explicit OneKey(const std::string& secret) : key(key_of(secret)) {}
  bool find(const std::string& identity, Digest* out) override {
    *out = key;
    return identity == kName;
  }
};

struct Ends {
  std::unique_ptr<TlsContext> left_context, right_context;
  OneKey keys;
  std::unique_ptr<TlsStream> left, right;
  std::string heard_left, heard_right;
  bool alive = true;

  Ends(const std::string& left_secret, const std::string& right_secret, const std::string& name = kName)
      : keys(right_secret) {
    std::string error;
    left_context = TlsContext::make(&error);
    right_context = TlsContext::make(&error);
    CHECK(left_context != nullptr && right_context != nullptr);
    left = TlsStream::make_client(*left_context, name, key_of(left_secret));
    right = TlsStream::make_server(*right_context, &keys);
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
  CHECK(!ends.right->unknown_key());
}

TEST(tls__unknown_name_is_told_from_a_wrong_key) {
  Ends ends("a secret", "a secret", "another key");
  ends.carry();
  CHECK(!ends.alive && !ends.right->established());
  CHECK(ends.right->unknown_key());
  CHECK_EQUAL(ends.right->identity(), "another key");
}

TEST(tls__both_ends_know_the_name_of_the_key) {
  Ends ends("a secret", "a secret");
  ends.carry();
  CHECK_EQUAL(ends.left->identity(), kName);
  CHECK_EQUAL(ends.right->identity(), kName);
}

// A program and weft may use OpenSSL in one thread: neither may see the errors of the other.
TEST(tls__errors_of_other_users_of_openssl_do_no_harm) {
  void* const library = ::dlopen("libcrypto.so.3", RTLD_NOW);
  if (library == nullptr) return;  // an older OpenSSL has no function to add an error
  const auto add = reinterpret_cast<void (*)(int, int, const char*, ...)>(::dlsym(library, "ERR_set_error"));
  const auto add_new = reinterpret_cast<void (*)()>(::dlsym(library, "ERR_new"));
  const auto peek = reinterpret_cast<unsigned long (*)()>(::dlsym(library, "ERR_peek_error"));
  CHECK(add != nullptr && add_new != nullptr && peek != nullptr);
  Ends good("a secret", "a secret"), bad("a secret", "another");
  add_new();
  add(128, 1, "an error of somebody else");
  CHECK(peek() != 0);
  good.carry();
  CHECK(good.alive && good.left->established());
  bad.carry();
  CHECK(!bad.alive);
  CHECK_EQUAL(peek(), 0u);
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
  const auto context = TlsContext::make(&error);
  OneKey keys("a secret");
  for (const char* noise : {"GET / HTTP/1.1\r\n\r\n", "WFTC................................"}) {
    const auto stream = TlsStream::make_server(*context, &keys);
    const std::string bytes = noise;
    CHECK(!stream->on_received(bytes.data(), bytes.size(), &plain));
  }
  CHECK(plain.empty());
}
