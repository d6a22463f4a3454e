// What libweft-softverbs.so exports besides the functions of libibverbs: who it is, and what it has counted.
// A software provider for tests: no NIC, no kernel module, no right, and no statement about speed (docs/SOFTVERBS.md).
#pragma once

#include <cstdint>

extern "C" {
// One line for logs: "softverbs, no NIC: seed 1, loss 0.01". Null with `problem` set to one line when the environment
// holds a SOFTVERBS_ variable that cannot be read; both live until the next call.
const char* weft_software_provider(const char** problem);

// Of this process since its first device was opened: "sent", "received", "lost", "reordered", "late", "duplicated",
// "stalled", "refused" (keys, bounds or rights), "full" (given up, as their peer took nothing), "unreachable" (their
// peer has gone); -1: no such counter.
std::int64_t softverbs_count(const char* name);
}
