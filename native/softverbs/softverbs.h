// What libweft-softverbs.so exports in addition to the functions of libibverbs: its description and counters. It is a
// software provider for tests, without NIC, kernel module or privileges, and not meant for performance measurements
// (docs/SOFTVERBS.md).
#pragma once

#include <cstdint>

extern "C" {
// One line for logs, such as "softverbs, no NIC: seed 1, loss 0.01". Null with `problem` set to one line if a
// SOFTVERBS_ variable is invalid; both strings are valid until the next call.
const char* weft_software_provider(const char** problem);

// A counter of this process since its first device was opened: "sent", "received", "lost", "reordered", "late",
// "duplicated", "stalled", "refused" (by keys, bounds or rights), "full" (dropped because the peer took nothing),
// "unreachable" (the peer is gone); -1: no such counter.
std::int64_t softverbs_count(const char* name);
}
