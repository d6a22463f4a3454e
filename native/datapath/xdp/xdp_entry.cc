// Defines the entry of AF_XDP sockets in the table of datapaths.
#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "native/datapath/udp/udp_devices.h"
#include "native/datapath/udp/udp_entry.h"
#include "native/datapath/xdp/netlink.h"
#include "native/datapath/xdp/xdp_datapath.h"
#include "native/datapath/xdp/xdp_devices.h"

namespace weft::datapath {
namespace {

bool probe_xdp_entry(const Settings&, std::string* error) { return probe_xdp(error); }

// Marks the places that AF_XDP is used on. False if there is none; `complaint` says why one of them is not usable.
bool mark_places(std::vector<DeviceState>* devices, std::string* complaint) {
  std::string unused;
  std::map<unsigned, std::string> why;
  for (const Interface& interface : list_interfaces(&unused)) why[interface.index] = why_not_xdp(interface);
  bool any = false;
  for (DeviceState& device : *devices) {
    for (Place& place : device.places) {
      const std::string& reason = why[place.interface_index];
      if (reason.empty()) place.port = kXdpPlace;
      any = any || reason.empty();
      if (complaint->empty()) *complaint = reason;
    }
  }
  return any;
}

bool find_xdp(const Settings& settings, std::int64_t engines, Found* out, std::string* error) {
  if (!find_udp(settings, engines, out, error)) return false;
  std::string complaint;
  if (!mark_places(&out->devices, &complaint)) {
    *error = complaint;
    return false;
  }
  if (!complaint.empty()) out->warning += (out->warning.empty() ? "" : "; ") + complaint + ". It uses UDP sockets";
  if (engines > 1) {
    out->warning += (out->warning.empty() ? "" : "; ") + std::to_string(engines) +
                    " engines divide the queues of each NIC, and a datagram in another engine's queue passes through "
                    "the kernel: set WEFT_ENGINES=1";
  }
  out->summary.replace(0, std::string("udp").size(), "udp over AF_XDP");
  out->mode = static_cast<std::int32_t>(engines);
  for (DeviceState& device : out->devices) {
    const bool v6 = device.places.front().address.is_v6();
    const std::uint32_t most = datagram_bytes(settings, usable_mtu_bytes(device.info.mtu_bytes, has_segments()), v6);
    device.segment_bytes = std::min(device.segment_bytes, most);
  }
  return true;
}

std::unique_ptr<Datapath> make_xdp(const MakeRequest& request) {
  XdpOptions options;
  options.udp = udp_options(request);
  options.engine = request.engine;
  options.engines = static_cast<std::uint32_t>(std::max(request.found->mode, 1));
  options.segment_bytes = 0;
  options.queues = 0;
  std::set<unsigned> interfaces;
  for (const DeviceState& device : request.found->devices) {
    options.segment_bytes = std::max(options.segment_bytes, device.segment_bytes);
    for (const Place& place : device.places) {
      if (place.port != kXdpPlace || !interfaces.insert(place.interface_index).second) continue;
      const std::uint32_t queues = std::min(xdp::queue_count(place.interface_index), xdp::kQueuesMax);
      options.queues += (queues + options.engines - 1 - options.engine % options.engines) / options.engines;
    }
  }
  return std::make_unique<XdpDatapath>(options);
}

std::uint32_t xdp_route_segment_bytes(const Settings& settings, const SocketAddress& to) {
  const std::int64_t mtu_bytes = route_mtu_bytes(to);
  return mtu_bytes > 0 ? datagram_bytes(settings, usable_mtu_bytes(mtu_bytes, has_segments()), to.is_v6()) : 0;
}

}  // namespace

extern const DatapathEntry xdp_entry;
const DatapathEntry xdp_entry{.name = "xdp",
                              .title = "AF_XDP sockets",
                              .preference = 0,
                              .routed = true,
                              .unprotected = true,
                              .descriptor_per_path = true,
                              .one_engine = true,
                              .probe = probe_xdp_entry,
                              .find = find_xdp,
                              .make = make_xdp,
                              .route_segment_bytes = xdp_route_segment_bytes};

}  // namespace weft::datapath
