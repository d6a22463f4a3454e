// FNV-1a over the numbers of each rule, and not over the text: comments may differ.
#include "native/plugin/tuner/digest.h"

#include <new>
#include <string>

#include "native/engine/knobs.h"

namespace weft::nccl {
namespace {

constexpr std::uint64_t kBasis = 0xcbf29ce484222325, kPrime = 0x100000001b3;
constexpr std::uint64_t kUnread = 1;

std::uint64_t read_digest() noexcept {
  try {
    engine::Knobs knobs;
    std::string error;
    if (engine::load_knobs(&knobs, &error) != Status::ok || knobs.tune.empty()) return 0;
    std::vector<Rule> rules;
    return read_rules_file(knobs.tune, &rules, &error) ? digest_of(rules) : kUnread;
  } catch (const std::bad_alloc&) {
    return kUnread;
  }
}

}  // namespace

std::uint64_t digest_of(const std::vector<Rule>& rules) noexcept {
  if (rules.empty()) return 0;  // the same digest as without a file of rules: NCCL chooses in both cases
  std::uint64_t digest = kBasis;
  const auto take = [&digest](std::uint64_t number) {
    for (int byte = 0; byte < 8; ++byte) digest = (digest ^ (number >> (8 * byte) & 0xFF)) * kPrime;
  };
  for (const Rule& one : rules) {
    take(static_cast<std::uint64_t>(one.function));
    take(one.ranks);
    take(one.nodes);
    take(one.bytes_min);
    take(one.bytes_max);
    take(static_cast<std::uint64_t>(one.algorithm));
    take(static_cast<std::uint64_t>(one.protocol));
    take(static_cast<std::uint64_t>(one.channels));
  }
  return digest > kUnread ? digest : kBasis;
}

std::uint64_t rules_digest() noexcept {
  static const std::uint64_t digest = read_digest();
  return digest;
}

}  // namespace weft::nccl
