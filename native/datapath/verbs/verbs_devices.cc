// Finds the GID with which a chosen port works, and the address of the GID's interface. If no setting gives the GID's
// index, the port's GIDs are tried in order of preference.
#include "native/datapath/verbs/verbs_devices.h"

#include <sys/resource.h>

#include <algorithm>
#include <functional>
#include <memory>

#include "native/datapath/nccl_variables.h"
#include "native/datapath/udp/interfaces.h"
#include "native/datapath/udp/udp_devices.h"
#include "native/datapath/verbs/rdma_choice.h"
#include "native/datapath/verbs/rdma_ports.h"

namespace weft::datapath {
namespace {

// The largest burst that is sent with one doorbell: kTrainBytes of short segments, or kTrainSegments long ones.
constexpr std::uint32_t kTrainBytes = 65'472, kTrainSegments = 16;
constexpr std::uint32_t kUdBytesMin = 512;  // no acknowledgment or advertisement is longer than this

// Finds an address for control sockets: one of the GID's interface, or on InfiniBand of any interface.
bool find_address(const Settings& settings, const std::string& interface, Place* place, std::int64_t* mtu_bytes) {
  std::string unused;
  for (const bool loopback : {false, true}) {
    for (const Interface& each : list_interfaces(&unused)) {
      if (!each.up || each.loopback != loopback || (!interface.empty() && each.name != interface)) continue;
      for (const auto& [address, prefix_bits] : each.addresses) {
        if (!is_of_family(address, settings)) continue;
        place->address = address;
        place->interface_index = each.index;
        *mtu_bytes = each.mtu_bytes;
        return true;
      }
    }
  }
  return false;
}

std::string text_of(const std::vector<VerbsMode>& modes) {
  std::string text;
  for (const VerbsMode mode : modes) {
    if (!text.empty()) text += ", ";
    text += mode_name(mode);
  }
  return text;
}

// Finds the first GID from which the port can send, and the transports (UC, RC, UD) that work with it.
bool settle(const Settings& settings, const Ibv* library, const RdmaPort& port, int gid_index, Place* place,
            std::int64_t* mtu_bytes, std::vector<VerbsMode>* modes, std::string* error) {
  const std::string name = port.device + ":" + std::to_string(port.number);
  std::vector<Gid> gids = gids_by_preference(port, settings.text("family") == "ipv6");
  if (gid_index >= 0) std::erase_if(gids, [&](const Gid& gid) { return gid.index != gid_index; });
  if (gids.empty()) {
    *error = name + " has no GID";
    if (gid_index >= 0) error->append(" ").append(std::to_string(gid_index));
    *error += gid_index >= 0
                  ? ", which WEFT_RDMA_DEVICES or NCCL_IB_GID_INDEX names: weft doctor shows those that it has"
                  : ": give its interface an address, or run weft doctor to see the GIDs that it has";
    return false;
  }
  for (const Gid& gid : gids) {
    place->port = PortName{port.device, port.number, gid.index}.text();
    if (!find_address(settings, gid.interface, place, mtu_bytes)) {
      *error = name + ": interface " + gid.interface + " has no address for the control sockets";
      continue;
    }
    *modes = probe_modes(library, *place, error);
    if (!modes->empty()) return true;
  }
  return false;
}

bool add_port(const Settings& settings, const Ibv* library, const RdmaPort& port, int gid_index, DeviceState* device,
              std::vector<VerbsMode>* common, std::string* error) {
  Place place;
  std::vector<VerbsMode> modes;
  std::int64_t mtu_bytes = 0;
  if (!settle(settings, library, port, gid_index, &place, &mtu_bytes, &modes, error)) return false;
  std::erase_if(*common, [&](VerbsMode mode) { return std::find(modes.begin(), modes.end(), mode) == modes.end(); });
  const bool first = device->places.empty();
  device->places.push_back(place);
  Device& info = device->info;
  if (!first) info.name += '+';
  info.name += port.device;
  if (port.number != 1) info.name.append(":").append(std::to_string(port.number));
  info.speed_mbps += port.rate_mbps;
  info.mtu_bytes = first ? mtu_bytes : std::min(info.mtu_bytes, mtu_bytes);
  if (first) {
    info.address = place.address.text();
    info.pci_path = port.pci_path;
  }
  info.guid = std::hash<std::string>{}(info.name + info.address);
  return true;
}

// The size of a segment: one packet, because under UC the loss of any packet loses the whole segment. The knob
// segment_bytes may ask for more where the transport (UC, RC) splits a message into packets.
std::uint32_t segment_bytes(const Settings& settings, const Ibv* library, const DeviceState& device, VerbsMode mode) {
  std::uint32_t packet_bytes = 4096;
  for (const Place& place : device.places) {
    packet_bytes = std::min(packet_bytes, active_mtu_bytes(library, place));
  }
  const auto mtu_bytes = static_cast<std::uint32_t>(settings.number("rdma_mtu_bytes"));
  if (mtu_bytes != 0) packet_bytes = std::min(packet_bytes, mtu_bytes);
  const auto wanted = static_cast<std::uint32_t>(settings.number("segment_bytes"));
  if (wanted == 0) return packet_bytes;
  return mode == VerbsMode::ud ? std::min(wanted, packet_bytes) : wanted;
}

bool choose_mode(const Settings& settings, const std::vector<VerbsMode>& common, VerbsMode* mode, std::string* error) {
  if (common.empty()) {
    *error = "the RDMA devices have no transport (UC, RC or UD) in common: choose among them with WEFT_RDMA_DEVICES";
    return false;
  }
  *mode = common.front();
  const std::string wanted = settings.text("rdma_mode");
  if (wanted == "auto") return true;
  *mode = wanted == "uc" ? VerbsMode::uc : wanted == "rc" ? VerbsMode::rc : VerbsMode::ud;
  if (std::find(common.begin(), common.end(), *mode) != common.end()) return true;
  *error = std::string("the RDMA devices do not support ") + mode_name(*mode) + " (WEFT_RDMA=mode); they support " +
           text_of(common);
  return false;
}

}  // namespace

namespace {

std::vector<RdmaPort> ports_of(const Ibv* library) {
  const bool software = library != nullptr && !library->software.empty();
  return software ? software_ports(*library) : list_rdma_ports();
}

}  // namespace

bool probe_rdma(const Settings& settings, std::string* error) {
  const std::string wanted = settings.text("rdma_library");
  const Ibv* const library = load_ibv(wanted, error);
  const bool none = ports_of(library).empty();
  if (library == nullptr && (!wanted.empty() || !none)) return false;
  if (!none) return true;
  *error =
      "this host has no RDMA device (/sys/class/infiniband is empty); for Soft-RoCE: modprobe rdma_rxe; "
      "rdma link add rxe0 type rxe netdev eth0";
  return false;
}

bool find_rdma_devices(const Settings& settings, std::vector<DeviceState>* out, VerbsMode* mode, std::string* error) {
  const Ibv* const library = load_ibv(settings.text("rdma_library"), error);
  if (library == nullptr) return false;
  const std::vector<RdmaPort> ports = ports_of(library);
  std::vector<VerbsMode> common{VerbsMode::uc, VerbsMode::rc, VerbsMode::ud};
  out->clear();
  RdmaWish wish{settings.text("rdma_devices"), nccl_variable("NCCL_IB_HCA")};
  RdmaChoice choice;
  if (!nccl_number("NCCL_IB_GID_INDEX", 255, &wish.nccl_gid, error)) return false;
  if (!choose_rdma_ports(ports, wish, &choice, error)) return false;
  for (const std::vector<ChosenPort>& joined : choice.devices) {
    DeviceState device;
    const bool usable = std::all_of(joined.begin(), joined.end(), [&](const ChosenPort& each) {
      return add_port(settings, library, *each.port, each.gid, &device, &common, error);
    });
    if (usable) out->push_back(device);
    if (!usable && choice.named) return false;
  }
  if (out->empty()) return false;
  if (!choose_mode(settings, common, mode, error)) return false;
  for (DeviceState& device : *out) {
    device.segment_bytes = segment_bytes(settings, library, device, *mode);
    if (*mode == VerbsMode::ud && device.segment_bytes < kUdBytesMin) {
      *error = "UD needs packets of " + std::to_string(kUdBytesMin) + " bytes or more, but those of " +
               device.info.name + " have " + std::to_string(device.segment_bytes) +
               ": raise the port's MTU or WEFT_RDMA=mtu, or choose UC or RC (WEFT_RDMA=mode)";
      return false;
    }
    device.train_bytes = std::max(kTrainBytes, kTrainSegments * device.segment_bytes);
  }
  return true;
}

bool memory_suffices(const std::vector<DeviceState>& devices, const VerbsOptions& options, std::int64_t engines,
                     std::string* error) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_MEMLOCK, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return true;
  const Ibv* library = load_ibv(options.library, error);
  if (library == nullptr) return false;
  std::vector<std::unique_ptr<VerbsPort>> ports;
  for (std::int64_t engine = 0; engine < engines; ++engine) {
    for (const DeviceState& device : devices) {
      for (const Place& place : device.places) {
        ports.push_back(std::make_unique<VerbsPort>());
        if (!ports.back()->open(library, place, options, error)) return false;
      }
    }
  }
  return true;
}

}  // namespace weft::datapath
