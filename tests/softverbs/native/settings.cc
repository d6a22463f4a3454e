// Reads the environment variables, using a table of their names and ranges. Unknown names are errors; otherwise a
// misspelt fault would be ignored silently.
#include "tests/softverbs/native/settings.h"

#include <charconv>
#include <cstring>
#include <sstream>
#include <string_view>

extern "C" char** environ;  // NOLINT: declared by no header under strict ISO

namespace weft::softverbs {
namespace {

constexpr std::string_view kPrefix = "SOFTVERBS_";

struct Row {
  std::string_view name;
  std::int64_t Settings::* whole;
  double Settings::* real;
  double low, high;
};
constexpr double kSecondNs = 1e9;
constexpr Row kRows[] = {
    {"SEED", &Settings::seed, nullptr, 0, 1e15},
    {"DEVICES", &Settings::devices, nullptr, 1, kDevicesMax},
    {"MTU_BYTES", &Settings::mtu_bytes, nullptr, 256, 4096},
    {"LOSS", nullptr, &Settings::loss, 0, 0.9},
    {"REORDER", nullptr, &Settings::reorder, 0, 0.9},
    {"DUPLICATE", nullptr, &Settings::duplicate, 0, 0.9},
    {"LATE", nullptr, &Settings::late, 0, 0.9},
    {"STALL", nullptr, &Settings::stall, 0, 0.9},
    {"REORDER_NS_MAX", &Settings::reorder_ns_max, nullptr, 1, kSecondNs},
    {"LATE_NS_MAX", &Settings::late_ns_max, nullptr, 1, 60 * kSecondNs},
    {"STALL_NS_MAX", &Settings::stall_ns_max, nullptr, 1, kSecondNs},
};

template <class T>
bool parse(std::string_view text, const Row& row, T* out) {
  T value{};
  const auto [stop, code] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (code != std::errc() || stop != text.data() + text.size()) return false;
  if (!(static_cast<double>(value) >= row.low && static_cast<double>(value) <= row.high)) return false;
  *out = value;
  return true;
}

bool set(Settings* out, std::string_view name, std::string_view text, std::string* error) {
  if (name == "CUDA_LIBRARY") {
    out->cuda_library = text;
    return true;
  }
  std::ostringstream said;
  said << kPrefix << name;
  for (const Row& row : kRows) {
    if (row.name != name) continue;
    const bool read = row.whole != nullptr ? parse(text, row, &(out->*row.whole)) : parse(text, row, &(out->*row.real));
    if (read) return true;
    said << "=" << text << " is not in " << row.low << ".." << row.high;
    *error = said.str();
    return false;
  }
  said << " is not a variable of softverbs; its variables are";
  for (const Row& row : kRows) said << " " << kPrefix << row.name;
  said << " " << kPrefix << "CUDA_LIBRARY";
  *error = said.str();
  return false;
}

}  // namespace

bool read_settings(Settings* out, std::string* error) {
  Settings read;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view pair(*entry);
    const std::size_t equals = pair.find('=');
    if (pair.substr(0, kPrefix.size()) != kPrefix || equals == std::string_view::npos) continue;
    if (!set(&read, pair.substr(kPrefix.size(), equals - kPrefix.size()), pair.substr(equals + 1), error)) return false;
  }
  if ((read.mtu_bytes & (read.mtu_bytes - 1)) != 0) {
    *error = "SOFTVERBS_MTU_BYTES=" + std::to_string(read.mtu_bytes) + " is not one of 256, 512, 1024, 2048, 4096";
    return false;
  }
  // NOLINTNEXTLINE(performance-use-std-move)
  *out = read;
  return true;
}

std::string describe(const Settings& settings) {
  std::ostringstream text;
  text << "softverbs, no NIC: seed " << settings.seed;
  const auto say = [&](const char* what, double value) {
    if (value > 0) text << ", " << what << " " << value;
  };
  say("loss", settings.loss);
  say("reorder", settings.reorder);
  say("duplicate", settings.duplicate);
  say("late", settings.late);
  say("stall", settings.stall);
  return text.str();
}

}  // namespace weft::softverbs
