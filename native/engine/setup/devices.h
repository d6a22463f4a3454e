// Which network devices the knobs name, and what each can carry. A device is one interface, or several joined by '+'.
// Opens no socket.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "native/datapath/datapath.h"
#include "native/engine/knobs.h"

namespace weft::engine {

// The largest datagram anywhere: what UDP over IPv4 takes, in whole multiples of eight.
inline constexpr std::uint32_t kSegmentBytesMax = 65'472;

// One NIC, or several joined by the knob `interfaces` ("eth0+eth1"), as callers see it.
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
  std::vector<datapath::Place> places;  // one an interface; path i uses places[i % size]
  std::uint32_t segment_bytes = 0;      // largest datagram its interfaces take, capped as the knob says
  std::uint32_t train_bytes = 0;
  bool over_sockets() const noexcept { return places.front().rdma_device.empty(); }
};

// The parts of a list in a knob, without spaces and empty parts.
std::vector<std::string> split_names(const std::string& text, char separator);
// Whether the knob `family` admits the address.
bool is_of_family(const datapath::SocketAddress& address, AddressFamily family);

// False with `error` naming the interface that is missing, and those there are.
bool find_devices(const Knobs& knobs, std::vector<DeviceState>* out, std::string* error);

// Largest datagram (our header and payload) that fits `mtu_bytes`, under the knob's cap.
std::uint32_t datagram_bytes(const Knobs& knobs, std::int64_t mtu_bytes, bool v6) noexcept;

}  // namespace weft::engine
