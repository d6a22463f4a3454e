// Generates the text that describes the records of a trace, from the table that defines them.
#include "native/telemetry/trace_layout.h"

namespace weft::telemetry {

std::string trace_schema() {
  std::string text;
#define WEFT_FIELD(type, name, unit, sentence) \
  text += "field " #name " " #type " " #unit " " + std::to_string(offsetof(Record, name)) + '\n';
#define WEFT_RECORD(number, name, Struct, FIELDS)                                    \
  {                                                                                  \
    using Record = Trace##Struct;                                                    \
    text += "record " #number " " #name " " + std::to_string(sizeof(Record)) + '\n'; \
    FIELDS(WEFT_FIELD)                                                               \
  }
  WEFT_TRACE_RECORDS(WEFT_RECORD)
#undef WEFT_RECORD
#undef WEFT_FIELD
  return text;
}

}  // namespace weft::telemetry
