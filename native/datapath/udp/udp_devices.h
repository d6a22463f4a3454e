// Finds the network interfaces that the knobs name, and what each can carry. A device is one interface, or several
// joined by '+'.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "native/datapath/device.h"
#include "native/datapath/settings.h"
#include "native/datapath/table.h"

namespace weft::datapath {

// Whether the knob `family` allows the address (IPv4, IPv6 or both).
bool is_of_family(const SocketAddress& address, const Settings& settings);

// On failure returns false; `error` names the missing interface and those that exist. Opens no socket.
bool find_interfaces(const Settings& settings, Found* out, std::string* error);

// Largest datagram (weft's header and payload) that fits `mtu_bytes`, at most WEFT_SEGMENT_BYTES.
std::uint32_t datagram_bytes(const Settings& settings, std::int64_t mtu_bytes, bool v6);

}  // namespace weft::datapath
