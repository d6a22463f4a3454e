// What sysfs says of an interface: speed, PCI device, and whether it is a bridge, a bond, a VLAN or a virtual function.
#pragma once

#include <string>

#include "native/datapath/udp/interfaces.h"

namespace weft::datapath {

// Fills the fields of `interface` that come from sysfs; `sysfs`: "/sys", or a copy of it. What a file does not say
// stays as it is.
void read_sysfs(const std::string& sysfs, Interface* interface);

// What the interface is, for reports, as in "bond of eth0, eth1" or "virtual function".
std::string what_it_is(const Interface& interface);

}  // namespace weft::datapath
