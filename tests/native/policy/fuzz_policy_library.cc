// Fuzzes the check of compiled policies before dlopen, and the check of their descriptors: no read beyond the file.
//
// An input is a byte: 0, and then the image of a library, or 1, and then the bytes of a descriptor.
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "native/policy/library_file.h"
#include "native/policy/loader.h"
#include "tests/native/fuzz/fuzz.h"

namespace {

using namespace weft;
using fuzz::require;

fuzz::Input image(const char* name) {
  const auto policies = std::filesystem::read_symlink("/proc/self/exe").parent_path() / "policies";
  std::ifstream in(policies / name, std::ios::binary);
  require(in.good(), std::string(name) + " is not built");
  fuzz::Input made{0};
  made.insert(made.end(), std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>());
  return made;
}

fuzz::Input descriptor(policy::Family family) {
  fuzz::Input made(1 + sizeof(policy::Descriptor), 1);
  std::memcpy(made.data() + 1, &policy::fixed(family), sizeof(policy::Descriptor));
  return made;
}

}  // namespace

std::vector<fuzz::Input> fuzz::corpus() {
  return {image("window_swift.so"),           image("path_power_of_two.so"),    descriptor(policy::Family::window),
          descriptor(policy::Family::credit), descriptor(policy::Family::path), descriptor(policy::Family::loss)};
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t bytes) {
  if (bytes == 0) return 0;
  std::string complaint;
  if (data[0] == 0) {
    complaint = policy::image_complaint(std::as_bytes(std::span(data + 1, bytes - 1)));
  } else {
    policy::Descriptor copy{};
    std::memcpy(&copy, data + 1, std::min(bytes - 1, sizeof copy));
    complaint = policy::complaint(copy);
  }
  require(complaint.find('\n') == std::string::npos, "a complaint of several lines");
  if (complaint.empty()) ++fuzz::accepted;
  return 0;
}
