// Sets up links: encodes the port numbers of our sockets for the handshake, validates the port numbers of the peer, and
// turns them into addresses.
#include <netinet/in.h>

#include <algorithm>

#include "native/datapath/udp/udp_datapath.h"

namespace weft::datapath {
namespace {

constexpr std::size_t kPathsMax = 256;

std::string to_words(char kind, const std::vector<std::uint16_t>& numbers) {
  std::string words(1, kind);
  for (const std::uint16_t number : numbers) {
    words += static_cast<char>(number & 0xFF);
    words += static_cast<char>(number >> 8);
  }
  return words;
}

bool from_words(const std::string& words, std::vector<std::uint16_t>* numbers) {
  if (words.size() % 2 != 1 || words.size() > 1 + 2 * kPathsMax) return false;
  for (std::size_t at = 1; at < words.size(); at += 2) {
    const auto low = static_cast<std::uint8_t>(words[at]), high = static_cast<std::uint8_t>(words[at + 1]);
    numbers->push_back(static_cast<std::uint16_t>(low | high << 8));
  }
  return true;
}

}  // namespace

bool UdpDatapath::open_link(const LinkPlan& plan, std::string* words, std::string* error) {
  std::vector<std::uint32_t>& ports = device_ports_[plan.device];
  for (std::size_t i = ports.size(); i < plan.path_count; ++i) {
    std::uint32_t port = 0;
    if (!open_port((*plan.places)[i % plan.places->size()], &port, error)) break;
    ports.push_back(port);
  }
  if (ports.empty()) return false;
  if (links_.size() <= plan.peer) links_.resize(plan.peer + 1);
  links_[plan.peer] = Link{plan.device, plan.places, {}};
  std::vector<std::uint16_t> numbers;
  for (const std::uint32_t port : ports) numbers.push_back(ports_[port].number);
  *words = to_words(kind(), numbers);
  return true;
}

bool UdpDatapath::connect_link(std::uint32_t peer, const FarEnds& theirs, std::uint16_t* path_count,
                               std::string* error) {
  if (peer >= links_.size() || links_[peer].places == nullptr) {
    *error = "internal error: no link to this peer is open";
    return false;
  }
  Link& link = links_[peer];
  std::vector<std::uint16_t> numbers;
  if (theirs.words->empty() || theirs.words->front() != kind()) {
    *error = kind_mismatch();
    return false;
  }
  if (!from_words(*theirs.words, &numbers) || numbers.empty() || theirs.addresses->empty()) {
    *error = "the peer's handshake names no UDP port or no address for its paths";
    return false;
  }
  const std::vector<Place>& places = *link.places;
  if (theirs.addresses->front().is_v6() != places.front().address.is_v6()) {
    *error = "the two ends use different address families: give both the same WEFT_FAMILY";
    return false;
  }
  const std::vector<std::uint32_t>& ports = device_ports_.at(link.device);
  link.routes.resize(std::min(ports.size(), numbers.size()));
  for (std::size_t i = 0; i < link.routes.size(); ++i) {
    Route& route = link.routes[i];
    route.port = ports[i];
    route.to = (*theirs.addresses)[i % theirs.addresses->size()];
    route.to.set_port(numbers[i]);
    // A link-local address is only valid together with its interface.
    if (route.to.is_v6() && IN6_IS_ADDR_LINKLOCAL(&route.to.v6.sin6_addr)) {
      route.to.v6.sin6_scope_id = places[i % places.size()].interface_index;
    }
  }
  *path_count = static_cast<std::uint16_t>(link.routes.size());
  return true;
}

void UdpDatapath::close_link(std::uint32_t peer) noexcept {
  if (peer < links_.size()) links_[peer] = Link{};
}

}  // namespace weft::datapath
