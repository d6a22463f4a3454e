// Defines the entry of RDMA queue pairs in the table of datapaths.
#include <algorithm>

#include "native/datapath/nccl_variables.h"
#include "native/datapath/table.h"
#include "native/datapath/verbs/verbs_datapath.h"
#include "native/datapath/verbs/verbs_devices.h"

namespace weft::datapath {
namespace {

// The traffic class of RoCE packets: WEFT_RDMA=traffic_class, else that of WEFT_DSCP, else NCCL_IB_TC.
bool find_traffic_class(const Settings& settings, std::uint8_t* out, std::string* error) {
  auto value = static_cast<int>(settings.number("rdma_traffic_class"));
  if (value == 0) value = static_cast<int>(settings.number("dscp")) << 2;
  if (value == 0 && !nccl_number("NCCL_IB_TC", 255, &value, error)) return false;
  *out = static_cast<std::uint8_t>(value);
  return true;
}

VerbsOptions verbs_options(const Settings& settings, const Found& found) {
  VerbsOptions options;
  options.library = settings.text("rdma_library");
  options.mode = static_cast<VerbsMode>(found.mode);
  for (const DeviceState& device : found.devices)
    options.segment_bytes = std::max(options.segment_bytes, device.segment_bytes);
  options.slots = static_cast<std::uint32_t>(settings.number("rdma_slots"));
  options.mtu_bytes = static_cast<std::uint32_t>(settings.number("rdma_mtu_bytes"));
  std::string checked_before;
  static_cast<void>(find_traffic_class(settings, &options.traffic_class, &checked_before));
  options.service_level = static_cast<std::uint8_t>(settings.number("rdma_service_level"));
  options.spread_source_ports = settings.number("rdma_spread_ports") != 0;
  options.direct = settings.text("rdma_placement") == "direct";
  options.fault_qp_error = settings.real("fault_qp_error");
  return options;
}

bool find_verbs(const Settings& settings, std::int64_t engines, Found* out, std::string* error) {
  VerbsMode mode{};
  std::uint8_t traffic_class = 0;
  if (!find_traffic_class(settings, &traffic_class, error)) return false;
  if (!find_rdma_devices(settings, &out->devices, &mode, error)) return false;
  out->mode = static_cast<std::int32_t>(mode);
  out->summary = std::string("verbs ") + mode_name(mode);
  const Ibv* const library = load_ibv(settings.text("rdma_library"), error);
  if (library != nullptr && !library->software.empty()) {
    out->summary += " over " + library->software;
    out->warning = "RDMA is emulated by software (WEFT_RDMA_LIBRARY): " + library->software;
  }
  return memory_suffices(out->devices, verbs_options(settings, *out), engines, error);
}

std::unique_ptr<Datapath> make_verbs(const MakeRequest& request) {
  VerbsOptions options = verbs_options(*request.settings, *request.found);
  options.faults = fault_rates(*request.settings, request.engine);
  return std::make_unique<VerbsDatapath>(options);
}

}  // namespace

extern const DatapathEntry verbs_entry;
const DatapathEntry verbs_entry{.name = "verbs",
                                .title = "RDMA",
                                .preference = 2,
                                .routed = false,
                                .unprotected = false,
                                .descriptor_per_path = false,
                                .one_engine = false,
                                .probe = probe_rdma,
                                .find = find_verbs,
                                .make = make_verbs,
                                .route_segment_bytes = nullptr};

}  // namespace weft::datapath
