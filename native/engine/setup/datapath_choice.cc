// With WEFT_DATAPATH=auto, tries the datapaths in order of preference and logs a line for each that does not work.
#include "native/engine/setup/datapath_choice.h"

#include <algorithm>
#include <vector>

#include "native/engine/log.h"
#include "native/engine/setup/descriptor_budget.h"

namespace weft::engine {
namespace {

using datapath::DatapathEntry;

std::vector<const DatapathEntry*> by_preference() {
  std::vector<const DatapathEntry*> entries;
  for (const DatapathEntry* entry : datapath::datapath_table()) {
    if (entry->preference > 0) entries.push_back(entry);
  }
  std::stable_sort(entries.begin(), entries.end(),
                   [](const DatapathEntry* a, const DatapathEntry* b) { return a->preference > b->preference; });
  return entries;
}

bool try_entry(const DatapathEntry* entry, const datapath::Settings& settings, std::int64_t engines,
               DatapathChoice* choice, std::string* error) {
  *choice = DatapathChoice();
  if (!entry->probe(settings, error) || !entry->find(settings, engines, &choice->found, error)) return false;
  choice->entry = entry;
  error->clear();
  if (!choice->found.warning.empty()) log(LogLevel::warn, choice->found.warning);
  return true;
}

}  // namespace

bool choose_datapath(const Knobs& knobs, std::int64_t engines, DatapathChoice* choice, std::string* error) {
  const KnobSettings settings(knobs);
  const std::vector<const DatapathEntry*> automatic = by_preference();
  if (knobs.datapath != DatapathKind::automatic) {
    const DatapathEntry* wanted = datapath::datapath_table()[static_cast<std::size_t>(knobs.datapath)];
    if (try_entry(wanted, settings, engines, choice, error)) return true;
    // The last of the automatic ones works everywhere.
    if (wanted != automatic.back()) {
      *error +=
          std::string(" (WEFT_DATAPATH=") + wanted->name + "; auto would use " + automatic.back()->title + " instead)";
    }
    return false;
  }
  for (std::size_t i = 0; i < automatic.size(); ++i) {
    if (try_entry(automatic[i], settings, engines, choice, error)) return true;
    if (i + 1 == automatic.size()) return false;
    log(LogLevel::warn,
        std::string("no ") + automatic[i]->title + ", using " + automatic[i + 1]->title + " instead: " + *error);
  }
  return false;
}

bool wants_one_engine(const Knobs& knobs) noexcept {
  return knobs.datapath != DatapathKind::automatic &&
         datapath::datapath_table()[static_cast<std::size_t>(knobs.datapath)]->one_engine;
}

std::unique_ptr<datapath::Datapath> make_datapath(const Knobs& knobs, const DatapathChoice& choice,
                                                  std::uint32_t engine) {
  const KnobSettings settings(knobs);
  return choice.entry->make({&settings, &choice.found, engine, DescriptorGrant::promised()});
}

}  // namespace weft::engine
