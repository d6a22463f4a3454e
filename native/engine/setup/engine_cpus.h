// Chooses the CPUs on which engine threads run, by WEFT_ENGINE_CPUS and by where the devices are.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace weft::engine {

// CPU numbers in ascending order.
using Cpus = std::vector<int>;

// Parses a list as the kernel writes it, such as "0-3,8". Returns false and sets `error` if it isn't one or is empty.
bool parse_cpus(const std::string& text, Cpus* out, std::string* error);

// Parses WEFT_ENGINE_CPUS: *out stays empty for "auto" and "any". Returns false and sets `error` if it is no list
// either.
bool parse_wish(const std::string& wish, Cpus* out, std::string* error);

// How many engines a process has by default: a quarter of the cores that it may use, 1 to kEnginesAutoMax, but not more
// than the CPUs that they may run on. `cpus` empty: any.
inline constexpr std::int64_t kEnginesAutoMax = 8;
std::int64_t engines_for(std::int64_t cores, const Cpus& cpus);

// The CPUs that the calling thread may use by its affinity mask; empty if the mask cannot be read.
Cpus allowed_cpus();

// Of `allowed`, those on the NUMA nodes of the PCI devices at these sysfs paths. All of `allowed` if a path is empty,
// as for a virtual interface, if a node is unknown, or if fewer than `least` of these CPUs are allowed.
Cpus near_cpus(const Cpus& allowed, const std::vector<std::string>& pci_paths, std::size_t least);

// The CPUs for the threads of `engines` engines: `wish` is "auto" (near the devices), "any", or a list, of which those
// that the calling thread may not use are left out. Empty: the threads keep the mask that they inherit. Returns false
// and sets `error` if the list is wrong or the calling thread may use none of it.
bool choose_cpus(const std::string& wish, const std::vector<std::string>& pci_paths, std::size_t engines, Cpus* out,
                 std::string* error);

}  // namespace weft::engine
