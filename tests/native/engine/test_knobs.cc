// Tests the knob table as a user sees it: defaults, ranges, misspelt names, error texts.
#include <cstdlib>
#include <string>

#include "native/engine/knobs.h"
#include "tests/native/check.h"

using weft::Status;
using namespace weft::engine;

TEST(knobs__every_default_lies_in_its_own_range) {
  for (const KnobInfo& info : knob_table()) {
    Knobs knobs;
    std::string error;
    CHECK_EQUAL(knob_value(knobs, info.field), info.default_value);
    CHECK_EQUAL(set_knob(&knobs, info.field, info.default_value, &error), Status::ok);
    CHECK_EQUAL(knob_value(knobs, info.variable), info.default_value);
    CHECK(!info.sentence.empty());
  }
}

TEST(knobs__every_wild_value_is_accepted) {
  for (const KnobInfo& info : knob_table()) {
    if (info.type == "text") continue;
    std::size_t from = 0;
    while (from <= info.wild.size() && !info.wild.empty()) {
      const std::size_t comma = std::min(info.wild.find(',', from), info.wild.size());
      Knobs knobs;
      std::string error;
      CHECK_EQUAL(set_knob(&knobs, info.variable, info.wild.substr(from, comma - from), &error), Status::ok);
      from = comma + 1;
    }
  }
}

TEST(knobs__a_value_out_of_range_names_knob_value_and_range) {
  Knobs knobs;
  std::string error;
  CHECK_EQUAL(set_knob(&knobs, "paths", "257", &error), Status::invalid_argument);
  CHECK_EQUAL(knobs.paths, 0);
  CHECK_EQUAL(error, "WEFT_PATHS=257: out of range; allowed: 0 or 1..256");
  CHECK_EQUAL(set_knob(&knobs, "segment_bytes", "100", &error), Status::invalid_argument);
  CHECK_EQUAL(error, "WEFT_SEGMENT_BYTES=100: out of range; allowed: 0 or 576..65472");
  CHECK_EQUAL(set_knob(&knobs, "segment_bytes", "0", &error), Status::ok);
  CHECK_EQUAL(set_knob(&knobs, "engines", "-1", &error), Status::invalid_argument);
  CHECK_EQUAL(set_knob(&knobs, "engines", "99999999999999999999", &error), Status::invalid_argument);
}

TEST(knobs__malformed_values_are_refused) {
  for (const char* text : {"", " 3", "3 ", "3x", "0x3", "3.0", "+3"}) {
    Knobs knobs;
    std::string error;
    CHECK_EQUAL(set_knob(&knobs, "paths", text, &error), Status::invalid_argument);
    CHECK_EQUAL(knobs.paths, 0);
  }
  for (const char* text : {"", "nan", "inf", "1e", "0,1", "1.01", "-0.1"}) {
    Knobs knobs;
    std::string error;
    CHECK_EQUAL(set_knob(&knobs, "fault_loss", text, &error), Status::invalid_argument);
  }
}

TEST(knobs__choices_are_words) {
  Knobs knobs;
  std::string error;
  CHECK_EQUAL(set_knob(&knobs, "family", "ipv6", &error), Status::ok);
  CHECK(knobs.family == AddressFamily::ipv6);
  CHECK_EQUAL(set_knob(&knobs, "WEFT_LOG_LEVEL", "debug", &error), Status::ok);
  CHECK(knobs.log_level == LogLevel::debug);
  CHECK_EQUAL(set_knob(&knobs, "payload_crc", "yes", &error), Status::invalid_argument);
  CHECK_EQUAL(error, "WEFT_PAYLOAD_CRC=yes: unknown value; allowed: auto|on|off");
}

TEST(knobs__an_unknown_variable_is_refused_with_the_nearest_name) {
  Knobs knobs;
  std::string error;
  setenv("WEFT_PTHS", "4", 1);
  CHECK_EQUAL(load_knobs(&knobs, &error), Status::invalid_argument);
  unsetenv("WEFT_PTHS");
  CHECK(error.find("did you mean WEFT_PATHS?") != std::string::npos);
  CHECK_EQUAL(set_knob(&knobs, "WEFT_SPIN", "1", &error), Status::invalid_argument);
  CHECK(error.find("did you mean WEFT_SPIN_NS?") != std::string::npos);
  CHECK_EQUAL(set_knob(&knobs, "WEFT_SEGMENT", "1", &error), Status::invalid_argument);
  CHECK(error.find("did you mean WEFT_SEGMENT_BYTES?") != std::string::npos);
  CHECK_EQUAL(set_knob(&knobs, "WEFT_", "1", &error), Status::invalid_argument);
  CHECK(error.find("did you mean") == std::string::npos);
  CHECK(error.find("weft knobs lists the settings") != std::string::npos);
}

TEST(knobs__the_environment_is_taken_whole_or_not_at_all) {
  Knobs knobs;
  std::string error;
  setenv("WEFT_PATHS", "4", 1);
  setenv("WEFT_RTO_NS_MIN", "2000000000", 1);
  CHECK_EQUAL(load_knobs(&knobs, &error), Status::invalid_argument);
  CHECK_EQUAL(knobs.paths, 0);
  CHECK(error.find("WEFT_RTO_NS_MAX") != std::string::npos);
  unsetenv("WEFT_RTO_NS_MIN");
  CHECK_EQUAL(load_knobs(&knobs, &error), Status::ok);
  CHECK_EQUAL(knobs.paths, 4);
  unsetenv("WEFT_PATHS");
}
