// Builds the table of datapaths from the entries that each datapath's folder defines.
#include "native/datapath/table.h"

namespace weft::datapath {

#define WEFT_DECLARE(name) extern const DatapathEntry name##_entry;
WEFT_DATAPATHS(WEFT_DECLARE)
#undef WEFT_DECLARE

const std::vector<const DatapathEntry*>& datapath_table() {
#define WEFT_LIST(name) &name##_entry,
  static const std::vector<const DatapathEntry*> table{WEFT_DATAPATHS(WEFT_LIST)};
#undef WEFT_LIST
  return table;
}

}  // namespace weft::datapath
