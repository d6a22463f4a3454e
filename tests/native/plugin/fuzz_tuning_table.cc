// Fuzzes the reader of tuning files: a text gives rules that NCCL can follow, or none and one line.
#include "native/plugin/tuner/abi_v5.h"
#include "native/plugin/tuner/table.h"
#include "tests/native/fuzz/fuzz.h"

using namespace weft;
using fuzz::require;
namespace abi = weft::nccl::tuner_v5;

std::vector<fuzz::Input> fuzz::corpus() {
  return {input_of("# measured on two hosts\nweft_tune 1\n\nall_reduce 2 2 0 65536 ring ll 2   # small ones\r\n"
                   "all_reduce 2 2 65537 18446744073709551615 tree simple 0\n\tall_gather 0 0 0 100 pat simple 64\n"),
          input_of("weft_tune 1\nall_reduce 2 2 0 1 ring ll 0\n"), input_of("weft_tune 1\n")};
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t bytes) {
  std::vector<nccl::Rule> rules;
  std::string error;
  const bool good = nccl::read_rules(std::string(reinterpret_cast<const char*>(data), bytes), &rules, &error);
  require(good == error.empty(), "rules are read, and there is an error; or neither");
  require(error.find('\n') == std::string::npos, "an error of several lines");
  require(good || rules.empty(), "a wrong file has rules");
  if (good) ++fuzz::accepted;
  for (const nccl::Rule& rule : rules) {
    require(rule.protocol == abi::kLl || rule.protocol == abi::kSimple, "a protocol that NCCL does not have");
    require(rule.channels >= 0 && rule.channels <= 64, "a number of channels that NCCL does not have");
    require(rule.bytes_min <= rule.bytes_max || nccl::find_rule({rule}, rule.function, rule.bytes_min) == nullptr,
            "an empty range of sizes has a size");
  }
  return 0;
}
