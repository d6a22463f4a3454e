// Chooses which network interfaces become devices: those that a setting names, or those through which other hosts are
// likely to be reached. Decides from a list of interfaces and asks the system nothing.
#pragma once

#include <string>
#include <vector>

#include "native/datapath/udp/interfaces.h"

namespace weft::datapath {

// What the user wants. `interfaces` and `family`: the knobs; `nccl_names`: NCCL_SOCKET_IFNAME; `nccl_family`:
// NCCL_SOCKET_FAMILY. Those of NCCL count where ours say nothing.
struct InterfaceWish {
  std::string interfaces = {}, family = "auto", nccl_names = {}, nccl_family = {};
};

// An interface of a device, and which of its addresses is used.
struct ChosenInterface {
  const Interface* interface = nullptr;
  SocketAddress address;
};

struct InterfaceChoice {
  std::vector<std::vector<ChosenInterface>> devices;  // each has one interface, or several that '+' joins
  std::string warning;                                // one line for the log; empty: none
};

// "ipv4", "ipv6" or "auto" (both).
std::string family_of(const InterfaceWish& wish);

// Why an interface is not used unless a setting names it, as in "a bridge of this host"; empty: it is used.
std::string why_left_out(const Interface& interface, const std::string& family);

// `all` must outlive the choice. On failure returns false; `error` says which setting names what is not there, and what
// there is.
bool choose_interfaces(const std::vector<Interface>& all, const InterfaceWish& wish, InterfaceChoice* out,
                       std::string* error);

}  // namespace weft::datapath
