// Tests that the table of datapaths agrees with the values of the knob, and that each entry finds devices or says why
// not.
#include <set>
#include <stdexcept>
#include <string>

#include "native/datapath/table.h"
#include "native/engine/knobs.h"
#include "native/engine/setup/datapath_choice.h"
#include "tests/native/check.h"

using namespace weft::datapath;
using weft::engine::DatapathKind;
using weft::engine::KnobSettings;

TEST(table__its_names_are_the_words_of_the_knob) {
  std::string words;
  for (const weft::engine::KnobInfo& info : weft::engine::knob_table()) {
    if (info.field == "datapath") words = info.range;
  }
  std::string names;
  for (const DatapathEntry* entry : datapath_table()) names += std::string(entry->name) + "|";
  CHECK_EQUAL(words, names + "auto");
  CHECK_EQUAL(datapath_table().size(), static_cast<std::size_t>(DatapathKind::automatic));
}

TEST(table__preferences_differ_and_the_default_is_one_of_them) {
  std::set<int> preferences;
  std::size_t automatic = 0;
  for (const DatapathEntry* entry : datapath_table()) {
    automatic += entry->preference > 0 ? 1 : 0;
    if (entry->preference > 0) preferences.insert(entry->preference);
    CHECK(!entry->routed || entry->route_segment_bytes != nullptr);
  }
  CHECK_EQUAL(preferences.size(), automatic);
  CHECK(datapath_table().front()->preference > 0);
}

// Every entry finds usable devices or fails with one line, which also shows that each knob that it reads exists.
TEST(table__each_entry_works_or_says_why_not) {
  weft::engine::Knobs knobs;
  knobs.interfaces = "lo";
  const KnobSettings settings(knobs);
  for (const DatapathEntry* entry : datapath_table()) {
    std::string error;
    Found found;
    if (!entry->probe(settings, &error) || !entry->find(settings, 1, &found, &error)) {
      CHECK(!error.empty());
      CHECK(error.find('\n') == std::string::npos);
      continue;
    }
    CHECK(!found.devices.empty());
    CHECK(!found.summary.empty());
    for (const DeviceState& device : found.devices) {
      CHECK(!device.places.empty());
      CHECK(device.segment_bytes >= 256);
      CHECK(device.train_bytes >= device.segment_bytes);
    }
    const std::unique_ptr<Datapath> made = entry->make({&settings, &found, 0, nullptr});
    CHECK(made != nullptr);
    CHECK(made->open(&error));
  }
}

TEST(table__an_unknown_knob_is_an_exception) {
  const weft::engine::Knobs knobs;
  const KnobSettings settings(knobs);
  for (const char* name : {"paths", "no_such_knob"}) {
    bool thrown = false;
    try {
      static_cast<void>(settings.text(name));
    } catch (const std::out_of_range&) {
      thrown = true;
    }
    CHECK(thrown);
  }
  CHECK_EQUAL(settings.text("datapath"), std::string("udp"));
  CHECK_EQUAL(settings.text("family"), std::string("auto"));
  CHECK_EQUAL(settings.number("rdma_slots"), 2048);
  CHECK_EQUAL(settings.real("fault_loss"), 0.0);
}

TEST(table__only_xdp_wants_one_engine) {
  weft::engine::Knobs knobs;
  for (const DatapathKind kind : {DatapathKind::udp, DatapathKind::verbs, DatapathKind::xdp, DatapathKind::automatic}) {
    knobs.datapath = kind;
    CHECK_EQUAL(weft::engine::wants_one_engine(knobs), kind == DatapathKind::xdp);
  }
}
