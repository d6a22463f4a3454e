// A fake of libibverbs for measuring our own side of it: fixed rings, no allocation on the way, completions handed back
// at once. No device and no network: loss, order and faults are null_provider's.
#pragma once

#include <cstdint>

#include "native/datapath/verbs/ibv.h"

namespace weft::datapath {

struct StubTraits {
  // Of a message to a shared receive queue only so much is copied into its slot: moving payload is a NIC's work.
  std::uint32_t carried_bytes = 64;
  // What a message of exactly `carried_bytes` claims as its length, so that a header alone arrives as a whole segment;
  // 0: its own.
  std::uint32_t claimed_bytes = 0;
  bool refuses = false;  // posting fails, as on a queue pair that broke
};

// What was asked for and lives: a real provider has to find memory for it.
struct StubAsked {
  std::int64_t queue_pairs = 0, send_requests = 0, receive_requests = 0, completions = 0, addresses = 0;
  std::int64_t registered_bytes = 0;
  std::int64_t calls = 0;  // ever, of those that a real provider takes to the kernel
};

// The table; its functions know one global, single-threaded set of queue pairs. What it needs itself it takes from
// mappings of its own, so that the heap has what the datapath allocates and nothing else.
const Ibv* stub_provider();
// Forgets everything; all that was made must be gone.
void stub_provider_reset(const StubTraits& traits);
void stub_provider_refuse(bool refuses);
StubAsked stub_provider_asked();

}  // namespace weft::datapath
