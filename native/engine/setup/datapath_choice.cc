// Sockets unless the knob says otherwise; with `auto` queue pairs come first, and why they were not taken is one line.
#include "native/engine/setup/datapath_choice.h"

#include <algorithm>

#include "native/datapath/udp/udp_datapath.h"
#include "native/engine/log.h"
#include "native/engine/setup/descriptor_budget.h"
#ifdef WEFT_HAS_VERBS
#include "native/datapath/verbs/verbs_datapath.h"
#include "native/engine/setup/rdma_devices.h"
#endif

namespace weft::engine {
namespace {

#ifdef WEFT_HAS_VERBS

datapath::VerbsOptions verbs_options(const Knobs& knobs, const DatapathChoice& choice) {
  datapath::VerbsOptions options;
  options.library = knobs.rdma_library;
  options.mode = static_cast<datapath::VerbsMode>(choice.verbs_mode);
  options.segment_bytes = choice.segment_bytes;
  options.slots = static_cast<std::uint32_t>(knobs.rdma_slots);
  options.mtu_bytes = static_cast<std::uint32_t>(knobs.rdma_mtu_bytes);
  options.traffic_class = static_cast<std::uint8_t>(knobs.rdma_traffic_class);
  options.service_level = static_cast<std::uint8_t>(knobs.rdma_service_level);
  options.spread_source_ports = knobs.rdma_spread_ports != 0;
  options.direct = knobs.rdma_placement == RdmaPlacement::direct;
  options.fault_qp_error = knobs.fault_qp_error;
  return options;
}

bool choose_verbs(const Knobs& knobs, std::int64_t engines, DatapathChoice* choice, std::vector<DeviceState>* devices,
                  std::string* error) {
  datapath::VerbsMode mode{};
  if (!find_rdma_devices(knobs, devices, &mode, error)) return false;
  choice->verbs = true;
  choice->verbs_mode = static_cast<std::int32_t>(mode);
  choice->summary = std::string("verbs ") + datapath::mode_name(mode);
  const datapath::Ibv* const library = datapath::load_ibv(knobs.rdma_library, error);
  if (library != nullptr && !library->software.empty()) {
    choice->summary += " over " + library->software;
    log(LogLevel::warn, "RDMA is played by software (WEFT_RDMA_LIBRARY): " + library->software);
  }
  for (const DeviceState& device : *devices)
    choice->segment_bytes = std::max(choice->segment_bytes, device.segment_bytes);
  return memory_suffices(*devices, verbs_options(knobs, *choice), engines, error);
}

std::unique_ptr<datapath::Datapath> make_verbs(const Knobs& knobs, const DatapathChoice& choice, std::uint32_t engine) {
  datapath::VerbsOptions options = verbs_options(knobs, choice);
  options.faults = fault_rates(knobs, engine);
  return std::make_unique<datapath::VerbsDatapath>(options);
}

#else

bool choose_verbs(const Knobs&, std::int64_t, DatapathChoice*, std::vector<DeviceState>*, std::string* error) {
  *error = "this weft was built without RDMA: apt-get install libibverbs-dev, then build again";
  return false;
}

std::unique_ptr<datapath::Datapath> make_verbs(const Knobs&, const DatapathChoice&, std::uint32_t) { return nullptr; }

#endif

}  // namespace

datapath::FaultRates fault_rates(const Knobs& knobs, std::uint32_t engine) {
  datapath::FaultRates rates;
  rates.seed = static_cast<std::uint64_t>(knobs.fault_seed) * 1'000'003 + engine;
  rates.loss = knobs.fault_loss;
  rates.reorder = knobs.fault_reorder;
  rates.duplicate = knobs.fault_duplicate;
  rates.corrupt = knobs.fault_corrupt;
  std::string unused;  // check_knobs has seen it
  static_cast<void>(read_paths(knobs.fault_paths, &rates.ports, &unused));
  return rates;
}

bool choose_datapath(const Knobs& knobs, std::int64_t engines, DatapathChoice* choice,
                     std::vector<DeviceState>* devices, std::string* error) {
  *choice = DatapathChoice();
  if (knobs.datapath == DatapathKind::udp) return find_devices(knobs, devices, error);
  if (choose_verbs(knobs, engines, choice, devices, error)) return true;
  *choice = DatapathChoice();
  if (knobs.datapath == DatapathKind::verbs) {
    *error += " (WEFT_DATAPATH=verbs; auto would go on over sockets)";
    return false;
  }
  log(LogLevel::warn, "no RDMA, going on over UDP sockets: " + *error);
  error->clear();
  return find_devices(knobs, devices, error);
}

std::unique_ptr<datapath::Datapath> make_datapath(const Knobs& knobs, const DatapathChoice& choice,
                                                  std::uint32_t engine) {
  if (choice.verbs) return make_verbs(knobs, choice, engine);
  datapath::UdpOptions options;
  options.socket_buffer_bytes = knobs.socket_buffer_bytes;
  options.ecn = knobs.ecn != 0;
  options.faults = fault_rates(knobs, engine);
  options.promised = DescriptorGrant::promised();
  return std::make_unique<datapath::UdpDatapath>(options);
}

}  // namespace weft::engine
