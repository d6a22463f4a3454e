// What a process knows about its network devices. A device is one NIC, or several NICs joined by '+'.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "native/datapath/datapath.h"

namespace weft::datapath {

// The largest datagram of any device: the most that UDP over IPv4 carries, rounded down to a multiple of eight.
inline constexpr std::uint32_t kSegmentBytesMax = 65'472;

// One NIC, or several joined by '+' in a knob ("eth0+eth1"), as callers see it.
struct Device {
  std::string name;             // "lo", "eth0", "eth0+eth1"
  std::string address;          // address of its first interface, as text
  std::string pci_path;         // real sysfs path of the first interface's PCI device, or empty
  std::uint64_t guid = 0;       // distinguishes the devices of a host
  std::int64_t speed_mbps = 0;  // sum over its interfaces; 0: the kernel does not report it
  std::int64_t mtu_bytes = 0;   // smallest MTU of its interfaces
};

struct DeviceState {
  Device info;
  std::vector<Place> places;        // one per interface; path i uses places[i % size]
  std::uint32_t segment_bytes = 0;  // largest datagram that its interfaces carry, at most WEFT_SEGMENT_BYTES
  std::uint32_t train_bytes = 0;    // largest burst that its interfaces carry
};

// Splits a list in a knob at `separator`; drops spaces and empty elements.
std::vector<std::string> split_names(const std::string& text, char separator);

}  // namespace weft::datapath
