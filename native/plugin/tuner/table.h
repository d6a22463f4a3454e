// The rules of a tuning file: which algorithm, protocol and channels NCCL takes for a collective of a size. The file is
// text, a rule a line; `weft estimate tune` writes it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace weft::nccl {

struct Rule {
  int function = 0;
  std::uint64_t ranks = 0, nodes = 0;  // size of the communicators that the rule is for; 0: any
  std::uint64_t bytes_min = 0, bytes_max = 0;
  int algorithm = 0, protocol = 0;
  int channels = 0;  // 0: NCCL chooses
};

// Reads the text of a file of tuning rules. False, with the line and the reason in `error`, if it has a mistake; `out`
// is then empty.
bool read_rules(const std::string& text, std::vector<Rule>* out, std::string* error);

// Reads a file of tuning rules, if it is trusted (native/files/trusted_file.h).
bool read_rules_file(const std::string& file, std::vector<Rule>* out, std::string* error);

// The first rule for a collective; null: none.
const Rule* find_rule(const std::vector<Rule>& rules, int function, std::uint64_t bytes) noexcept;

}  // namespace weft::nccl
