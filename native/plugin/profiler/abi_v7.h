// Version 7 of NCCL's profiler interface (NCCL 2.31 and later), which adds tags of calls. Written for weft, not copied
// from NCCL's headers.
#pragma once

#include "native/plugin/profiler/abi_common.h"

namespace weft::nccl::profiler_v7 {

struct Descriptor {
  std::uint64_t type;
  void* parent;
  int rank;
  union {
    struct {
      std::uint64_t sequence;
      const char* function;
      const void* send_buffer;
      void* receive_buffer;
      std::size_t count;
      int root;
      const char* datatype;
      std::uint8_t channels;
      std::uint8_t warps;
      const char* algorithm;
      const char* protocol;
      void* parent_group;
      const char* kernel_variant;
      bool is_symmetric;
      std::uint64_t tag;
    } collective;
    struct {
      const char* function;
      void* buffer;
      const char* datatype;
      std::size_t count;
      int peer;
      std::uint8_t channels;
      void* parent_group;
      std::uint64_t tag;
    } point_to_point;
    struct {
      bool is_captured;
      int depth;
    } group_api;
    struct {
      const char* function;
      std::size_t count;
      const char* datatype;
      int root;
      void* stream;
      bool is_captured;
    } collective_api;
    struct {
      const char* function;
      std::size_t count;
      const char* datatype;
      void* stream;
      bool is_captured;
    } point_to_point_api;
    ProfiledProxyOp proxy_op;
    int proxy_step;
    ProfiledKernel kernel;
    ProfiledNetEvent net;
    struct {
      std::uint64_t sequence;
      const char* function;
      const void* send_buffer;
      void* receive_buffer;
      std::size_t count;
      int root;
      const char* datatype;
      const char* sync_strategy;
      bool syncs_in_batch;
      std::uint32_t batch;
      std::uint32_t batches;
      std::uint32_t copy_sequence;
      void* stream;
      std::uint64_t tag;
    } copy_collective;
  };
};
static_assert(sizeof(Descriptor) == 136 && offsetof(Descriptor, rank) == 16 && offsetof(Descriptor, proxy_op) == 24);
static_assert(offsetof(Descriptor, group_api.is_captured) == 24 && offsetof(Descriptor, group_api.depth) == 28);
static_assert(offsetof(Descriptor, collective_api.is_captured) == 64);
static_assert(offsetof(Descriptor, point_to_point_api.is_captured) == 56);
static_assert(offsetof(Descriptor, collective.protocol) == 96);
static_assert(offsetof(Descriptor, collective.kernel_variant) == 112);
static_assert(offsetof(Descriptor, collective.is_symmetric) == 120);
static_assert(offsetof(Descriptor, collective.tag) == 128);
static_assert(offsetof(Descriptor, point_to_point.peer) == 56);
static_assert(offsetof(Descriptor, point_to_point.channels) == 60);
static_assert(offsetof(Descriptor, point_to_point.tag) == 72);
static_assert(offsetof(Descriptor, copy_collective.stream) == 104);
static_assert(offsetof(Descriptor, copy_collective.tag) == 112);

union StateArguments {
  std::size_t transferred_bytes;  // bytes that a proxy step has transferred
  int appended_proxy_ops;
  void* net_data;
  std::uint64_t kernel_timer_ns;
};
static_assert(sizeof(StateArguments) == 8);

struct Profiler {
  const char* name;
  Result (*init)(void** context, std::uint64_t comm_id, int* mask, const char* name, int nodes, int ranks, int rank,
                 Logger log);
  Result (*start_event)(void* context, void** event, Descriptor* descriptor);
  Result (*stop_event)(void* event);
  Result (*record_event_state)(void* event, int state, StateArguments* arguments);
  Result (*finalize)(void* context);
};
static_assert(sizeof(Profiler) == 48 && offsetof(Profiler, finalize) == 40);

}  // namespace weft::nccl::profiler_v7
