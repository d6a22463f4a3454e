// Version 6 of NCCL's tuner interface, which adds the size of chunks. Written for weft, not copied from NCCL's headers.
#pragma once

#include "native/plugin/tuner/abi_v5.h"

namespace weft::nccl::tuner_v6 {

struct Tuner {
  tuner_v5::Tuner base;
  // May be null: NCCL then keeps its own size of chunks.
  Result (*chunk_size)(void* context, int function, std::size_t bytes, int algorithm, int protocol, int channels,
                       std::size_t* chunk_bytes);
};
static_assert(sizeof(Tuner) == 40 && offsetof(Tuner, chunk_size) == 32);

}  // namespace weft::nccl::tuner_v6
