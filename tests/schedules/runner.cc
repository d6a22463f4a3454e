// Runs random fault schedules and prints statistics and violations as one line of JSON.
// weft_schedules FROM COUNT [POLICY_DIRECTORY [VIOLATIONS_MAX]]; status 0 if all invariants held,
// else 1.
#include <array>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <set>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "native/policy/loader.h"
#include "tests/native/rig/rig.h"

namespace weft::sim {
namespace {

constexpr std::array<const char*, 16> kKinds = {
    "loss",  "reorder",     "duplicate", "corrupt", "delay",   "dead_path",  "dead_peer",    "replay",
    "stray", "early_close", "too_long",  "swap",    "windows", "late_reads", "staged_sends", "staged_receives"};

struct Menu {
  PolicyMenu choices;
  std::vector<std::shared_ptr<const policy::Library>> libraries;

  bool add(std::vector<core::PolicyChoice>* to, policy::Family family, const std::string& name,
           const std::string& directory) {
    std::string error;
    libraries.push_back(policy::find(family, name, {directory}, &error));
    if (libraries.back() == nullptr) {
      std::fprintf(stderr, "weft_schedules: %s\n", error.c_str());
      return false;
    }
    to->push_back({&libraries.back()->descriptor(), nullptr});
    return true;
  }
};

struct Totals {
  std::unordered_set<u64> distinct;
  std::array<u64, kKinds.size()> kinds{};
  std::vector<std::string> violations;
  u64 fingerprint = 0;
  i64 hung = 0, corrupt_messages = 0, completed = 0, failed = 0;
  i64 segments_sent = 0, segments_resent = 0, data_lost = 0, policies_failed = 0;

  void add(u64 seed, const Schedule& schedule, const RunReport& report) {
    distinct.insert(schedule_hash(schedule));
    for (std::size_t i = 0; i < kinds.size(); ++i) kinds[i] += fault_kinds(schedule) >> i & 1u;
    if (!report.violation.empty()) violations.push_back(std::to_string(seed) + ": " + report.violation);
    // Combines all results in order, so that two runs agree only if every schedule had the same result.
    fingerprint = (fingerprint ^ report.fingerprint) * 0x100000001B3u;
    hung += report.hung ? 1 : 0;
    corrupt_messages += report.corrupt_messages;
    completed += report.completed;
    failed += report.failed;
    data_lost += report.link.lost_data;
    policies_failed += report.policies_failed;
    for (const core::FlowCounters& counters : report.counters) {
      segments_sent += counters.segments_sent;
      segments_resent += counters.segments_resent;
    }
  }
};

// Quotes text for JSON. Violations are plain text, but paths and names may contain any character.
std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) out += c == '"' || c == '\\' || static_cast<unsigned char>(c) < ' ' ? '?' : c;
  return out + '"';
}

void print(u64 schedules, const Totals& totals) {
  std::printf("{\"schedules\": %" PRIu64 ", \"distinct\": %zu, \"kinds\": {", schedules, totals.distinct.size());
  for (std::size_t i = 0; i < kKinds.size(); ++i) {
    std::printf("%s\"%s\": %" PRIu64, i == 0 ? "" : ", ", kKinds[i], totals.kinds[i]);
  }
  std::printf("}, \"hung\": %" PRId64 ", \"corrupt_messages\": %" PRId64 ", \"completed\": %" PRId64
              ", \"failed\": %" PRId64 ", \"segments_sent\": %" PRId64 ", \"segments_resent\": %" PRId64
              ", \"data_lost\": %" PRId64 ", \"policies_failed\": %" PRId64 ", \"fingerprint\": \"%016" PRIx64
              "\", \"violations\": [",
              totals.hung, totals.corrupt_messages, totals.completed, totals.failed, totals.segments_sent,
              totals.segments_resent, totals.data_lost, totals.policies_failed, totals.fingerprint);
  for (std::size_t i = 0; i < totals.violations.size(); ++i) {
    std::printf("%s%s", i == 0 ? "" : ", ", quoted(totals.violations[i]).c_str());
  }
  std::printf("]}\n");
}

// Adds all shipped policies, because the core's invariants must hold with any of them.
bool fill(Menu* menu, const std::string& directory) {
  PolicyMenu& to = menu->choices;
  const std::pair<policy::Family, std::vector<core::PolicyChoice>*> lists[] = {
      {policy::Family::window, &to.window},
      {policy::Family::path, &to.path},
      {policy::Family::loss, &to.loss},
      {policy::Family::credit, &to.credit},
  };
  std::set<std::string> stems;  // sorted, so that a seed chooses the same policies on every machine
  std::error_code failed;
  for (const auto& file : std::filesystem::directory_iterator(directory, failed)) {
    if (file.path().extension() == ".so") stems.insert(file.path().stem().string());
  }
  bool ok = true;
  for (const auto& [family, list] : lists) {
    const std::string prefix = std::string(policy::family_name(family)) + "_";
    for (const std::string& stem : stems) {
      if (stem.starts_with(prefix)) ok = ok && menu->add(list, family, stem.substr(prefix.size()), directory);
    }
    if (list->empty()) {
      std::fprintf(stderr, "weft_schedules: no %s policies in %s\n", policy::family_name(family), directory.c_str());
      return false;
    }
  }
  return ok;
}

int run(u64 from, u64 count, const std::string& directory, std::size_t violations_max) {
  Menu menu;
  if (!fill(&menu, directory)) return 2;
  Totals totals;
  u64 ran = 0;
  while (ran < count && totals.violations.size() < violations_max) {
    const u64 seed = from + ran++;
    const Schedule schedule = draw_schedule(seed, menu.choices);
    totals.add(seed, schedule, run_schedule(schedule));
  }
  print(ran, totals);
  return totals.violations.empty() ? 0 : 1;
}

}  // namespace
}  // namespace weft::sim

int main(int argc, char** argv) {
  if (argc < 3 || argc > 5) {
    std::fprintf(stderr, "usage: weft_schedules FROM COUNT [POLICY_DIRECTORY [VIOLATIONS_MAX]]\n");
    return 2;
  }
  const auto number = [](const char* text) { return std::strtoull(text, nullptr, 10); };
  // By default, use the shipped policies of the build directory that contains this executable.
  const std::string directory =
      argc > 3 ? argv[3] : (std::filesystem::read_symlink("/proc/self/exe").parent_path() / "policies").string();
  return weft::sim::run(number(argv[1]), number(argv[2]), directory, argc > 4 ? number(argv[4]) : 10);
}
