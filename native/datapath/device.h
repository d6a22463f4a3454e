// What a process knows of its network devices: one NIC each, or several joined.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "native/datapath/datapath.h"

namespace weft::datapath {

// The largest datagram anywhere: what UDP over IPv4 takes, in whole multiples of eight.
inline constexpr std::uint32_t kSegmentBytesMax = 65'472;

// One NIC, or several joined by '+' in a knob ("eth0+eth1"), as callers see it.
struct Device {
  std::string name;             // "lo", "eth0", "eth0+eth1"
  std::string address;          // of its first interface, as text
  std::string pci_path;         // real sysfs path of the first interface's PCI device, or empty
  std::uint64_t guid = 0;       // unique per device of a host
  std::int64_t speed_mbps = 0;  // sum over its interfaces; 0 when the kernel does not say
  std::int64_t mtu_bytes = 0;   // smallest of its interfaces
};

struct DeviceState {
  Device info;
  std::vector<Place> places;        // one per interface; path i uses places[i % size]
  std::uint32_t segment_bytes = 0;  // largest datagram that its interfaces carry, capped by the knob
  std::uint32_t train_bytes = 0;    // largest burst
};

// The parts of a list in a knob, without spaces and empty parts.
std::vector<std::string> split_names(const std::string& text, char separator);

}  // namespace weft::datapath
