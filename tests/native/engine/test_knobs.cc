// Tests the knob table as a user sees it: defaults, ranges, units, keys, misspelt names, error texts.
#include <cstdlib>
#include <string>

#include "native/engine/knobs.h"
#include "tests/native/check.h"

using weft::Status;
using namespace weft::engine;

TEST(knobs__every_row_is_complete_and_has_its_default_in_its_range) {
  for (const KnobInfo& info : knob_table()) {
    Knobs knobs;
    std::string error;
    CHECK_EQUAL(knob_value(knobs, info.field), info.default_value);
    CHECK_EQUAL(set_knob(&knobs, info.field, info.default_value, &error), Status::ok);
    CHECK_EQUAL(knob_value(knobs, info.variable), info.default_value);
    CHECK(!info.sentence.empty());
    CHECK_EQUAL(info.keys.empty(), info.type != "keys");
    for (const KeyInfo& key : info.keys) {
      CHECK(!key.sentence.empty());
      CHECK_EQUAL(set_knob(&knobs, info.field, key.name + "=" + key.value, &error), Status::ok);
    }
    CHECK(info.set_by == "operator" || info.set_by == "researcher" || info.set_by == "measurer" ||
          info.set_by == "tests");
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
  CHECK_EQUAL(error,
              "WEFT_SEGMENT_BYTES=100: out of range; allowed: 0 or 576B..65472B; 100 without a unit is 100 bytes: give "
              "B, KiB, MiB "
              "or GiB");
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
    CHECK_EQUAL(set_knob(&knobs, "fault", "loss=" + std::string(text), &error), Status::invalid_argument);
  }
}

TEST(knobs__times_and_sizes_take_units) {
  Knobs knobs;
  std::string error;
  const struct {
    const char* text;
    std::int64_t ns;
  } times[] = {{"1000000", 1'000'000},    {"2000us", 2'000'000},     {"3ms", 3'000'000},      {"4s", 4'000'000'000},
               {"2min", 120'000'000'000}, {"1h", 3'600'000'000'000}, {"5000000ns", 5'000'000}};
  for (const auto& time : times) {
    CHECK_EQUAL(set_knob(&knobs, "handshake_timeout_ns", time.text, &error), Status::ok);
    CHECK_EQUAL(knobs.handshake_timeout_ns, time.ns);
  }
  const struct {
    const char* text;
    std::int64_t bytes;
  } sizes[] = {{"1048576", 1 << 20},  {"2097152B", 2 << 20}, {"1024KiB", 1 << 20}, {"64MiB", 64 << 20},
               {"1GiB", 1 << 30},     {"2048K", 2 << 20},    {"3M", 3 << 20},      {"1G", 1 << 30},
               {"2000kB", 2'000'000}, {"2000KB", 2'000'000}, {"5MB", 5'000'000},   {"1GB", 1'000'000'000}};
  for (const auto& size : sizes) {
    CHECK_EQUAL(set_knob(&knobs, "gpu_pool_bytes", size.text, &error), Status::ok);
    CHECK_EQUAL(knobs.gpu_pool_bytes, size.bytes);
  }
  for (const char* text : {"10 ms", "10m", "10MS", "1.5s", "ms", "64MiB", "-1s", "9223372036854775807s", "2h"}) {
    CHECK_EQUAL(set_knob(&knobs, "handshake_timeout_ns", text, &error), Status::invalid_argument);
    CHECK_EQUAL(knobs.handshake_timeout_ns, 5'000'000);
  }
  CHECK_EQUAL(error, "WEFT_HANDSHAKE_TIMEOUT_NS=2h: out of range; allowed: 1ms..1h");
  CHECK_EQUAL(set_knob(&knobs, "paths", "4ms", &error), Status::invalid_argument);
  CHECK_EQUAL(error, "WEFT_PATHS=4ms: not a whole number; allowed: 0 or 1..256");
}

TEST(knobs__values_are_written_with_the_largest_unit_that_leaves_them_whole) {
  Knobs knobs;
  for (const auto& [ns, text] :
       {std::pair{1'500'000'000LL, "1500ms"}, {120'000'000'000LL, "2min"}, {1'000'001LL, "1000001ns"}}) {
    knobs.handshake_timeout_ns = ns;
    CHECK_EQUAL(knob_value(knobs, "handshake_timeout_ns"), std::string(text));
  }
  CHECK_EQUAL(knob_value(knobs, "gpu_pool_bytes"), std::string("256MiB"));
  CHECK_EQUAL(knob_value(knobs, "rto"), std::string("min=1ms,max=1s"));
  CHECK_EQUAL(knob_value(knobs, "peer_timeout"), std::string("silence=20s,dead=20s,stall=0"));
}

TEST(knobs__keys_that_are_not_given_keep_their_values) {
  Knobs knobs;
  std::string error;
  CHECK_EQUAL(set_knob(&knobs, "WEFT_FAULT", "loss=0.01,seed=7,paths=0+3", &error), Status::ok);
  CHECK_EQUAL(set_knob(&knobs, "fault", "reorder=0.5", &error), Status::ok);
  CHECK_EQUAL(knob_value(knobs, "fault"),
              std::string("seed=7,loss=0.01,reorder=0.5,duplicate=0,corrupt=0,qp_error=0,paths=0+3"));
  CHECK_EQUAL(set_knob(&knobs, "fault", "", &error), Status::ok);
  CHECK_EQUAL(set_knob(&knobs, "fault", "paths=", &error), Status::ok);
  CHECK_EQUAL(knobs.fault_seed, 7);
  CHECK_EQUAL(knobs.fault_paths, std::string());
  CHECK_EQUAL(set_knob(&knobs, "rdma", "mode=uc,slots=512", &error), Status::ok);
  CHECK(knobs.rdma_mode == RdmaMode::uc);
  CHECK_EQUAL(knobs.rdma_slots, 512);
  CHECK_EQUAL(set_knob(&knobs, "open_bytes", "address=2MiB", &error), Status::ok);
  CHECK_EQUAL(knobs.open_bytes_per_address, 2 << 20);
  CHECK_EQUAL(knobs.open_bytes, 256 << 20);
}

TEST(knobs__a_refused_key_changes_none_of_its_setting) {
  const struct {
    const char *knob, *text, *error;
  } refused[] = {
      {"fault", "seed=3,loss=2", "WEFT_FAULT=loss=2: out of range; allowed: loss=0..1"},
      {"fault", "seed=3,los=0.1",
       "WEFT_FAULT=los=0.1: there is no key 'los'; allowed: seed, loss, reorder, duplicate, corrupt, qp_error, paths"},
      {"fault", "seed=3,=1",
       "WEFT_FAULT==1: there is no key ''; allowed: seed, loss, reorder, duplicate, corrupt, qp_error, paths"},
      {"fault", "seed=3,loss=0.1,seed=4", "WEFT_FAULT=seed=3,loss=0.1,seed=4: key 'seed' is given twice"},
      {"rto", "min=2ms,", "WEFT_RTO=min=2ms,: give key=value, or several joined by ','; allowed: keys min, max"},
      {"rto", "min=2ms,,max=3s",
       "WEFT_RTO=min=2ms,,max=3s: give key=value, or several joined by ','; allowed: keys min, max"},
      {"open_bytes", "268435456",
       "WEFT_OPEN_BYTES=268435456: give key=value, or several joined by ','; allowed: keys address, all"},
      {"rdma", "slots=64,mode=xc", "WEFT_RDMA=mode=xc: unknown value; allowed: mode=auto|uc|rc|ud"},
      {"peer_timeout", "dead=4s,stall=1us", "WEFT_PEER_TIMEOUT=stall=1us: out of range; allowed: stall=0 or 1ms..24h"},
      {"poll", "engine=0,caller=20", ""},
      {"poll", "engine=0,caller=20qs",
       "WEFT_POLL=caller=20qs: not a whole number with a known unit; allowed: caller=0..1s; units: ns, us, ms, s, min "
       "or "
       "h"},
      {"peer_timeout", "silence=30",
       "WEFT_PEER_TIMEOUT=silence=30: out of range; allowed: silence=50ms..1h; 30 without a unit is 30 ns: give ns, "
       "us, "
       "ms, s, min or h"},
  };
  for (const auto& [knob, text, expected] : refused) {
    Knobs knobs;
    std::string error;
    const bool fits = std::string(expected).empty();
    CHECK_EQUAL(set_knob(&knobs, knob, text, &error), fits ? Status::ok : Status::invalid_argument);
    CHECK_EQUAL(error, std::string(expected));
    CHECK_EQUAL(knob_value(knobs, knob) == knob_value(Knobs(), knob), !fits);
  }
}

TEST(knobs__a_setting_of_earlier_versions_is_refused_with_its_successor) {
  const struct {
    const char *name, *error;
  } gone[] = {
      {"WEFT_FAULT_LOSS", "WEFT_FAULT_LOSS is not a setting of weft, but a key of a setting: WEFT_FAULT=loss=..."},
      {"fault_loss", "fault_loss is not a setting of weft, but a key of a setting: fault={\"loss\": ...}"},
      {"WEFT_RDMA_MTU_BYTES",
       "WEFT_RDMA_MTU_BYTES is not a setting of weft, but a key of a setting: WEFT_RDMA=mtu=..."},
      {"WEFT_SPIN_NS", "WEFT_SPIN_NS is not a setting of weft, but a key of a setting: WEFT_POLL=engine=..."},
      {"WEFT_OPEN_BYTES_PER_ADDRESS",
       "WEFT_OPEN_BYTES_PER_ADDRESS is not a setting of weft, but a key of a setting: WEFT_OPEN_BYTES=address=..."},
      {"WEFT_TRACE_KEEP_NS",
       "WEFT_TRACE_KEEP_NS is not a setting of weft, but a key of a setting: WEFT_TRACE_LIMITS=age=..."},
      {"record_bytes_max",
       "record_bytes_max is not a setting of weft, but an argument: Endpoint.record(path, bytes_max=...)"},
      {"WEFT_EAGER_SLOTS",
       "WEFT_EAGER_SLOTS is not a setting of weft, but was a setting for tests in earlier versions: leave it out"},
  };
  for (const auto& [name, expected] : gone) {
    Knobs knobs;
    std::string error;
    CHECK_EQUAL(set_knob(&knobs, name, "1", &error), Status::invalid_argument);
    CHECK_EQUAL(error, std::string(expected) + " (weft knobs lists the settings)");
  }
}

TEST(knobs__the_table_has_at_most_48_rows) { CHECK(knob_table().size() <= 48); }

TEST(knobs__ports_are_one_or_a_range) {
  Knobs knobs;
  std::string error;
  const auto accepts = [&](const char* name, const char* text) {
    knobs = Knobs();
    CHECK_EQUAL(set_knob(&knobs, name, text, &error), Status::ok);
    error.clear();
    return check_knobs(knobs, &error) == Status::ok;
  };
  CHECK(accepts("control_port", "0") && control_ports(knobs).first == 0);
  CHECK(accepts("control_port", "7000") && control_ports(knobs).last == 7000 && !control_ports(knobs).is_range);
  CHECK(accepts("control_port", "7000-7063") && control_ports(knobs).count() == 64);
  CHECK(accepts("port_base", "20000-24095") && data_ports(knobs).count() == 4096);
  for (const char* wrong : {"", "x", "7000-", "-7", "7000-6999", "7000-70000", "65536", "7000-7001-7002", "0-7"}) {
    CHECK(!accepts("control_port", wrong) && error.find("WEFT_CONTROL_PORT=") == 0);
  }
  CHECK(!accepts("port_base", "24095-20000"));
  CHECK_EQUAL(error,
              "WEFT_PORT_BASE=24095-20000: the last port is below the first; allowed: 0, a port of 1024..65535, or "
              "FIRST-LAST");
  CHECK(!accepts("port_base", "1023"));
  CHECK(!accepts("port_base", "65535"));
  CHECK_EQUAL(error, "WEFT_PORT_BASE=65535 has 1 ports, and 32 paths (WEFT_PATHS) of 1 engine need 32");
  CHECK(!accepts("port_base", "20000-20030"));
  CHECK(error.find("has 31 ports") != std::string::npos &&
        error.find("in each process of a host") != std::string::npos);
  CHECK(ports_suffice(knobs, 1, 31, &error) && !ports_suffice(knobs, 2, 16, &error));
}

TEST(knobs__values_are_read_as_people_write_them) {
  Knobs knobs;
  std::string error;
  CHECK_EQUAL(set_knob(&knobs, "log_level", "INFO", &error), Status::ok);
  CHECK(knobs.log_level == LogLevel::info);
  setenv("WEFT_PATHS", "", 1);
  setenv("WEFT_NO_SUCH_KNOB", "", 1);
  CHECK_EQUAL(load_knobs(&knobs, &error), Status::ok);
  unsetenv("WEFT_PATHS");
  unsetenv("WEFT_NO_SUCH_KNOB");
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
  CHECK_EQUAL(set_knob(&knobs, "WEFT_PATH", "1", &error), Status::invalid_argument);
  CHECK(error.find("did you mean WEFT_PATHS?") != std::string::npos);
  CHECK_EQUAL(set_knob(&knobs, "WEFT_PEER", "1", &error), Status::invalid_argument);
  CHECK(error.find("did you mean WEFT_PEER_TIMEOUT?") != std::string::npos);
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
  setenv("WEFT_RTO", "min=2s", 1);
  CHECK_EQUAL(load_knobs(&knobs, &error), Status::invalid_argument);
  CHECK_EQUAL(knobs.paths, 0);
  CHECK_EQUAL(error, "WEFT_RTO=min=2s,max=1s: min is above max");
  unsetenv("WEFT_RTO");
  setenv("WEFT_FAULT", "loss=0.1,paths=0+300", 1);
  CHECK_EQUAL(load_knobs(&knobs, &error), Status::invalid_argument);
  CHECK_EQUAL(knobs.fault_loss, 0.0);
  CHECK_EQUAL(error, "WEFT_FAULT=paths=0+300: '300' is not a path number; give numbers 0..255, such as 0+3");
  unsetenv("WEFT_FAULT");
  CHECK_EQUAL(load_knobs(&knobs, &error), Status::ok);
  CHECK_EQUAL(knobs.paths, 4);
  unsetenv("WEFT_PATHS");
}
