// Fuzzes the settings: a text changes its setting, or nothing and gives one line.
#include "native/engine/knobs.h"
#include "tests/native/fuzz/fuzz.h"

using namespace weft;
using fuzz::require;

// An input is the number of a setting, and then the text; or a number without a setting, and then NAME=TEXT.
std::vector<fuzz::Input> fuzz::corpus() {
  std::vector<Input> made;
  for (const engine::KnobInfo& knob : engine::knob_table()) {
    const auto number = static_cast<char>(made.size() / 3);
    made.push_back(input_of(number + knob.default_value));
    made.push_back(input_of(number + knob.wild.substr(0, knob.wild.find(','))));
    made.push_back(input_of('\xff' + knob.variable + "=" + knob.default_value));
  }
  for (const char* line :
       {"WEFT_FAULT=loss=0.1,seed=7,paths=0+3", "WEFT_FAULT=loss=0.1,loss=0.2", "WEFT_FAULT=los=1",
        "WEFT_RTO=min=2ms,max=1min", "WEFT_OPEN_BYTES=all=1GiB,address=64M", "WEFT_FAULT_LOSS=0.1"}) {
    made.push_back(input_of('\xff' + std::string(line)));
  }
  return made;
}

namespace {

std::string all_values(const engine::Knobs& knobs) {
  std::string values;
  for (const engine::KnobInfo& knob : engine::knob_table()) values += engine::knob_value(knobs, knob.field) + "\n";
  return values;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t bytes) {
  if (bytes == 0) return 0;
  const std::string line(reinterpret_cast<const char*>(data) + 1, bytes - 1);
  const std::vector<engine::KnobInfo>& table = engine::knob_table();
  const bool is_number = data[0] < table.size();
  const std::size_t equals = line.find('=');
  const std::string name = is_number ? table[data[0]].field : line.substr(0, equals);
  const std::string text = is_number ? line : equals == std::string::npos ? "" : line.substr(equals + 1);
  engine::Knobs knobs;
  const std::string before = all_values(knobs);
  std::string error;
  if (engine::set_knob(&knobs, name, text, &error) != Status::ok) {
    require(!error.empty(), "a text is refused without a reason");
    require(all_values(knobs) == before, "a text is refused, and a setting changed");
    return 0;
  }
  ++fuzz::accepted;
  require(error.empty(), "a text is accepted with an error: " + error);
  static_cast<void>(engine::check_knobs(knobs, &error));
  const std::string written = engine::knob_value(knobs, name);
  engine::Knobs again;
  require(engine::set_knob(&again, name, written, &error) == Status::ok && engine::knob_value(again, name) == written,
          name + "=" + written + " is not read as it is written: " + error);
  return 0;
}
