// Identities of pre-shared keys (RFC 8446, section 4.2.11) are the text kSecretIdentity, or kHandleIdentity followed by
// the direction, the process number and the key's id.
#include "native/control/keys.h"

#include <sys/random.h>

#include <algorithm>
#include <cstring>
#include <string_view>

namespace weft::control {
namespace {

constexpr std::string_view kSecretIdentity = "weft control";
constexpr std::string_view kHandleIdentity = "weft handle ";
constexpr char kSecretLabel[] = "weft control key, TLS 1.3, version 3";
constexpr char kToOwnerLabel[] = "weft handle key, TLS 1.3, to its owner, version 1";
constexpr char kIdLabel[] = "weft handle key, its public id, version 1";
constexpr char kFromOwnerLabel[] = "weft handle key, TLS 1.3, from its owner, version 1";
constexpr char kToOwner = '>', kFromOwner = '<';

}  // namespace

HandleKey random_key() noexcept {
  HandleKey key{};
  while (!is_set(key)) {
    if (::getrandom(key.data(), key.size(), 0) != static_cast<ssize_t>(key.size())) key.fill(0);
  }
  return key;
}

bool is_set(const HandleKey& key) noexcept {
  return std::any_of(key.begin(), key.end(), [](std::uint8_t byte) { return byte != 0; });
}

std::uint64_t id_of(const HandleKey& key) {
  const Digest digest = hmac_sha256(std::string(key.begin(), key.end()), kIdLabel);
  std::uint64_t id = 0;
  std::memcpy(&id, digest.data(), sizeof id);
  return id;
}

std::string encode(const KeyName& name) {
  if (name.guard != Guard::key) return std::string(kSecretIdentity);
  std::string identity(kHandleIdentity);
  identity += name.to_owner ? kToOwner : kFromOwner;
  identity.append(reinterpret_cast<const char*>(&name.node), sizeof name.node);
  identity.append(reinterpret_cast<const char*>(&name.key_id), sizeof name.key_id);
  return identity;
}

bool decode(const std::string& identity, KeyName* out) noexcept {
  *out = KeyName();
  if (identity == kSecretIdentity) {
    out->guard = Guard::secret;
    return true;
  }
  const std::size_t at = kHandleIdentity.size();
  if (identity.size() != at + 1 + sizeof out->node + sizeof out->key_id ||
      identity.compare(0, at, kHandleIdentity) != 0)
    return false;
  if (identity[at] != kToOwner && identity[at] != kFromOwner) return false;
  out->guard = Guard::key;
  out->to_owner = identity[at] == kToOwner;
  std::memcpy(&out->node, identity.data() + at + 1, sizeof out->node);
  std::memcpy(&out->key_id, identity.data() + at + 1 + sizeof out->node, sizeof out->key_id);
  return true;
}

Digest derive(const KeyName& name, const std::string& secret, const HandleKey& key) {
  if (name.guard != Guard::key) return hmac_sha256(secret, kSecretLabel);
  const std::string label = name.to_owner ? kToOwnerLabel : kFromOwnerLabel;
  return hmac_sha256(std::string(key.begin(), key.end()), label + secret);
}

}  // namespace weft::control
