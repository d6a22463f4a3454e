// Defines the entry of UDP sockets in the table of datapaths.
#include "native/datapath/udp/udp_entry.h"

#include <memory>

#include "native/datapath/udp/interfaces.h"
#include "native/datapath/udp/udp_devices.h"

namespace weft::datapath {
namespace {

bool probe_udp(const Settings&, std::string*) { return true; }

// `text`: a port, or a range "20000-24095", which has been checked.
PortChoice port_choice(const std::string& text, std::int64_t engine, std::int64_t paths) {
  const std::int64_t first = std::stoll(text);
  const std::size_t dash = text.find('-');
  if (first == 0) return {};
  if (dash == std::string::npos) return {static_cast<std::uint16_t>(first + engine * paths), 0};
  return {static_cast<std::uint16_t>(first), static_cast<std::uint16_t>(std::stoll(text.substr(dash + 1)))};
}

std::unique_ptr<Datapath> make_udp(const MakeRequest& request) {
  return std::make_unique<UdpDatapath>(udp_options(request));
}

}  // namespace

bool find_udp(const Settings& settings, std::int64_t, Found* out, std::string* error) {
  out->summary = "udp";
  const std::string plan = settings.text("plan");
  std::string problem;
  if (!plan.empty() && PortPlan().read(plan, &problem)) {
    out->summary += " with the plan " + plan;
  } else if (!plan.empty()) {
    out->warning = "the plan " + plan + " is not used: " + problem + " (WEFT_PLAN)";
  }
  return find_interfaces(settings, out, error);
}

UdpOptions udp_options(const MakeRequest& request) {
  UdpOptions options;
  options.socket_buffer_bytes = request.settings->number("socket_buffer_bytes");
  options.ecn = request.settings->number("ecn") != 0;
  options.faults = fault_rates(*request.settings, request.engine);
  options.promised = request.descriptors;
  options.plan = request.settings->text("plan");
  options.dscp = static_cast<int>(request.settings->number("dscp"));
  options.ports = port_choice(request.settings->text("port_base"), request.engine, request.settings->number("paths"));
  return options;
}

std::uint32_t udp_route_segment_bytes(const Settings& settings, const SocketAddress& to) {
  const std::int64_t mtu_bytes = route_mtu_bytes(to);
  return mtu_bytes > 0 ? datagram_bytes(settings, mtu_bytes, to.is_v6()) : 0;
}

extern const DatapathEntry udp_entry;
const DatapathEntry udp_entry{.name = "udp",
                              .title = "UDP sockets",
                              .preference = 1,
                              .routed = true,
                              .unprotected = true,
                              .descriptor_per_path = true,
                              .one_engine = false,
                              .probe = probe_udp,
                              .find = find_udp,
                              .make = make_udp,
                              .route_segment_bytes = udp_route_segment_bytes};

}  // namespace weft::datapath
