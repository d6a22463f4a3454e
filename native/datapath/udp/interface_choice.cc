// Chooses interfaces. A list in a setting has names, addresses and prefixes; '^' before it leaves those out of the
// interfaces that would be used without it.
#include "native/datapath/udp/interface_choice.h"

#include <arpa/inet.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <optional>

#include "native/datapath/device.h"

namespace weft::datapath {
namespace {

bool begins_with(const std::string& text, const std::string& prefix) { return text.rfind(prefix, 0) == 0; }

bool is_of(const SocketAddress& address, const std::string& family) {
  return family == "auto" || address.is_v6() == (family == "ipv6");
}

bool is_loopback(const SocketAddress& address) {
  if (address.is_v6()) return IN6_IS_ADDR_LOOPBACK(&address.v6.sin6_addr);
  return ntohl(address.v4.sin_addr.s_addr) >> 24 == 127;
}

// Whether other hosts can be reached from the address, as far as the address alone tells.
bool is_routable(const SocketAddress& address) { return !is_loopback(address) && !is_link_local(address); }

int host_bits(const SocketAddress& address) { return address.is_v6() ? 128 : 32; }

// An address with the length of a prefix: 10.0.0.1 is 10.0.0.1/32.
struct Prefix {
  SocketAddress address;
  int bits = 0;

  bool holds(const SocketAddress& one) const {
    if (one.any.sa_family != address.any.sa_family) return false;
    const auto bytes_of = [](const SocketAddress& from) {
      return from.is_v6() ? from.v6.sin6_addr.s6_addr : reinterpret_cast<const std::uint8_t*>(&from.v4.sin_addr);
    };
    const std::uint8_t *mine = bytes_of(address), *theirs = bytes_of(one);
    for (int bit = 0; bit < bits; bit += 8) {
      const int kept = std::min(8, bits - bit);
      const auto mask = static_cast<std::uint8_t>(0xff << (8 - kept));
      if (((mine[bit / 8] ^ theirs[bit / 8]) & mask) != 0) return false;
    }
    return true;
  }
};

std::optional<Prefix> parse_prefix(const std::string& text) {
  const std::size_t slash = text.find('/');
  const std::string host = text.substr(0, std::min(slash, text.find('%')));
  Prefix made;
  if (::inet_pton(AF_INET, host.c_str(), &made.address.v4.sin_addr) == 1) {
    made.address.v4.sin_family = AF_INET;
  } else if (::inet_pton(AF_INET6, host.c_str(), &made.address.v6.sin6_addr) == 1) {
    made.address.v6.sin6_family = AF_INET6;
  } else {
    return std::nullopt;
  }
  made.bits = host_bits(made.address);
  if (slash == std::string::npos) return made;
  int bits = 0;
  const char *first = text.data() + slash + 1, *last = text.data() + text.size();
  const auto [end, code] = std::from_chars(first, last, bits);
  if (code != std::errc() || end != last || bits < 0 || bits > made.bits) return std::nullopt;
  made.bits = bits;
  return made;
}

// The first address of the family that `suits`; null: there is none.
template <class Suits>
const SocketAddress* address_of(const Interface& interface, const std::string& family, Suits suits) {
  const auto found = std::find_if(interface.addresses.begin(), interface.addresses.end(),
                                  [&](const auto& each) { return is_of(each.address, family) && suits(each.address); });
  return found == interface.addresses.end() ? nullptr : &found->address;
}

// One element of a list: a name or a prefix. With `whole`, a name must be equal; without it, begin so.
struct Element {
  std::string name;
  std::optional<Prefix> prefix;

  std::string zone;  // of a link-local address: the interface that alone is meant

  explicit Element(const std::string& text) : name(text), prefix(parse_prefix(text)) {
    const std::size_t at = text.find('%');
    if (prefix && at != std::string::npos) zone = text.substr(at + 1, text.find('/', at) - at - 1);
  }
  // The address by which an interface is meant; null: it is not.
  const SocketAddress* of(const Interface& interface, const std::string& family, bool whole) const {
    if (!zone.empty() && zone != interface.name) return nullptr;
    if (prefix) return address_of(interface, family, [&](const auto& address) { return prefix->holds(address); });
    if (whole ? interface.name != name : !begins_with(interface.name, name)) return nullptr;
    return address_of(interface, family, [](const auto&) { return true; });
  }
  bool means(const Interface& interface, bool whole) const {
    if (prefix) return of(interface, "auto", whole) != nullptr;
    return whole ? interface.name == name : begins_with(interface.name, name);
  }
};

// A list as in WEFT_INTERFACES and NCCL_SOCKET_IFNAME, without its '^' and '='.
struct List {
  bool excludes = false, whole = false;
  std::vector<Element> elements;

  explicit List(const std::string& text) {
    std::size_t at = 0;
    for (; at < text.size() && (text[at] == '^' || text[at] == '='); ++at) (text[at] == '^' ? excludes : whole) = true;
    for (const std::string& name : split_names(text.substr(at), ',')) elements.emplace_back(name);
  }
  bool means(const Interface& interface) const {
    return std::any_of(elements.begin(), elements.end(),
                       [&](const Element& each) { return each.means(interface, whole); });
  }
};

bool is_tunnel(const std::string& kind) {
  static const std::vector<std::string> tunnels{"vxlan",  "geneve", "ipip", "ip6tnl", "sit",       "gre",
                                                "ip6gre", "gretap", "vti",  "tun",    "wireguard", "xfrm"};
  return std::find(tunnels.begin(), tunnels.end(), kind) != tunnels.end();
}

// Interfaces of container networks whose kind (veth, dummy) does not tell them from others.
bool is_of_containers(const std::string& name) {
  static const std::vector<std::string> names{"docker",    "cali",         "cilium_", "lxc",
                                              "kube-ipvs", "nodelocaldns", "virbr",   "cni"};
  return std::any_of(names.begin(), names.end(), [&](const auto& each) { return begins_with(name, each); });
}

std::string describe(const std::vector<Interface>& interfaces) {
  std::string text;
  for (const Interface& each : interfaces) {
    if (!text.empty()) text += ", ";
    text += each.name;
    if (const std::string why = why_left_out(each, "auto"); !why.empty()) text += " (" + why + ")";
  }
  return text;
}

// Chooses for a list of names, addresses and prefixes of WEFT_INTERFACES.
class Named {
 public:
  Named(const std::vector<Interface>& all, const InterfaceWish& wish) : all_(all), wish_(wish) {}

  bool choose(InterfaceChoice* out, std::string* error) {
    const std::string& text = wish_.interfaces;
    for (const std::string& device :
         split_names(text.substr(std::min(text.find_first_not_of('='), text.size())), ',')) {
      std::vector<ChosenInterface> joined;
      bool one_each = false;
      for (const std::string& part : split_names(device, '+')) {
        if (!add(part, &joined, error)) return false;
        one_each = part == device;  // a prefix alone makes a device of each of its interfaces
      }
      for (std::size_t i = 0; one_each && i < joined.size(); ++i) out->devices.push_back({joined[i]});
      if (!one_each && !joined.empty()) out->devices.push_back(joined);
    }
    if (!out->devices.empty()) return true;
    *error = "WEFT_INTERFACES=" + text + " names no interface; there is " + describe(all_);
    return false;
  }

 private:
  bool add(const std::string& part, std::vector<ChosenInterface>* joined, std::string* error) {
    const Element element(part);
    const std::string family = family_of(wish_);
    bool exists = false, found = false;
    for (const Interface& each : all_) {
      if (!element.means(each, true)) continue;
      exists = true;
      const SocketAddress* address = element.of(each, family, true);
      if (!each.up || address == nullptr) continue;
      if (std::find(taken_.begin(), taken_.end(), address) != taken_.end()) {
        *error = "WEFT_INTERFACES=" + wish_.interfaces + " names " + each.name + " twice";
        return false;
      }
      taken_.push_back(address);
      joined->push_back({&each, *address});
      found = true;
    }
    if (found) return true;
    *error = (element.prefix ? "no interface has an address in " + part + " (WEFT_INTERFACES)"
                             : "interface '" + part + "' (WEFT_INTERFACES) " +
                                   (exists ? "is down or has no address of the requested family (WEFT_FAMILY)"
                                           : "does not exist")) +
             "; there is " + describe(all_);
    return false;
  }

  const std::vector<Interface>& all_;
  const InterfaceWish& wish_;
  std::vector<const SocketAddress*> taken_;  // two addresses of one interface may be two devices
};

// Names in NCCL_SOCKET_IFNAME without '^': all that begin so, whatever their kind; lo only if there is no other.
void choose_as_nccl(const std::vector<Interface>& all, const List& list, const std::string& family,
                    InterfaceChoice* out) {
  for (const bool loopback : {false, true}) {
    if (!out->devices.empty()) return;
    for (const Interface& each : all) {
      const SocketAddress* address = address_of(each, family, [](const auto&) { return true; });
      if (each.up && each.loopback == loopback && address != nullptr && list.means(each))
        out->devices.push_back({{&each, *address}});
    }
  }
}

// Interfaces that no setting names. Hosts whose routes come by BGP may have their routable address on lo or on a dummy
// interface alone.
void choose_by_default(const std::vector<Interface>& all, const List& excluded, const std::string& family,
                       InterfaceChoice* out) {
  const auto add_all = [&](auto suits, auto address_suits) {
    for (const Interface& each : all) {
      const SocketAddress* address = address_of(each, family, address_suits);
      if (out->devices.size() < all.size() && each.up && address != nullptr && suits(each) && !excluded.means(each))
        out->devices.push_back({{&each, *address}});
    }
  };
  add_all([&](const Interface& each) { return why_left_out(each, family).empty(); }, is_routable);
  if (!out->devices.empty()) return;
  add_all([](const Interface& each) { return each.loopback || (each.kind == "dummy" && !is_of_containers(each.name)); },
          is_routable);
  if (!out->devices.empty()) return;
  add_all([](const Interface& each) { return each.loopback; }, [](const auto&) { return true; });
  for (const Interface& each : all) {
    const SocketAddress* address = address_of(each, family, [](const auto&) { return true; });
    if (out->devices.empty() || each.loopback || !each.up || address == nullptr || !is_link_local(*address)) continue;
    out->warning = "only lo has an address beyond its link, so other hosts cannot be reached; to use " + each.name +
                   " with " + address->text() + ": WEFT_INTERFACES=" + each.name;
    break;
  }
}

}  // namespace

std::string family_of(const InterfaceWish& wish) {
  if (wish.family != "auto") return wish.family;
  if (wish.nccl_family == "AF_INET") return "ipv4";
  return wish.nccl_family == "AF_INET6" ? "ipv6" : "auto";
}

std::string why_left_out(const Interface& interface, const std::string& family) {
  if (!interface.up) return "down";
  if (interface.addresses.empty()) return "no address";
  if (interface.loopback) return "loopback";
  if (interface.bridge && !interface.bridges_nic) return "a bridge of this host";
  if (interface.kind == "dummy") return "a dummy interface";
  if (is_of_containers(interface.name)) return "a network of containers or virtual machines";
  const SocketAddress* const address = address_of(interface, family, is_routable);
  if (address == nullptr) {
    const bool any = address_of(interface, family, [](const auto&) { return true; }) != nullptr;
    return any ? "only link-local addresses" : "no address of the requested family";
  }
  const auto is_alone = [&](const auto& each) {
    return !is_routable(each.address) || each.prefix_bits == host_bits(each.address);
  };
  if (is_tunnel(interface.kind) && std::all_of(interface.addresses.begin(), interface.addresses.end(), is_alone))
    return "a tunnel of an overlay network";
  return {};
}

bool choose_interfaces(const std::vector<Interface>& all, const InterfaceWish& wish, InterfaceChoice* out,
                       std::string* error) {
  *out = {};
  const List ours(wish.interfaces), nccl(wish.nccl_names);
  if (!wish.interfaces.empty() && !ours.excludes) return Named(all, wish).choose(out, error);
  const bool by_nccl = wish.interfaces.empty() && !wish.nccl_names.empty();
  const std::string family = family_of(wish);
  if (by_nccl && !nccl.excludes) {
    choose_as_nccl(all, nccl, family, out);
  } else {
    choose_by_default(all, by_nccl ? nccl : ours, family, out);
  }
  if (!out->devices.empty()) return true;
  const std::string given = by_nccl ? "NCCL_SOCKET_IFNAME=" + wish.nccl_names : "WEFT_INTERFACES=" + wish.interfaces;
  if (by_nccl) {
    *error = given + " names no interface that is up with an address (WEFT_INTERFACES would take precedence)";
  } else if (!wish.interfaces.empty()) {
    *error = given + " leaves no interface";
  } else {
    *error = "no interface is up with an address of the requested family (WEFT_FAMILY)";
  }
  *error += "; there is " + describe(all);
  return false;
}

}  // namespace weft::datapath
