// Chooses ports by WEFT_RDMA_DEVICES, by NCCL_IB_HCA in NCCL's syntax, or by default.
#include "native/datapath/verbs/rdma_choice.h"

#include <algorithm>
#include <charconv>

#include "native/datapath/device.h"

namespace weft::datapath {
namespace {

std::string describe(const std::vector<RdmaPort>& ports) {
  std::string text;
  for (const RdmaPort& port : ports) {
    if (!text.empty()) text += ", ";
    text += port.device + ":" + std::to_string(port.number);
    if (const std::string why = why_left_out(port); !why.empty()) text += " (" + why + ")";
  }
  const bool all_active = std::all_of(ports.begin(), ports.end(), [](const RdmaPort& port) { return port.active; });
  if (!all_active) text += "; to make a port active: ip link set dev INTERFACE up (RoCE), or see rdma link";
  return text;
}

// NCCL_IB_GID_INDEX is about RoCE: an InfiniBand port has one GID that matters.
int gid_by_nccl(const RdmaPort& port, const RdmaWish& wish) { return port.ethernet ? wish.nccl_gid : -1; }

bool choose_named(const std::vector<RdmaPort>& all, const RdmaWish& wish, RdmaChoice* out, std::string* error) {
  out->named = true;
  for (const std::string& name : split_names(wish.devices, ',')) {
    std::vector<ChosenPort> joined;
    for (const std::string& part : split_names(name, '+')) {
      PortName wanted;
      const bool read = wanted.parse(part);
      const auto found = !read ? all.end() : std::find_if(all.begin(), all.end(), [&](const RdmaPort& port) {
        return port.device == wanted.device && (wanted.number == 0 ? port.active : port.number == wanted.number);
      });
      if (found == all.end()) {
        *error = "RDMA port '" + part + "' (WEFT_RDMA_DEVICES) " +
                 (read ? "does not exist or is not active" : "is not of the form device:port@gid") + "; there is " +
                 describe(all);
        return false;
      }
      joined.push_back({&*found, wanted.gid >= 0 ? wanted.gid : gid_by_nccl(*found, wish)});
    }
    if (!joined.empty()) out->devices.push_back(joined);
  }
  return true;
}

// NCCL_IB_HCA: devices or device:port, separated by commas, that names of devices begin with, or after '=' are equal
// to;
// '^' before the list leaves them out.
class NcclList {
 public:
  explicit NcclList(const std::string& text) {
    std::size_t at = 0;
    for (; at < text.size() && (text[at] == '^' || text[at] == '='); ++at)
      (text[at] == '^' ? excludes_ : whole_) = true;
    for (const std::string& part : split_names(text.substr(at), ',')) {
      Element element{part};
      const std::size_t colon = part.find(':');
      if (colon != std::string::npos) {
        element.device = part.substr(0, colon);
        std::from_chars(part.data() + colon + 1, part.data() + part.size(), element.number);
      }
      elements_.push_back(element);
    }
  }
  bool takes(const RdmaPort& port) const {
    const bool named = std::any_of(elements_.begin(), elements_.end(), [&](const Element& each) {
      const bool same = whole_ ? port.device == each.device : port.device.rfind(each.device, 0) == 0;
      return same && (each.number < 0 || each.number == port.number);
    });
    return elements_.empty() || named != excludes_;
  }

 private:
  struct Element {
    std::string device;
    int number = -1;  // -1: any port
  };
  bool excludes_ = false, whole_ = false;
  std::vector<Element> elements_;
};

}  // namespace

std::string why_left_out(const RdmaPort& port) {
  if (!port.active) return "not active";
  return port.ethernet || port.infiniband ? "" : "neither RoCE nor InfiniBand";
}

bool choose_rdma_ports(const std::vector<RdmaPort>& all, const RdmaWish& wish, RdmaChoice* out, std::string* error) {
  *out = {};
  if (!choose_named(all, wish, out, error)) return false;
  if (!out->devices.empty()) return true;
  out->named = false;
  const NcclList list(wish.nccl_devices);
  for (const RdmaPort& port : all) {
    if (why_left_out(port).empty() && list.takes(port)) out->devices.push_back({{&port, gid_by_nccl(port, wish)}});
  }
  if (!out->devices.empty()) return true;
  *error = wish.nccl_devices.empty() ? "no RDMA port is active"
                                     : "NCCL_IB_HCA=" + wish.nccl_devices +
                                           " names no active RDMA port (WEFT_RDMA_DEVICES would take precedence)";
  *error += "; there is " + describe(all);
  return false;
}

}  // namespace weft::datapath
