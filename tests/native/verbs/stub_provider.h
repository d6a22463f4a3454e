// A fake libibverbs for measuring the CPU cost of weft's own code: fixed rings, no allocation per request, and
// immediate completions. To simulate loss and faults, use null_provider.
#pragma once

#include <cstdint>

#include "native/datapath/verbs/ibv.h"

namespace weft::datapath {

struct StubTraits {
  // How many bytes of a message to a shared receive queue are copied into its slot. The rest is not copied, because on
  // a real NIC no CPU would copy it.
  std::uint32_t carried_bytes = 64;
  // Length reported for a message of exactly `carried_bytes`, so that a test can send only a header where a real sender
  // sends a whole segment; 0: the real length.
  std::uint32_t claimed_bytes = 0;
  bool refuses = false;  // posting fails, as it does on a broken queue pair
};

// Numbers of live objects for which a real provider would need memory.
struct StubAsked {
  std::int64_t queue_pairs = 0, send_requests = 0, receive_requests = 0, completions = 0, addresses = 0;
  std::int64_t registered_bytes = 0;
  std::int64_t calls = 0;  // total number of calls that a real provider would pass to the kernel
};

// The stub's function table. All functions use one global, single-threaded set of queue pairs. The stub's own memory is
// mapped separately, so that the heap contains only what the datapath allocates.
const Ibv* stub_provider();
// Resets the set of queue pairs and sets the traits; all verbs objects must have been destroyed.
void stub_provider_reset(const StubTraits& traits);
void stub_provider_refuse(bool refuses);
StubAsked stub_provider_asked();

}  // namespace weft::datapath
