// How many cores this process may use.
#pragma once

#include <string>

namespace weft::engine {

// The smallest CPU quota of the process's control groups and of their parents, in cores; 0: there is no quota.
// `groups`: path of /proc/self/cgroup. `mount`: directory where the control groups (version 1, 2 or both) are mounted.
double quota_cores(const std::string& groups, const std::string& mount);

// The number of CPUs in the affinity mask, or the CPU quota if that is less; more than 0.
double usable_cores();

}  // namespace weft::engine
