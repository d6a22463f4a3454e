// Tests which compiled policies the loader accepts, which it refuses and with which texts, and how `fixed` behaves.
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "native/policy/loader.h"
#include "tests/native/check.h"

using namespace weft::policy;

namespace {

// The directory of the shipped policies in the build folder, beside the test executables.
std::string policies() { return (std::filesystem::read_symlink("/proc/self/exe").parent_path() / "policies").string(); }

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

std::vector<char> content(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

// Each image is written to a new file, because the dynamic loader identifies files by inode.
std::shared_ptr<const Library> load_image(const std::vector<char>& image, std::string* error) {
  const auto path = std::filesystem::temp_directory_path() / ("weft_image_" + std::to_string(::getpid()) + ".so");
  std::ofstream(path, std::ios::binary).write(image.data(), static_cast<std::streamsize>(image.size()));
  auto library = Library::load(path.string(), error);
  std::filesystem::remove(path);
  return library;
}

constexpr Family kFamilies[] = {Family::window, Family::credit, Family::path, Family::loss};

}  // namespace

TEST(loader__fixed_is_linked_in_for_every_family) {
  for (Family family : kFamilies) {
    CHECK_EQUAL(complaint(fixed(family)), "");
    CHECK_EQUAL(fixed(family).family, static_cast<std::uint32_t>(family));
    CHECK_EQUAL(std::string(fixed(family).name), "fixed");
    std::string error;
    const auto library = find(family, "fixed", {}, &error);
    CHECK(library != nullptr);
    CHECK(&library->descriptor() == &fixed(family));
  }
}

TEST(loader__fixed_window_answers) {
  const Descriptor& window = fixed(Family::window);
  WindowEvent event{};
  event.window_bytes_max = 1 << 30;
  WindowResult result{};
  CHECK_EQUAL(window.hooks[hook::window_ack](nullptr, nullptr, 0, window.params_default, &event, &result), 0);
  CHECK_EQUAL(result.window_bytes, 4194304.0);
  CHECK_EQUAL(result.pacing_bytes_per_s, 0.0);
}

TEST(loader__fixed_paths_take_turns_over_the_usable) {
  const Descriptor& path = fixed(Family::path);
  std::vector<PathHead> paths(4, PathHead{1, 0, 0});
  paths[2].usable = 0;
  std::vector<std::int64_t> flow(path.flow_bytes / 8);
  PathEvent event{};
  PathResult result{};
  std::string taken;
  for (int i = 0; i < 6; ++i) {
    CHECK_EQUAL(path.hooks[hook::path_pick](flow.data(), paths.data(), 4, path.params_default, &event, &result), 0);
    taken += std::to_string(result.path);
  }
  CHECK_EQUAL(taken, "130130");
}

TEST(loader__a_shipped_policy_is_found_by_name_and_by_path) {
  std::string error;
  const auto by_name = find(Family::window, "swift", {"/nonexistent", policies()}, &error);
  CHECK_EQUAL(error, "");
  CHECK(by_name != nullptr);
  CHECK_EQUAL(std::string(by_name->descriptor().name), "swift");
  CHECK(find(Family::window, policies() + "/window_swift.so", {}, &error) != nullptr);
}

TEST(loader__an_unknown_name_lists_what_exists) {
  std::string error;
  CHECK(find(Family::path, "teleport", {policies()}, &error) == nullptr);
  CHECK(has(error, "no path policy 'teleport'"));
  CHECK(has(error, "fixed, flowlet, mixed, oblivious, plb, power_of_two"));
}

TEST(loader__a_policy_of_another_family_is_refused) {
  std::string error;
  CHECK(find(Family::window, policies() + "/loss_rack.so", {}, &error) == nullptr);
  CHECK(has(error, "holds a loss policy; a window policy is wanted"));
}

TEST(loader__a_name_that_the_library_does_not_carry_is_refused) {
  const auto folder = std::filesystem::temp_directory_path() / ("weft_loader_" + std::to_string(std::rand()));
  std::filesystem::create_directories(folder);
  std::filesystem::copy_file(policies() + "/window_swift.so", folder / "window_other.so",
                             std::filesystem::copy_options::overwrite_existing);
  std::string error;
  CHECK(find(Family::window, "other", {folder.string()}, &error) == nullptr);
  CHECK(has(error, "holds the policy 'swift', not 'other'"));
  std::filesystem::remove_all(folder);
}

TEST(loader__what_is_no_library_is_refused) {
  std::string error;
  CHECK(Library::load("/nonexistent/x.so", &error) == nullptr);
  CHECK(has(error, "/nonexistent/x.so"));
  const auto text = std::filesystem::temp_directory_path() / "weft_loader_text.so";
  std::ofstream(text) << "not a library";
  CHECK(Library::load(text.string(), &error) == nullptr);
  CHECK(has(error, "not a compiled policy (weft policy compile FILE.py"));
  std::filesystem::remove(text);
  CHECK(Library::load("/lib/x86_64-linux-gnu/libm.so.6", &error) == nullptr);
  CHECK(Library::load("/tmp", &error) == nullptr);
  CHECK(has(error, "it is not a regular file"));
  CHECK(Library::load("/nonexistent/x.so", nullptr) == nullptr);
}

TEST(loader__whatever_is_cut_off_it_is_refused) {
  const std::vector<char> whole = content(policies() + "/window_swift.so");
  CHECK(whole.size() > 4096);
  for (std::size_t bytes = 0; bytes < whole.size(); bytes += bytes < 1024 || bytes % 4096 == 0 ? 1 : 31) {
    std::string error;
    CHECK(load_image({whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(bytes)}, &error) == nullptr);
    CHECK(has(error, bytes < 4 ? "not a compiled policy" : "damaged or cut short"));
  }
  CHECK(load_image(whole, nullptr) != nullptr);
}

// Damages tables that dlopen reads: headers, segments, dynamic entries, sections. Libraries with harmless damage may be
// loaded.
TEST(loader__damaged_tables_never_reach_the_dynamic_loader) {
  const std::vector<char> whole = content(policies() + "/window_swift.so");
  const auto at = [&](std::size_t offset) {
    std::uint64_t value;
    std::memcpy(&value, whole.data() + offset, 8);
    return static_cast<std::size_t>(value);
  };
  const auto half = [&](std::size_t offset) { return static_cast<unsigned char>(whole[offset]) + 0u; };
  std::vector<std::pair<std::size_t, std::size_t>> tables{
      {0, 64}, {at(32), at(32) + 56u * half(56)}, {at(40), at(40) + 64u * half(60)}};
  for (std::size_t segment = at(32); segment < tables[1].second; segment += 56) {
    if (whole[segment] == 2 && whole[segment + 3] == 0)
      tables.emplace_back(at(segment + 8), at(segment + 8) + at(segment + 32));
  }
  CHECK_EQUAL(tables.size(), 4u);
  std::uint64_t state = 1;
  const auto random = [&] { return state = state * 6364136223846793005u + 1442695040888963407u, state >> 33; };
  int refused = 0, tried = 0;
  for (const auto& [from, until] : tables) {
    for (std::size_t i = from; i < until; ++i) {
      for (const int kind : {0, 1, 2}) {
        std::vector<char> broken = whole;
        broken[i] = kind == 0   ? static_cast<char>(broken[i] ^ (1 << random() % 8))
                    : kind == 1 ? static_cast<char>(random())
                                : static_cast<char>(~broken[i]);
        refused += load_image(broken, nullptr) == nullptr ? 1 : 0;
        ++tried;
      }
    }
  }
  for (int round = 0; round < 2000; ++round, ++tried) {
    std::vector<char> broken = whole;
    const auto& [from, until] = tables[random() % tables.size()];
    for (std::uint64_t bytes = 1 + random() % 8; bytes != 0; --bytes) {
      broken[from + random() % (until - from)] = static_cast<char>(random());
    }
    refused += load_image(broken, nullptr) == nullptr ? 1 : 0;
  }
  CHECK(refused > tried / 2);
}

TEST(loader__a_library_that_was_compiled_before_a_field_was_added_is_taken) {
  Descriptor old = fixed(Family::window);
  old.result_bytes = 16;
  old.descriptor_bytes = kDescriptorBytesMin;
  old.presets = "ignored";
  CHECK_EQUAL(complaint(old), "");
  CHECK_EQUAL(std::string(presets_of(old)), "");
  old.result_bytes = 20;
  CHECK(has(complaint(old), "event or result"));
}

TEST(loader__a_descriptor_that_does_not_fit_is_named) {
  const auto broken = [](auto change) {
    Descriptor copy = fixed(Family::path);
    change(copy);
    return complaint(copy);
  };
  CHECK(has(broken([](Descriptor& d) { d.descriptor_bytes = 100; }), "too short"));
  CHECK_EQUAL(broken([](Descriptor& d) { d.descriptor_bytes += 64; }), "");
  CHECK(has(broken([](Descriptor& d) { d.abi_version = 9; }), "ABI 9"));
  CHECK(has(broken([](Descriptor& d) { d.family = 0; }), "family"));
  CHECK(has(broken([](Descriptor& d) { d.family = 77; }), "family"));
  CHECK(has(broken([](Descriptor& d) { d.event_bytes += 8; }), "event or result"));
  CHECK(has(broken([](Descriptor& d) { d.result_bytes = 0; }), "event or result"));
  CHECK(has(broken([](Descriptor& d) { d.event_bytes -= 8; }), "event or result"));
  CHECK(has(broken([](Descriptor& d) { d.flow_bytes = 4104; }), "size"));
  CHECK(has(broken([](Descriptor& d) { d.flow_bytes = 12; }), "size"));
  CHECK(has(broken([](Descriptor& d) { d.shared_bytes = 8; }), "size"));
  CHECK(has(broken([](Descriptor& d) { d.params_default = nullptr; }), "default parameters"));
  CHECK(has(broken([](Descriptor& d) { d.params_fields = nullptr; }), "name its parameters"));
  CHECK(has(broken([](Descriptor& d) { d.hook_count = 4; }), "number of hooks"));
  CHECK(has(broken([](Descriptor& d) { d.hooks[1] = nullptr; }), "hook is missing"));
  CHECK(has(broken([](Descriptor& d) { std::memset(d.name, 'x', sizeof d.name); }), "not terminated"));
  CHECK(has(broken([](Descriptor& d) { std::strcpy(d.cpu_baseline, "s390x"); }), "s390x"));
}
