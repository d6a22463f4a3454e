// A fake libibverbs without a device, for tests and benchmarks: queue pairs in one process either deliver to each other
// immediately, or only report completions. It injects faults that no NIC produces on demand.
#pragma once

#include <cstdint>
#include <vector>

#include "native/datapath/verbs/ibv.h"

namespace weft::datapath {

struct NullProviderFaults {
  std::uint32_t drop_every = 0;       // on UC and UD every n-th send is lost; 0: none
  std::uint32_t duplicate_every = 0;  // on UC and UD every n-th send arrives twice; 0: none
  bool deliver = true;                // false: sends complete but are not delivered
  bool complete = true;               // false: a send completes only when its queue pair is reset or destroyed
  bool bind = true;                   // false: binding a memory window fails
  std::uint32_t regions_max = 0;      // more registrations than this fail, as at a locked-memory limit; 0: no limit
  bool dmabuf = true;                 // false: registering a dma-buf fails, as on a kernel without support
};

// The function table. All functions use one global, single-threaded network of queue pairs.
const Ibv* null_provider();
// Resets the network of queue pairs and sets its faults; all verbs objects must have been destroyed.
void null_provider_reset(const NullProviderFaults& faults);
// Changes the faults and keeps all other state.
void null_provider_set_faults(const NullProviderFaults& faults);
// Number of unfinished send requests, over all queue pairs, that read from [at, at + bytes).
int null_provider_under_way(const std::uint8_t* at, std::size_t bytes);
// Adds an arbitrary completion to the receive completion queue of `pair`.
void null_provider_complete(ibv_qp* pair, const ibv_wc& completion);
// Delivers once more everything that was sent on UC and UD queue pairs since the reset.
void null_provider_replay();
std::size_t null_provider_windows();  // number of windows now open
std::size_t null_provider_regions();  // number of regions now registered
std::size_t null_provider_posted();   // number of posted receive slots, over all queues
std::vector<ibv_qp*> null_provider_pairs(ibv_qp_type type);

}  // namespace weft::datapath
