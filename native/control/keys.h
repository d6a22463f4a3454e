// The keys that control sockets prove in their TLS handshake: names for them, and how the pre-shared keys are derived.
// A listener's handle carries the key of its process, so whoever holds a handle of a process may connect to it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "native/control/sha256.h"

namespace weft::control {

inline constexpr std::size_t kHandleKeyBytes = 16;
using HandleKey = std::array<std::uint8_t, kHandleKeyBytes>;  // all zero: no key

HandleKey random_key() noexcept;
bool is_set(const HandleKey& key) noexcept;
std::uint64_t id_of(const HandleKey& key);  // a hash, which does not reveal the key

// What the two ends of a control socket have proved to each other: nothing, the secret of WEFT_SECRET_FILE, or the key
// of a handle (and the secret too, where one is set).
enum class Guard : std::uint8_t { none, secret, key };

// Names a pre-shared key in the ClientHello, which is not encrypted. A process that accepted a session also dials its
// peer, with a key of its own that is derived for this direction: with the same key in both directions, a relay could
// send a handshake back to its sender (Drucker and Gueron, "Selfie", 2019).
struct KeyName {
  Guard guard = Guard::none;
  bool to_owner = true;    // with a handle's key: whether the dialled process made the handle
  std::uint64_t node = 0;  // with a handle's key: number of the process that made the handle
  // In the direction from the owner (`to_owner` false): id_of() of the key. `node` alone is ambiguous, because a forged
  // handle may combine another process's number with a different key.
  std::uint64_t key_id = 0;
};
std::string encode(const KeyName& name);
bool decode(const std::string& identity, KeyName* out) noexcept;

// `secret`: empty if none is set. `key`: used if the name's guard is Guard::key.
Digest derive(const KeyName& name, const std::string& secret, const HandleKey& key);

}  // namespace weft::control
