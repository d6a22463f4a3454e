// CPU quotas of control groups (the kernel's documentation: admin-guide/cgroup-v2, "cpu.max"; scheduler/sched-bwc).
#include "native/engine/setup/usable_cores.h"

#include <sched.h>

#include <algorithm>
#include <fstream>
#include <sstream>

namespace weft::engine {
namespace {

// The number of cores that a quota of CPU time per period amounts to; 0: there is no quota.
double cores_of(double quota_us, double period_us) { return quota_us > 0 && period_us > 0 ? quota_us / period_us : 0; }

double read_number(const std::string& path) {
  std::ifstream file(path);
  double number = 0;
  return file >> number ? number : 0;
}

double cores_of_group(const std::string& directory) {
  std::ifstream file(directory + "/cpu.max");  // "max 100000" without a quota
  double quota_us = 0, period_us = 0;
  if (file >> quota_us >> period_us) return cores_of(quota_us, period_us);
  return cores_of(read_number(directory + "/cpu.cfs_quota_us"), read_number(directory + "/cpu.cfs_period_us"));
}

void lower(double cores, double* least) {
  if (cores > 0) *least = *least > 0 ? std::min(*least, cores) : cores;
}

bool names_cpu(const std::string& controllers) {
  std::istringstream names(controllers);
  for (std::string name; std::getline(names, name, ',');) {
    if (name == "cpu") return true;
  }
  return false;
}

}  // namespace

double quota_cores(const std::string& groups, const std::string& mount) {
  double least = 0;
  std::ifstream file(groups);
  for (std::string line; std::getline(file, line);) {  // "1:cpu,cpuacct:/a/b", version 2: "0::/a/b"
    const std::size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    if (!controllers.empty() && !names_cpu(controllers)) continue;
    std::string group = line.substr(second + 1);
    const std::string own = controllers.empty() ? "/unified" : "/" + controllers;
    for (;;) {  // a container may see its own group at the root of the mount
      for (const std::string& root : {mount, mount + own, mount + "/cpu"}) lower(cores_of_group(root + group), &least);
      if (group.empty()) break;
      group.resize(group.find_last_of('/') == std::string::npos ? 0 : group.find_last_of('/'));
    }
  }
  return least;
}

double usable_cores() {
  cpu_set_t mask;
  CPU_ZERO(&mask);
  const double cores = ::sched_getaffinity(0, sizeof mask, &mask) == 0 ? std::max(CPU_COUNT(&mask), 1) : 1;
  const double quota = quota_cores("/proc/self/cgroup", "/sys/fs/cgroup");
  return quota > 0 ? std::min(cores, quota) : cores;
}

}  // namespace weft::engine
