// What is inside a listener's handle: where to dial and whom to ask for. Magic, version, length and CRC come first.
// Read from bytes that another process may have damaged or made up.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "native/datapath/address.h"

namespace weft::control {

// What a listener hands to whoever is to connect to it, by any means (NCCL's bootstrap, a file, a socket).
// Plain bytes: magic, version and length are checked before anything else is read.
inline constexpr std::size_t kHandleBytes = 64;
struct Handle {
  std::uint8_t bytes[kHandleBytes] = {};
};

struct HandleFields {
  std::uint64_t node = 0;
  std::uint64_t listener = 0;
  std::uint32_t device = 0;
  datapath::SocketAddress address;
};

void write_handle(const HandleFields& fields, Handle* out) noexcept;
// False with `error` saying what is wrong: not a handle of ours, or of another version.
bool read_handle(const Handle& handle, HandleFields* out, std::string* error);

}  // namespace weft::control
