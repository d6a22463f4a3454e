// A fake libibverbs for measuring the cost of our own code: fixed rings, no allocation per request, and immediate
// completions. Loss, order and faults are simulated by null_provider instead.
#pragma once

#include <cstdint>

#include "native/datapath/verbs/ibv.h"

namespace weft::datapath {

struct StubTraits {
  // How many bytes of a message to a shared receive queue are copied into its slot; copying payload is the NIC's work.
  std::uint32_t carried_bytes = 64;
  // Length reported for a message of exactly `carried_bytes`, so that a header alone can stand for a whole segment; 0:
  // the real length.
  std::uint32_t claimed_bytes = 0;
  bool refuses = false;  // posting fails, as on a broken queue pair
};

// Counts of live objects, which a real provider would need memory for.
struct StubAsked {
  std::int64_t queue_pairs = 0, send_requests = 0, receive_requests = 0, completions = 0, addresses = 0;
  std::int64_t registered_bytes = 0;
  std::int64_t calls = 0;  // total number of calls that a real provider would pass to the kernel
};

// The function table. All functions use one global, single-threaded set of queue pairs. The stub's own memory is mapped
// separately, so that the heap contains only what the datapath allocates.
const Ibv* stub_provider();
// Resets everything; all objects must have been destroyed.
void stub_provider_reset(const StubTraits& traits);
void stub_provider_refuse(bool refuses);
StubAsked stub_provider_asked();

}  // namespace weft::datapath
