// NCCL's tuner: without WEFT_TUNE it leaves all choices to NCCL. All ranks must choose alike, or NCCL hangs, so a rank
// that cannot read the file fails to initialize.
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "native/engine/knobs.h"
#include "native/plugin/fork_check.h"
#include "native/plugin/plugin.h"
#include "native/plugin/tuner/abi_v6.h"
#include "native/plugin/tuner/table.h"

namespace weft::nccl {
namespace {

// The tuning rules for one communicator.
using Rules = std::vector<Rule>;

bool rules_of(const std::string& file, std::size_t ranks, std::size_t nodes, Rules* out, std::string* error) {
  Rules every;
  if (!read_rules_file(file, &every, error)) return false;
  for (const Rule& one : every) {
    if ((one.ranks == 0 || one.ranks == ranks) && (one.nodes == 0 || one.nodes == nodes)) out->push_back(one);
  }
  return true;
}

Result begin(void** context, std::uint64_t, std::size_t ranks, std::size_t nodes, Logger log, void*, void*) noexcept {
  *context = nullptr;
  if (in_forked_child()) return Result::success;
  try {
    engine::Knobs knobs;
    std::string error;
    auto rules = std::make_unique<Rules>();
    // A wrong knob is reported by the network plugin, which reads all of them.
    if (engine::load_knobs(&knobs, &error) != Status::ok || knobs.tune.empty()) return Result::success;
    const bool good = rules_of(knobs.tune, ranks, nodes, rules.get(), &error);
    if (log != nullptr && good) {
      log(kLogInfo, kLogInit, "weft", 0, "TUNER/weft: %zu rules of %s for %zu ranks on %zu nodes", rules->size(),
          knobs.tune.c_str(), ranks, nodes);
    } else if (log != nullptr) {
      log(kLogWarn, kLogInit, "weft", 0, "TUNER/weft: WEFT_TUNE=%s: %s", knobs.tune.c_str(), error.c_str());
    }
    if (!good) return Result::invalid_usage;
    *context = rules.release();
    return Result::success;
  } catch (const std::bad_alloc&) {
    return Result::system_error;
  }
}

Result choose(void* context, int function, std::size_t bytes, int, float** costs, int algorithms, int protocols, int,
              int* channels) noexcept {
  if (context == nullptr || costs == nullptr) return Result::success;
  const Rule* rule = find_rule(*static_cast<const Rules*>(context), function, bytes);
  if (rule == nullptr || rule->algorithm >= algorithms || rule->protocol >= protocols) return Result::success;
  // The type is a pointer to pointers, but NCCL passes a contiguous array [algorithms][protocols] of floats.
  float* cost = reinterpret_cast<float*>(costs) + rule->algorithm * protocols + rule->protocol;
  if (*cost == tuner_v5::kIgnored) return Result::success;
  *cost = 0.0F;
  if (rule->channels > 0 && channels != nullptr) *channels = rule->channels;
  return Result::success;
}

Result end(void* context) noexcept {
  delete static_cast<Rules*>(context);
  return Result::success;
}

}  // namespace
}  // namespace weft::nccl

extern "C" {
__attribute__((visibility("default"), used)) constinit weft::nccl::tuner_v5::Tuner ncclTunerPlugin_v5 = {
    weft::nccl::kName, weft::nccl::begin, weft::nccl::choose, weft::nccl::end};
__attribute__((visibility("default"), used)) constinit weft::nccl::tuner_v6::Tuner ncclTunerPlugin_v6 = {
    {weft::nccl::kName, weft::nccl::begin, weft::nccl::choose, weft::nccl::end}, nullptr};
}
