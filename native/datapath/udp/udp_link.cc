// Sets up links: encodes the port numbers of our sockets for the handshake, validates the port numbers of the peer, and
// turns them into addresses.
#include <netinet/in.h>

#include <algorithm>
#include <set>

#include "native/datapath/udp/udp_datapath.h"

namespace weft::datapath {
namespace {

constexpr std::size_t kPathsMax = 256;

std::string to_params(char kind, const std::vector<std::uint16_t>& numbers) {
  std::string params(1, kind);
  for (const std::uint16_t number : numbers) {
    params += static_cast<char>(number & 0xFF);
    params += static_cast<char>(number >> 8);
  }
  return params;
}

bool from_params(const std::string& params, std::vector<std::uint16_t>* numbers) {
  if (params.size() % 2 != 1 || params.size() > 1 + 2 * kPathsMax) return false;
  for (std::size_t at = 1; at < params.size(); at += 2) {
    const auto low = static_cast<std::uint8_t>(params[at]), high = static_cast<std::uint8_t>(params[at + 1]);
    numbers->push_back(static_cast<std::uint16_t>(low | high << 8));
  }
  return true;
}

}  // namespace

bool UdpDatapath::open_link(const LinkPlan& plan, std::string* params, std::string* error) {
  std::vector<std::uint32_t>& ports = device_ports_[plan.device];
  for (std::size_t i = ports.size(); i < plan.path_count; ++i) {
    std::uint32_t port = 0;
    const std::size_t wanted = options_.ports.first == 0 ? 0 : options_.ports.first + i;
    const auto number = static_cast<std::uint16_t>(wanted > 65'535 ? 0 : wanted);
    if (!open_port((*plan.places)[i % plan.places->size()], number, &port, error)) {
      if (options_.ports.last != 0) return false;
      break;
    }
    ports.push_back(port);
  }
  if (ports.empty()) return false;
  if (links_.size() <= plan.peer) links_.resize(plan.peer + 1);
  links_[plan.peer] = Link{plan.device, plan.places, {}};
  std::vector<std::uint16_t> numbers;
  for (const std::uint32_t port : ports) numbers.push_back(ports_[port].number);
  *params = to_params(kind(), numbers);
  return true;
}

bool UdpDatapath::connect_link(std::uint32_t peer, const RemoteEnds& theirs, std::uint16_t* path_count,
                               std::string* error) {
  if (peer >= links_.size() || links_[peer].places == nullptr) {
    *error = "internal error: no link to this peer is open";
    return false;
  }
  Link& link = links_[peer];
  std::vector<std::uint16_t> numbers;
  if (theirs.params->empty() || theirs.params->front() != kind()) {
    *error = kind_mismatch();
    return false;
  }
  if (!from_params(*theirs.params, &numbers) || numbers.empty() || theirs.addresses->empty()) {
    *error = "the peer's handshake names no UDP port or no address for its paths";
    return false;
  }
  const std::vector<Place>& places = *link.places;
  if (theirs.addresses->front().is_v6() != places.front().address.is_v6()) {
    *error = "the two ends use different address families: give both the same WEFT_FAMILY";
    return false;
  }
  const std::size_t count = std::min(device_ports_.at(link.device).size(), numbers.size());
  const std::vector<Route> planned = planned_routes(link, theirs, numbers);
  link.routes.clear();
  for (std::size_t i = 0; i < count; ++i) {
    link.routes.push_back(planned.empty() ? route(link, theirs, numbers, i, i) : planned[i % planned.size()]);
  }
  if (!options_.plan.empty() && planned.size() < count) {
    notice_ = "the plan " + options_.plan + " has " + std::to_string(planned.size()) + " pairs of ports for " +
              std::to_string(count) + " paths from " + places.front().address.text() + " to " +
              theirs.addresses->front().text() +
              (planned.empty() ? ", so they take their ports as without a plan" : ", so paths share pairs") +
              ": run weft plan probe and assign with the job's WEFT_PORT_BASE, WEFT_ENGINES and WEFT_PATHS";
  }
  *path_count = static_cast<std::uint16_t>(link.routes.size());
  return true;
}

UdpDatapath::Route UdpDatapath::route(const Link& link, const RemoteEnds& theirs,
                                      const std::vector<std::uint16_t>& numbers, std::size_t near,
                                      std::size_t far) const {
  Route made;
  made.port = device_ports_.at(link.device)[near];
  made.to = (*theirs.addresses)[far % theirs.addresses->size()];
  made.to.set_port(numbers[far]);
  // A link-local address is only valid together with its interface.
  if (made.to.is_v6() && IN6_IS_ADDR_LINKLOCAL(&made.to.v6.sin6_addr)) {
    made.to.v6.sin6_scope_id = (*link.places)[near % link.places->size()].interface_index;
  }
  return made;
}

std::vector<UdpDatapath::Route> UdpDatapath::planned_routes(const Link& link, const RemoteEnds& theirs,
                                                            const std::vector<std::uint16_t>& numbers) const {
  std::vector<Route> routes;
  if (plan_.empty()) return routes;
  const std::vector<std::uint32_t>& ports = device_ports_.at(link.device);
  const std::size_t places = link.places->size(), addresses = theirs.addresses->size();
  std::set<std::pair<std::size_t, std::size_t>> taken;  // used pairs: several jobs of a plan may name the same pair
  for (std::size_t here = 0; here < places; ++here) {
    for (std::size_t there = 0; there < addresses; ++there) {
      const std::string from = (*link.places)[here].address.text(), to = (*theirs.addresses)[there].text();
      for (const PortPair& pair : plan_.pairs(from, to)) {
        std::size_t near = here, far = there;
        while (near < ports.size() && ports_[ports[near]].number != pair.here) near += places;
        while (far < numbers.size() && numbers[far] != pair.there) far += addresses;
        if (near >= ports.size() || far >= numbers.size() || !taken.emplace(near, far).second) continue;
        routes.push_back(route(link, theirs, numbers, near, far));
      }
    }
  }
  return routes;
}

void UdpDatapath::close_link(std::uint32_t peer) noexcept {
  if (peer < links_.size()) links_[peer] = Link{};
}

}  // namespace weft::datapath
