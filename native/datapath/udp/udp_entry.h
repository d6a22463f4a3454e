// What the entry of UDP sockets in the table of datapaths does, for datapaths that use such sockets too.
#pragma once

#include <cstdint>
#include <string>

#include "native/datapath/table.h"
#include "native/datapath/udp/udp_datapath.h"

namespace weft::datapath {

bool find_udp(const Settings& settings, std::int64_t engines, Found* out, std::string* error);
UdpOptions udp_options(const MakeRequest& request);
std::uint32_t udp_route_segment_bytes(const Settings& settings, const SocketAddress& to);

}  // namespace weft::datapath
