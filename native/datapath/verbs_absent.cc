// The RDMA entry of the table of datapaths when weft is built without the header of libibverbs: it only reports that
// RDMA is missing.
#ifndef WEFT_HAS_VERBS
#include "native/datapath/table.h"

namespace weft::datapath {
namespace {

bool probe_absent(const Settings&, std::string* error) {
  *error = "this weft was built without RDMA: apt-get install libibverbs-dev, then build again";
  return false;
}
bool find_absent(const Settings& settings, std::int64_t, Found*, std::string* error) {
  return probe_absent(settings, error);
}
std::unique_ptr<Datapath> make_absent(const MakeRequest&) { return nullptr; }

}  // namespace

extern const DatapathEntry verbs_entry;
const DatapathEntry verbs_entry{.name = "verbs",
                                .title = "RDMA",
                                .preference = 2,
                                .routed = false,
                                .unprotected = false,
                                .descriptor_per_path = false,
                                .probe = probe_absent,
                                .find = find_absent,
                                .make = make_absent,
                                .route_segment_bytes = nullptr};

}  // namespace weft::datapath
#endif
