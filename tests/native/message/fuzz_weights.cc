// Fuzzes the reader of weights files: a text gives weights from 0 to 1, or none and one line.
#include "native/message/path_weights.h"
#include "tests/native/fuzz/fuzz.h"

using namespace weft;
using fuzz::require;

std::vector<fuzz::Input> fuzz::corpus() {
  return {input_of(R"({"weft_weights":2,"pages":{"1":{"10.1.0.2":{"0":[1.0,0.25, 0.0],"11":[0,1]},"10.2.0.2":{}},)"
                   R"("2":{"10.0.0.9":{"0":[1e3]}}}})"),
          input_of(R"({"weft_weights":2,"written":"x","pages":{}})"),
          input_of(R"({"pages":{"1":{"::1":{"0":[0.5]}}},"weft_weights":2})")};
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t bytes) {
  message::PeerWeights weights;
  std::string error;
  const bool good =
      message::parse_weights(std::string(reinterpret_cast<const char*>(data), bytes), "1", &weights, &error);
  require(good == error.empty(), "weights are read, and there is an error; or neither");
  require(error.find('\n') == std::string::npos, "an error of several lines");
  require(good || weights.empty(), "a wrong file has weights");
  if (good) ++fuzz::accepted;
  for (const auto& [address, engines] : weights) {
    for (const auto& [engine, row] : engines) {
      for (const double weight : row) require(weight >= 0 && weight <= 1, "a weight is not from 0 to 1");
    }
  }
  return 0;
}
