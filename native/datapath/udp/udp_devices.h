// Which network interfaces the knobs name, and what each can carry. A device is one interface, or several joined by
// '+'.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "native/datapath/device.h"
#include "native/datapath/settings.h"

namespace weft::datapath {

// Whether the knob `family` admits the address.
bool is_of_family(const SocketAddress& address, const Settings& settings);

// False with `error` naming the interface that is missing, and those there are. Opens no socket.
bool find_interfaces(const Settings& settings, std::vector<DeviceState>* out, std::string* error);

// Largest datagram (our header and payload) that fits `mtu_bytes`, under the knob's cap.
std::uint32_t datagram_bytes(const Settings& settings, std::int64_t mtu_bytes, bool v6);

}  // namespace weft::datapath
