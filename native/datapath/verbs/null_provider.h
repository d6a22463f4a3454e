// A provider of verbs without a device, at the boundary of libibverbs: queue pairs of one process that deliver to each
// other at once, or only complete. For measuring what our side costs, and for faults no NIC produces on demand.
#pragma once

#include <cstdint>
#include <vector>

#include "native/datapath/verbs/ibv.h"

namespace weft::datapath {

struct NullProviderFaults {
  std::uint32_t drop_every = 0;       // of sends over UC and UD: every n-th is lost; 0: none
  std::uint32_t duplicate_every = 0;  // every n-th arrives twice
  bool deliver = true;                // false: sends complete and go nowhere
  bool complete = true;               // false: sends stay under way until their queue pair is reset or destroyed
  bool bind = true;                   // false: every binding of a window fails
  std::uint32_t regions_max = 0;      // registrations beyond it fail, as at a limit of locked memory; 0: no limit
  bool dmabuf = true;                 // false: registrations by dma-buf fail, as without the kernel's part for it
};

// The table; its functions know one global, single-threaded network of queue pairs.
const Ibv* null_provider();
// Forgets everything; all that was made must be gone.
void null_provider_reset(const NullProviderFaults& faults);
// Other faults from now on; nothing is forgotten.
void null_provider_set_faults(const NullProviderFaults& faults);
// Requests that a queue pair has not finished and that read [at, at + bytes).
int null_provider_under_way(const std::uint8_t* at, std::size_t bytes);
// Puts a completion of any content into the queue that data of `pair` completes to.
void null_provider_complete(ibv_qp* pair, const ibv_wc& completion);
// Delivers a copy of everything that was sent to UC and UD queue pairs since the reset, once more.
void null_provider_replay();
std::size_t null_provider_windows();  // open now
std::size_t null_provider_regions();  // registered now
std::size_t null_provider_posted();   // slots that wait to be received into, of every queue
std::vector<ibv_qp*> null_provider_pairs(ibv_qp_type type);

}  // namespace weft::datapath
