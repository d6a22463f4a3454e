// Tests CPU quotas of control groups, with a directory in the place of the kernel's mounts.
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "native/engine/setup/usable_cores.h"
#include "tests/native/check.h"

using weft::engine::quota_cores;

namespace {

class Groups {
 public:
  Groups() {
    char name[] = "/tmp/weft-groups-XXXXXX";
    root_ = ::mkdtemp(name);
  }
  ~Groups() { std::filesystem::remove_all(root_); }
  void write(const std::string& path, const std::string& text) const {
    const std::filesystem::path file = root_ + "/mount/" + path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text << "\n";
  }
  // The quota of a process whose /proc/self/cgroup says this.
  double cores(const std::string& groups) const {
    std::ofstream(root_ + "/groups") << groups;
    return quota_cores(root_ + "/groups", root_ + "/mount");
  }

 private:
  std::string root_;
};

}  // namespace

TEST(usable_cores__version_2_has_quota_and_period) {
  const Groups groups;
  groups.write("a/b/cpu.max", "250000 100000");
  CHECK(groups.cores("0::/a/b\n") == 2.5);
  CHECK(groups.cores("0::/a\n") == 0);
  groups.write("a/b/cpu.max", "max 100000");
  CHECK(groups.cores("0::/a/b\n") == 0);
}

TEST(usable_cores__the_least_of_all_groups_above_counts) {
  const Groups groups;
  groups.write("a/b/cpu.max", "400000 100000");
  groups.write("a/cpu.max", "100000 50000");
  CHECK(groups.cores("0::/a/b\n") == 2);
  groups.write("cpu.max", "150000 100000");
  CHECK(groups.cores("0::/a/b\n") == 1.5);
  CHECK(groups.cores("0::/not/in/this/mount\n") == 1.5);
}

TEST(usable_cores__version_1_has_two_files) {
  const Groups groups;
  groups.write("cpu,cpuacct/a/cpu.cfs_quota_us", "50000");
  groups.write("cpu,cpuacct/a/cpu.cfs_period_us", "100000");
  CHECK(groups.cores("3:cpuset:/x\n2:cpu,cpuacct:/a\n0::/\n") == 0.5);
  groups.write("cpu,cpuacct/a/cpu.cfs_quota_us", "-1");
  CHECK(groups.cores("2:cpu,cpuacct:/a\n") == 0);
  groups.write("cpu/cpu.cfs_quota_us", "300000");
  groups.write("cpu/cpu.cfs_period_us", "100000");
  CHECK(groups.cores("2:cpuacct,cpu:/a\n") == 3);
}

TEST(usable_cores__other_controllers_and_odd_files_do_not_matter) {
  const Groups groups;
  groups.write("memory/a/cpu.cfs_quota_us", "50000");
  groups.write("memory/a/cpu.cfs_period_us", "100000");
  CHECK(groups.cores("4:memory:/a\n") == 0);
  for (const char* odd : {"", "x", "100000", "100000 0", "-5 100000", "100000 -5", "nan 100000"}) {
    groups.write("a/cpu.max", odd);
    CHECK(groups.cores("0::/a\n") == 0);
  }
  for (const char* odd : {"", "\n", ":", "::", "0", "0:", "no colons at all\n"}) CHECK(groups.cores(odd) == 0);
  CHECK(quota_cores("/no/such/file", "/no/such/mount") == 0);
}

TEST(usable_cores__this_process_may_use_some) { CHECK(weft::engine::usable_cores() > 0); }
