// Tests that a tuning file gives its rules, and that a wrong or damaged one gives none, and the line of the mistake.
#include <cstdint>
#include <string>
#include <vector>

#include "native/core/random.h"
#include "native/plugin/tuner/abi_v5.h"
#include "native/plugin/tuner/table.h"
#include "tests/native/check.h"

using weft::nccl::find_rule;
using weft::nccl::read_rules;
using weft::nccl::Rule;
namespace abi = weft::nccl::tuner_v5;

namespace {

const std::string kFile =
    "# measured on two hosts\n"
    "weft_tune 1\n"
    "\n"
    "all_reduce 2 2 0 65536 ring ll 2   # small ones\r\n"
    "all_reduce 2 2 65537 18446744073709551615 tree simple 0\n"
    "\tall_gather 0 0 0 100 pat simple 64\n";

}  // namespace

TEST(tuning_table__gives_its_rules_in_order) {
  std::vector<Rule> rules;
  std::string error;
  CHECK(read_rules(kFile, &rules, &error));
  CHECK_EQUAL(rules.size(), std::size_t{3});
  CHECK_EQUAL(rules[0].ranks, std::uint64_t{2});
  CHECK_EQUAL(rules[0].channels, 2);
  const Rule* small = find_rule(rules, abi::kAllReduce, 65'536);
  CHECK(small == &rules[0]);
  CHECK_EQUAL(small->protocol, abi::kLl);
  const Rule* large = find_rule(rules, abi::kAllReduce, 65'537);
  CHECK(large == &rules[1]);
  CHECK_EQUAL(large->algorithm, abi::kTree);
  CHECK(find_rule(rules, abi::kAllGather, 101) == nullptr);
  CHECK(find_rule(rules, abi::kReduceScatter, 0) == nullptr);
}

TEST(tuning_table__a_mistake_is_said_with_its_line) {
  struct Case {
    const char *text, *said;
  };
  const Case cases[] = {
      {"", "the file is empty"},
      {"# nothing\n", "the file is empty"},
      {"weft_tune 2\n", "line 1: expected 'weft_tune 1'"},
      {"all_reduce 2 2 0 1 ring ll 0\n", "line 1: expected 'weft_tune 1'"},
      {"weft_tune 1\nall_reduce 2 2 0 1 ring ll\n", "line 2: expected operation, ranks"},
      {"weft_tune 1\nall_reduce 2 2 0 1 ring ll 0 0\n", "line 2: expected operation, ranks"},
      {"weft_tune 1\nbroadcast 2 2 0 1 ring ll 0\n", "line 2: 'broadcast' is none of all_reduce"},
      {"weft_tune 1\nall_reduce 2 2 0 1 nvls ll 0\n", "line 2: 'nvls' is none of ring, tree, pat"},
      {"weft_tune 1\nall_reduce 2 2 0 1 ring ll128 0\n", "line 2: 'll128' is none of ll, simple"},
      {"weft_tune 1\nall_reduce 2 2 0 -1 ring ll 0\n", "line 2: '-1' is no whole number"},
      {"weft_tune 1\nall_reduce 2 2 0 18446744073709551616 ring ll 0\n", "is no whole number"},
      {"weft_tune 1\nall_reduce 2 2 0 1 ring ll 65\n", "line 2: more than 64 channels"},
  };
  for (const Case& one : cases) {
    std::vector<Rule> rules(1);
    std::string error;
    CHECK(!read_rules(one.text, &rules, &error));
    CHECK(rules.empty());
    CHECK(error.find(one.said) != std::string::npos);
  }
}

TEST(tuning_table__ten_thousand_rules_at_most) {
  std::string text = "weft_tune 1\n";
  for (int rule = 0; rule < 10'000; ++rule) text += "all_reduce 0 0 0 1 ring ll 0\n";
  std::vector<Rule> rules;
  std::string error;
  CHECK(read_rules(text, &rules, &error));
  CHECK(!read_rules(text + "all_reduce 0 0 0 1 ring ll 0", &rules, &error));
  CHECK_EQUAL(error, std::string("line 10002: more than 10000 rules"));
}

TEST(tuning_table__damaged_text_gives_rules_or_one_line) {
  weft::core::Random random(7);
  for (int round = 0; round < 20'000; ++round) {
    std::string text = kFile;
    for (std::uint64_t change = random.next() % 4; change < 4; ++change) {
      text[random.next() % text.size()] = static_cast<char>(random.next() % 256);
    }
    text.resize(random.next() % (text.size() + 1));
    std::vector<Rule> rules;
    std::string error;
    const bool good = read_rules(text, &rules, &error);
    CHECK(good == error.empty());
    CHECK(good || rules.empty());
    for (const Rule& one : rules) CHECK(one.protocol == abi::kLl || one.protocol == abi::kSimple);
  }
}
