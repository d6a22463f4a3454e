// Recognizes hosts on which the kernel may drop arriving packets because two NICs are in one subnet.
#pragma once

#include <string>
#include <vector>

#include "native/datapath/udp/interfaces.h"

namespace weft::datapath {

// Whether net.ipv4.conf.NAME.rp_filter is 1 (strict); NAME may be "all". 2 is loose, 0 is off.
bool filters_strictly(const std::string& name);

// If at least two of the interfaces have addresses in the subnet of `to`, and reverse path filtering is strict for one
// of them, returns a line that says so and what to do. Otherwise returns an empty text. `is_strict`: see
// filters_strictly().
std::string reverse_path_problem(const std::vector<Interface>& interfaces, const SocketAddress& to,
                                 bool (*is_strict)(const std::string& name) = &filters_strictly);

}  // namespace weft::datapath
