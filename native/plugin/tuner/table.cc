// Reads the rules of a tuning file, and finds the one for a collective.
#include "native/plugin/tuner/table.h"

#include <array>
#include <charconv>
#include <string_view>
#include <system_error>

#include "native/files/trusted_file.h"
#include "native/plugin/tuner/abi_v5.h"

namespace weft::nccl {
namespace {

constexpr std::string_view kHead = "weft_tune 1";
constexpr std::size_t kFields = 8;
constexpr std::size_t kRulesMax = 10'000;
constexpr std::size_t kFileBytesMax = 4u << 20;
constexpr std::uint64_t kChannelsMax = 64;

struct Name {
  std::string_view text;
  int number;
};
constexpr std::array kFunctions = {Name{"all_reduce", tuner_v5::kAllReduce}, Name{"all_gather", tuner_v5::kAllGather},
                                   Name{"reduce_scatter", tuner_v5::kReduceScatter}};
constexpr std::array kAlgorithms = {Name{"ring", tuner_v5::kRing}, Name{"tree", tuner_v5::kTree},
                                    Name{"pat", tuner_v5::kPat}};
// LL128 is missing: it needs 128-byte stores to arrive whole, which copies by a CPU do not ensure.
constexpr std::array kProtocols = {Name{"ll", tuner_v5::kLl}, Name{"simple", tuner_v5::kSimple}};

std::string quoted(std::string_view text) {
  std::string made(1, '\'');
  return made.append(text.substr(0, 40)).append(1, '\'');
}

template <std::size_t count>
bool number_of(const std::array<Name, count>& names, std::string_view text, int* out, std::string* error) {
  std::string known;
  for (const Name& one : names) {
    if (one.text == text) {
      *out = one.number;
      return true;
    }
    if (!known.empty()) known += ", ";
    known += one.text;
  }
  *error = quoted(text).append(" is none of ").append(known);
  return false;
}

bool read_number(std::string_view text, std::uint64_t* out, std::string* error) {
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), *out);
  if (problem == std::errc() && end == text.data() + text.size()) return true;
  *error = quoted(text).append(" is no whole number");
  return false;
}

// The words of a line up to a # (a comment), but at most kFields + 1, which is enough to see that there are too many.
std::vector<std::string_view> words_of(std::string_view line) {
  std::vector<std::string_view> found;
  line = line.substr(0, line.find('#'));
  while (found.size() <= kFields) {
    const std::size_t begin = line.find_first_not_of(" \t\r");
    if (begin == std::string_view::npos) break;
    line.remove_prefix(begin);
    const std::size_t length = line.find_first_of(" \t\r");
    found.push_back(line.substr(0, length));
    line.remove_prefix(length == std::string_view::npos ? line.size() : length);
  }
  return found;
}

bool read_rule(const std::vector<std::string_view>& words, Rule* out, std::string* error) {
  if (words.size() != kFields) {
    *error = "expected operation, ranks, nodes, least bytes, most bytes, algorithm, protocol, channels";
    return false;
  }
  std::uint64_t channels = 0;
  const bool good = number_of(kFunctions, words[0], &out->function, error) &&
                    read_number(words[1], &out->ranks, error) && read_number(words[2], &out->nodes, error) &&
                    read_number(words[3], &out->bytes_min, error) && read_number(words[4], &out->bytes_max, error) &&
                    number_of(kAlgorithms, words[5], &out->algorithm, error) &&
                    number_of(kProtocols, words[6], &out->protocol, error) && read_number(words[7], &channels, error);
  if (!good) return false;
  if (channels > kChannelsMax) {
    error->assign("more than ").append(std::to_string(kChannelsMax)).append(" channels");
    return false;
  }
  out->channels = static_cast<int>(channels);
  return true;
}

}  // namespace

bool read_rules(const std::string& text, std::vector<Rule>* out, std::string* error) {
  out->clear();
  std::string_view rest = text;
  std::string problem;
  bool has_head = false;
  for (std::size_t number = 1; !rest.empty() && problem.empty(); ++number) {
    const std::size_t length = rest.find('\n');
    const std::string_view line = rest.substr(0, length);
    rest.remove_prefix(length == std::string_view::npos ? rest.size() : length + 1);
    const std::vector<std::string_view> words = words_of(line);
    if (words.empty()) continue;
    Rule rule;
    if (!has_head) {
      has_head = words.size() == 2 && words[0] == kHead.substr(0, 9) && words[1] == kHead.substr(10);
      if (!has_head) problem.append("expected ").append(quoted(kHead));
    } else if (out->size() == kRulesMax) {
      problem.append("more than ").append(std::to_string(kRulesMax)).append(" rules");
    } else if (read_rule(words, &rule, &problem)) {
      out->push_back(rule);
    }
    if (!problem.empty()) problem = std::string("line ").append(std::to_string(number)).append(": ").append(problem);
  }
  if (problem.empty() && !has_head) problem = "the file is empty: weft estimate tune writes one";
  if (problem.empty()) return true;
  out->clear();
  *error = problem;
  return false;
}

bool read_rules_file(const std::string& file, std::vector<Rule>* out, std::string* error) {
  out->clear();
  std::string text;
  return files::read_trusted(file, files::Readers::anyone, kFileBytesMax, &text, error) && read_rules(text, out, error);
}

const Rule* find_rule(const std::vector<Rule>& rules, int function, std::uint64_t bytes) noexcept {
  for (const Rule& one : rules) {
    if (one.function == function && one.bytes_min <= bytes && bytes <= one.bytes_max) return &one;
  }
  return nullptr;
}

}  // namespace weft::nccl
