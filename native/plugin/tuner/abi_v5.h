// Version 5 of NCCL's tuner interface (NCCL 2.28 and later). Written for weft, not copied from NCCL's headers.
#pragma once

#include <cstddef>
#include <cstdint>

#include "native/plugin/abi_common.h"

namespace weft::nccl::tuner_v5 {

// The order of functions, algorithms and protocols is that of NCCL's enumerations.
inline constexpr int kAllGather = 2, kReduceScatter = 3, kAllReduce = 4;
inline constexpr int kTree = 0, kRing = 1, kPat = 6;
inline constexpr int kLl = 0, kSimple = 2;
inline constexpr float kIgnored = -1.0F;  // cost of an algorithm and protocol that NCCL cannot use together

struct Tuner {
  const char* name;
  // `domains` and `constants` describe NVLink domains and NCCL's own cost model, which may be changed.
  Result (*init)(void** context, std::uint64_t comm_id, std::size_t ranks, std::size_t nodes, Logger log, void* domains,
                 void* constants);
  // `costs` is an array [algorithms][protocols] of times; NCCL takes the pair with the least. *channels: 0 if NCCL
  // chooses.
  Result (*choose)(void* context, int function, std::size_t bytes, int operations, float** costs, int algorithms,
                   int protocols, int registered, int* channels);
  Result (*finalize)(void* context);
};
static_assert(sizeof(Tuner) == 32 && offsetof(Tuner, init) == 8 && offsetof(Tuner, choose) == 16 &&
              offsetof(Tuner, finalize) == 24);

}  // namespace weft::nccl::tuner_v5
