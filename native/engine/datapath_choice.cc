// Sockets unless the knob says otherwise. With `auto` verbs come first, and why they did not is one line in the log.
#include "native/engine/datapath_choice.h"

#include "native/datapath/udp/udp_datapath.h"

namespace weft::engine {

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

bool choose_datapath(const Knobs& knobs, DatapathChoice* choice, std::vector<DeviceState>* devices,
                     std::string* error) {
  *choice = DatapathChoice();
  return find_devices(knobs, devices, error);
}

std::unique_ptr<datapath::Datapath> make_datapath(const Knobs& knobs, const DatapathChoice& choice,
                                                  std::uint32_t engine) {
  static_cast<void>(choice);
  datapath::UdpOptions options;
  options.socket_buffer_bytes = knobs.socket_buffer_bytes;
  options.ecn = knobs.ecn != 0;
  options.faults = fault_rates(knobs, engine);
  return std::make_unique<datapath::UdpDatapath>(options);
}

}  // namespace weft::engine
