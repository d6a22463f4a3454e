// The contents of a listener's handle: address, process, listener and key, after magic, version, length and CRC. It is
// decoded from bytes that another process may have damaged or forged.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "native/control/keys.h"
#include "native/datapath/address.h"

namespace weft::control {

// What a listener hands to processes that will connect to it, by any means (NCCL's bootstrap, a file, a socket). It is
// plain bytes: magic, version and length are checked before anything else is read. Whoever can read it may connect.
inline constexpr std::size_t kHandleBytes = 80;
// Size of the handles of version 1, which have no key. Such a handle is read from the front of a Handle.
inline constexpr std::size_t kOldHandleBytes = 64;
struct Handle {
  std::uint8_t bytes[kHandleBytes] = {};
};

struct HandleFields {
  std::uint64_t node = 0;
  std::uint64_t listener = 0;
  std::uint32_t device = 0;
  datapath::SocketAddress address;
  HandleKey key{};  // all zero: the listener's process proves nothing and asks for no proof
};

void write_handle(const HandleFields& fields, Handle* out) noexcept;
// Returns false with `error` set if the bytes are not a weft handle, or are of another version.
bool read_handle(const Handle& handle, HandleFields* out, std::string* error);

}  // namespace weft::control
