// How many cores this process may use.
#pragma once

#include <string>

namespace weft::engine {

// The least that the CPU quotas of the process's control groups, and of those above them, leave, in cores; 0: there is
// no quota. `groups`: /proc/self/cgroup. `mount`: where the groups are mounted, of version 1, 2 or both.
double quota_cores(const std::string& groups, const std::string& mount);

// The number of CPUs in the affinity mask, or the CPU quota if that is less; more than 0.
double usable_cores();

}  // namespace weft::engine
