// SHA-256 (FIPS 180-4) and HMAC (RFC 2104) over it, for the handshake alone: the plugin may not bring a crypto library.
// Not for bulk data, and keeps no key.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

namespace weft::control {

using Digest = std::array<std::uint8_t, 32>;

Digest sha256(const void* data, std::size_t bytes);
Digest hmac_sha256(const std::string& key, const std::string& message);
// Takes the same time wherever the two differ.
bool equal_digests(const Digest& a, const Digest& b) noexcept;

}  // namespace weft::control
