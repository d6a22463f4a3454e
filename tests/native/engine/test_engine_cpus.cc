// Tests lists of CPUs, and which CPUs are near the devices, with a directory in the place of sysfs.
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "native/engine/setup/engine_cpus.h"
#include "tests/native/check.h"

using weft::engine::Cpus;

namespace {

// A directory with the file of each PCI device that says which CPUs are local to it.
class Sysfs {
 public:
  Sysfs() {
    char name[] = "/tmp/weft-cpus-XXXXXX";
    root_ = ::mkdtemp(name);
  }
  ~Sysfs() { std::filesystem::remove_all(root_); }
  std::string add(const std::string& device, const std::string& cpus) const {
    std::filesystem::create_directory(root_ + "/" + device);
    std::ofstream(root_ + "/" + device + "/local_cpulist") << cpus << "\n";
    return root_ + "/" + device;
  }

 private:
  std::string root_;
};

Cpus parsed(const std::string& text) {
  Cpus cpus;
  std::string error;
  return weft::engine::parse_cpus(text, &cpus, &error) ? cpus : Cpus{};
}

}  // namespace

TEST(engine_cpus__lists_as_the_kernel_writes_them) {
  CHECK(parsed("0") == (Cpus{0}));
  CHECK(parsed("0-3,8") == (Cpus{0, 1, 2, 3, 8}));
  CHECK(parsed("8, 2-3,3") == (Cpus{2, 3, 8}));
  CHECK(parsed("1023") == (Cpus{1023}));
}

TEST(engine_cpus__other_lists_are_refused) {
  for (const char* text : {"", ",", "x", "-1", "3-1", "1-", "-", "0x2", "1-2-3", "1024", "99999999999999", "1;2", "0 1",
                           "0,,1", "0,", "-0", "0--0"})
    CHECK(parsed(text).empty());
}

TEST(engine_cpus__not_more_engines_than_cpus) {
  CHECK_EQUAL(weft::engine::engines_for(1, {}), 1);
  CHECK_EQUAL(weft::engine::engines_for(31, {}), 7);
  CHECK_EQUAL(weft::engine::engines_for(256, {}), 8);
  CHECK_EQUAL(weft::engine::engines_for(256, {3, 4}), 2);
  CHECK_EQUAL(weft::engine::engines_for(8, {0, 1, 2, 3}), 2);
}

TEST(engine_cpus__near_the_devices) {
  const Sysfs sysfs;
  const std::string first = sysfs.add("first", "0-3"), second = sysfs.add("second", "2-5,9");
  const Cpus allowed{1, 2, 3, 4, 5, 6, 7};
  CHECK(weft::engine::near_cpus(allowed, {first}, 3) == (Cpus{1, 2, 3}));
  CHECK(weft::engine::near_cpus(allowed, {first, second}, 1) == (Cpus{1, 2, 3, 4, 5}));
}

TEST(engine_cpus__all_where_a_place_is_unknown) {
  const Sysfs sysfs;
  const std::string near = sysfs.add("near", "0-3"), odd = sysfs.add("odd", ""), far = sysfs.add("far", "40-43");
  const Cpus allowed{1, 2, 7};
  CHECK(weft::engine::near_cpus(allowed, {near, ""}, 1) == allowed);
  CHECK(weft::engine::near_cpus(allowed, {odd}, 1) == allowed);
  CHECK(weft::engine::near_cpus(allowed, {near + "/absent"}, 1) == allowed);
  CHECK(weft::engine::near_cpus(allowed, {far}, 1) == allowed);
  CHECK(weft::engine::near_cpus(allowed, {near}, 2) == (Cpus{1, 2}));
  CHECK(weft::engine::near_cpus(allowed, {near}, 3) == allowed);  // three engines would share two CPUs
}

TEST(engine_cpus__a_wish_outside_the_mask_is_an_error) {
  const Cpus allowed = weft::engine::allowed_cpus();
  CHECK(!allowed.empty());
  Cpus cpus;
  std::string error;
  CHECK(weft::engine::choose_cpus(std::to_string(allowed.front()) + ",1023", {}, 1, &cpus, &error));
  CHECK(cpus == (Cpus{allowed.front()}));
  CHECK(!weft::engine::choose_cpus("1023", {}, 1, &cpus, &error));
  CHECK(error.find("WEFT_ENGINE_CPUS=1023: the calling thread may use none of these CPUs") == 0);
  CHECK(!weft::engine::choose_cpus("near", {}, 1, &cpus, &error));
  CHECK(error.find("WEFT_ENGINE_CPUS=near: ") == 0);
  CHECK(weft::engine::choose_cpus("any", {}, 1, &cpus, &error));
  CHECK(cpus.empty());
}
