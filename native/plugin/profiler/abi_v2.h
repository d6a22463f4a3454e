// Version 2 of NCCL's profiler interface (NCCL 2.24 and later), which passes names as texts instead of numbers. Written
// for weft, not copied from NCCL's headers.
#pragma once

#include "native/plugin/profiler/abi_common.h"

namespace weft::nccl::profiler_v2 {

struct Descriptor {
  std::uint8_t type;
  void* parent;
  int rank;
  union {
    struct {
      const char* name;
      std::uint64_t comm_hash;
      std::uint64_t sequence;
      const char* function;
      const void* send_buffer;
      void* receive_buffer;
      std::size_t count;
      int root;
      const char* datatype;
      std::size_t traffic_bytes;
      std::uint8_t channels_max;
      std::uint8_t warps;
      const char* algorithm;
      const char* protocol;
    } collective;
    struct {
      const char* name;
      std::uint64_t comm_hash;
      const char* function;
      void* buffer;
      const char* datatype;
      std::size_t count;
      int peer;
    } point_to_point;
    ProfiledProxyOp proxy_op;
    int proxy_step;
  };
};
static_assert(sizeof(Descriptor) == 128 && offsetof(Descriptor, rank) == 16 && offsetof(Descriptor, proxy_op) == 24);
static_assert(offsetof(Descriptor, collective.function) == 48);
static_assert(offsetof(Descriptor, collective.datatype) == 88);
static_assert(offsetof(Descriptor, collective.traffic_bytes) == 96);
static_assert(offsetof(Descriptor, collective.channels_max) == 104);
static_assert(offsetof(Descriptor, collective.algorithm) == 112);
static_assert(offsetof(Descriptor, collective.protocol) == 120);
static_assert(offsetof(Descriptor, point_to_point.function) == 40);
static_assert(offsetof(Descriptor, point_to_point.datatype) == 56);
static_assert(offsetof(Descriptor, point_to_point.count) == 64);
static_assert(offsetof(Descriptor, point_to_point.peer) == 72);

union StateArguments {
  struct {
    std::size_t transferred_bytes;
    int steps;
  } proxy_op;
  int appended_proxy_ops;
};
static_assert(sizeof(StateArguments) == 16);

struct Profiler {
  const char* name;
  Result (*init)(void** context, int* mask);
  Result (*start_event)(void* context, void** event, Descriptor* descriptor);
  Result (*stop_event)(void* event);
  Result (*record_event_state)(void* event, int state, StateArguments* arguments);
  Result (*finalize)(void* context);
};
static_assert(sizeof(Profiler) == 48 && offsetof(Profiler, finalize) == 40);

}  // namespace weft::nccl::profiler_v2
