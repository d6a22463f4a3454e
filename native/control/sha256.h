// SHA-256 (FIPS 180-4) and HMAC (RFC 2104), used by the handshake only, because the plugin must not depend on a crypto
// library. Not for bulk data; stores no key.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

namespace weft::control {

using Digest = std::array<std::uint8_t, 32>;

Digest sha256(const void* data, std::size_t bytes);
Digest hmac_sha256(const std::string& key, const std::string& message);
// Compares in constant time.
bool equal_digests(const Digest& a, const Digest& b) noexcept;

}  // namespace weft::control
