// Encodes handles. Byte offsets: 0 magic, 4 version, 6 length, 8 node, 16 listener, 24 device, 28 family, 30 port, 32
// address, 48 key, 64 CRC-32C. The rest of the 80 bytes is zero. Version 1 has no key, and its CRC-32C at 48.
#include "native/control/handle.h"

#include <cstring>

#include "native/wire/crc32c.h"

namespace weft::control {
namespace {

constexpr std::uint32_t kMagic = 0x48544657;  // "WFTH" in memory order
constexpr std::uint16_t kVersion = 2, kOldVersion = 1;
constexpr std::size_t kKeyAt = 48, kCrcAt = 64, kOldCrcAt = 48;
static_assert(kCrcAt == kKeyAt + kHandleKeyBytes && kCrcAt + 4 <= kHandleBytes && kOldCrcAt + 4 <= kOldHandleBytes);

constexpr std::uint16_t length_of(std::size_t crc_at) { return static_cast<std::uint16_t>(crc_at + 4); }

}  // namespace

void write_handle(const HandleFields& fields, Handle* out) noexcept {
  std::uint8_t* at = out->bytes;
  std::memset(at, 0, kHandleBytes);
  const std::uint16_t family = fields.address.is_v6() ? 6 : 4, port = fields.address.port();
  const std::uint16_t stated_bytes = length_of(kCrcAt);
  std::memcpy(at, &kMagic, 4);
  std::memcpy(at + 4, &kVersion, 2);  // NOLINT(bugprone-not-null-terminated-result): no text
  std::memcpy(at + 6, &stated_bytes, 2);
  std::memcpy(at + 8, &fields.node, 8);
  std::memcpy(at + 16, &fields.listener, 8);
  std::memcpy(at + 24, &fields.device, 4);
  std::memcpy(at + 28, &family, 2);
  std::memcpy(at + 30, &port, 2);
  if (family == 6) {
    std::memcpy(at + 32, &fields.address.v6.sin6_addr, 16);
  } else {
    std::memcpy(at + 32, &fields.address.v4.sin_addr, 4);
  }
  std::memcpy(at + kKeyAt, fields.key.data(), kHandleKeyBytes);
  const std::uint32_t crc = wire::crc32c(0, at, kCrcAt);
  std::memcpy(at + kCrcAt, &crc, 4);
}

bool read_handle(const Handle& handle, HandleFields* out, std::string* error) {
  const std::uint8_t* at = handle.bytes;
  std::uint32_t magic, crc;
  std::uint16_t version, length, family, port;
  std::memcpy(&magic, at, 4);
  std::memcpy(&version, at + 4, 2);
  std::memcpy(&length, at + 6, 2);
  if (magic != kMagic) {
    *error = "not a weft handle: do both ends use the same plugin and the same settings?";
    return false;
  }
  const std::size_t crc_at = version == kOldVersion ? kOldCrcAt : kCrcAt;
  if ((version != kVersion && version != kOldVersion) || length != length_of(crc_at)) {
    *error = "the handle has version " + std::to_string(version) + ", but this weft uses version " +
             std::to_string(kVersion);
    return false;
  }
  std::memcpy(&crc, at + crc_at, 4);
  if (crc != wire::crc32c(0, at, crc_at)) {
    *error = "the handle is damaged: its checksum does not match";
    return false;
  }
  std::memcpy(&out->node, at + 8, 8);
  std::memcpy(&out->listener, at + 16, 8);
  std::memcpy(&out->device, at + 24, 4);
  std::memcpy(&family, at + 28, 2);
  std::memcpy(&port, at + 30, 2);
  out->address = datapath::SocketAddress();
  if (family == 6) {
    out->address.v6.sin6_family = AF_INET6;
    std::memcpy(&out->address.v6.sin6_addr, at + 32, 16);
  } else {
    out->address.v4.sin_family = AF_INET;
    std::memcpy(&out->address.v4.sin_addr, at + 32, 4);
  }
  out->address.set_port(port);
  out->key = HandleKey();
  if (version != kOldVersion) std::memcpy(out->key.data(), at + kKeyAt, kHandleKeyBytes);
  return true;
}

}  // namespace weft::control
