// What libweft-softverbs.so exports besides the functions of libibverbs: its description and its counters. It is a
// software provider for tests, which needs no NIC, kernel module or privileges, and is not meant for performance
// measurements (tests/softverbs/README.md).
#pragma once

#include <cstdint>

extern "C" {
// Returns one line for logs, such as "softverbs, no NIC: seed 1, loss 0.01". If a SOFTVERBS_ variable is invalid,
// returns null, with `problem` set to one line. Both strings are valid until the next call.
const char* weft_software_provider(const char** problem);

// A counter of this process since it opened its first device: "sent", "received", "lost", "reordered", "late",
// "duplicated", "stalled", "refused" (because of keys, bounds or access rights), "full" (dropped because the peer had
// no room), "unreachable" (dropped because the peer is gone). -1: there is no such counter.
std::int64_t softverbs_count(const char* name);
}
