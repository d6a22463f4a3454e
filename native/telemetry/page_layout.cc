// Generates the text that describes the rows of a telemetry page, from the tables that define the rows.
#include "native/telemetry/page_layout.h"

namespace weft::telemetry {
namespace {

std::string line(const char* section, const char* name, const std::string& type, const char* unit, const char* kind,
                 std::size_t offset) {
  return std::string(section) + ' ' + name + ' ' + type + ' ' + unit + ' ' + kind + ' ' + std::to_string(offset) + '\n';
}

// How many numbers a field has: a counter has one, a histogram one per bucket.
template <class Field>
std::string type_of() {
  const std::size_t numbers = sizeof(Field) / sizeof(Cell);  // NOLINT(bugprone-sizeof-expression)
  return numbers == 1 ? "i64" : "i64x" + std::to_string(numbers);
}

}  // namespace

std::string page_schema() {
  std::string text;
#define WEFT_SCHEMA_STATE(name, unit, sentence) \
  text += line(section, #name, "i64", #unit, "state", offsetof(Row, name));
#define WEFT_SCHEMA_COUNTER(name, unit, kind, sentence) \
  text += line(section, #name, type_of<CounterField<Kind::kind, Cell>>(), #unit, #kind, base + offsetof(Cells, name));
#define WEFT_SCHEMA_SECTION(label, Scope, STATES, COUNTERS)          \
  {                                                                  \
    using Row = Scope##PageRow;                                      \
    using Cells = Scope##Cells;                                      \
    const char* section = label;                                     \
    const std::size_t base = offsetof(Row, counters);                \
    text += line(section, "generation", "i64", "count", "state", 0); \
    STATES(WEFT_SCHEMA_STATE)                                        \
    COUNTERS(WEFT_SCHEMA_COUNTER)                                    \
  }
  WEFT_SCHEMA_SECTION("process", Process, WEFT_PROCESS_STATE_TABLE, WEFT_PROCESS_COUNTER_TABLE)
  WEFT_SCHEMA_SECTION("engine", Engine, WEFT_ENGINE_STATE_TABLE, WEFT_ENGINE_COUNTER_TABLE)
  text += line("peer", "address", "text" + std::to_string(kAddressBytes), "address", "state",
               offsetof(PeerPageRow, address));
  WEFT_SCHEMA_SECTION("peer", Peer, WEFT_PEER_STATE_TABLE, WEFT_PEER_COUNTER_TABLE) {
    using Cells = PathCells;
    const char* section = "path";
    const std::size_t base = 0;
    WEFT_PATH_COUNTER_TABLE(WEFT_SCHEMA_COUNTER)
  }
  WEFT_SCHEMA_SECTION("flow", Flow, WEFT_FLOW_STATE_TABLE, WEFT_FLOW_COUNTER_TABLE)
#undef WEFT_SCHEMA_SECTION
#undef WEFT_SCHEMA_COUNTER
#undef WEFT_SCHEMA_STATE
  return text;
}

}  // namespace weft::telemetry
