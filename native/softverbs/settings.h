// The environment of the provider: how many devices it plays and what befalls packets. Names begin with SOFTVERBS_,
// as WEFT_ is weft's own knobs, which know nothing of who plays the NIC.
#pragma once

#include <cstdint>
#include <string>

namespace weft::softverbs {

struct Settings {
  std::int64_t seed = 1, devices = 1, mtu_bytes = 4096;
  double loss = 0, reorder = 0, duplicate = 0, late = 0;  // probability per packet
  double stall = 0;                                       // per request: its memory is read later
  std::int64_t reorder_ns_max = 200'000, late_ns_max = 20'000'000, stall_ns_max = 2'000'000;
  std::string cuda_library = "libcuda.so.1";
};

inline constexpr std::int64_t kDevicesMax = 8;

// False with `error` naming the variable, what it holds and what it takes.
bool read_settings(Settings* out, std::string* error);
std::string describe(const Settings& settings);

}  // namespace weft::softverbs
