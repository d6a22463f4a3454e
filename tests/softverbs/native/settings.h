// The provider's settings, from environment variables that begin with SOFTVERBS_: number of devices and injected
// faults. They are not among weft's knobs, which are the same for every RDMA library.
#pragma once

#include <cstdint>
#include <string>

namespace weft::softverbs {

struct Settings {
  std::int64_t seed = 1, devices = 1, mtu_bytes = 4096;
  double loss = 0, reorder = 0, duplicate = 0, late = 0;  // probability per packet
  double stall = 0;                                       // probability that a send request's memory is read late
  std::int64_t reorder_ns_max = 200'000, late_ns_max = 20'000'000, stall_ns_max = 2'000'000;
  std::string cuda_library = "libcuda.so.1";
};

inline constexpr std::int64_t kDevicesMax = 8;

// Returns false if a variable is not valid; `error` then names the variable, its value and the accepted values.
bool read_settings(Settings* out, std::string* error);
std::string describe(const Settings& settings);

}  // namespace weft::softverbs
