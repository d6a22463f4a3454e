// Fuzzes the reader of plan files: a text gives ports from 1 to 65535, or no pair and one line.
#include "native/datapath/udp/port_plan.h"
#include "tests/native/fuzz/fuzz.h"

using namespace weft;
using fuzz::require;

std::vector<fuzz::Input> fuzz::corpus() {
  return {input_of(R"({"weft_plan":1,"fabric":"x\"y","links":["a>b",[1.5e3,{"k":null}]],"jobs":{
    "one":[{"from":"a","from_address":"10.0.0.2","to_address":"10.1.0.2","ports":[[20000,20001],[20003,20002]],
            "weights":[0.5,0.5]},{"from_address":"10.1.0.2","to_address":"10.0.0.2","ports":[]}],
    "two":[{"from_address":"10.0.0.2","to_address":"10.1.0.2","ports":[[30000,30001]]}]}})"),
          input_of(R"({"weft_plan":1,"jobs":{}})"),
          input_of(R"({"later":{"a":[true,-1,[[[[{}]]]]]},"weft_plan":1,"jobs":{"a":[{"from_address":"10.0.0.2",)"
                   R"("to_address":"10.1.0.2","ports":[[1,65535]]}]}})")};
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t bytes) {
  datapath::PortPlan plan;
  std::string error;
  const bool good = plan.parse(std::string(reinterpret_cast<const char*>(data), bytes), &error);
  require(good == error.empty(), "a plan is read, and there is an error; or neither");
  require(error.find('\n') == std::string::npos, "an error of several lines");
  require(good || plan.empty(), "a wrong plan has pairs");
  if (!good) return 0;
  ++fuzz::accepted;
  for (const auto& pair : plan.pairs("10.0.0.2", "10.1.0.2")) {
    require(pair.here != 0 && pair.there != 0, "a port is 0");
  }
  return 0;
}
