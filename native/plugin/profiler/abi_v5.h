// Version 5 of NCCL's profiler interface (NCCL 2.28 and later), which adds 64-bit event types, and events of API calls.
// Written for weft, not copied from NCCL's headers.
#pragma once

#include "native/plugin/profiler/abi_common.h"

namespace weft::nccl::profiler_v5 {

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
    } collective;
    struct {
      const char* function;
      void* buffer;
      const char* datatype;
      std::size_t count;
      int peer;
      std::uint8_t channels;
      void* parent_group;
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
  };
};
static_assert(sizeof(Descriptor) == 112 && offsetof(Descriptor, rank) == 16 && offsetof(Descriptor, proxy_op) == 24);
static_assert(offsetof(Descriptor, group_api.is_captured) == 24 && offsetof(Descriptor, group_api.depth) == 28);
static_assert(offsetof(Descriptor, collective_api.is_captured) == 64);
static_assert(offsetof(Descriptor, point_to_point_api.is_captured) == 56);
static_assert(offsetof(Descriptor, collective.sequence) == 24);
static_assert(offsetof(Descriptor, collective.function) == 32);
static_assert(offsetof(Descriptor, collective.count) == 56);
static_assert(offsetof(Descriptor, collective.root) == 64);
static_assert(offsetof(Descriptor, collective.datatype) == 72);
static_assert(offsetof(Descriptor, collective.channels) == 80);
static_assert(offsetof(Descriptor, collective.algorithm) == 88);
static_assert(offsetof(Descriptor, collective.protocol) == 96);
static_assert(offsetof(Descriptor, point_to_point.function) == 24);
static_assert(offsetof(Descriptor, point_to_point.datatype) == 40);
static_assert(offsetof(Descriptor, point_to_point.count) == 48);
static_assert(offsetof(Descriptor, point_to_point.peer) == 56);
static_assert(offsetof(Descriptor, point_to_point.channels) == 60);

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

}  // namespace weft::nccl::profiler_v5
