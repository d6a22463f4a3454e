// The calls of NCCL's network plugin interface, independent of its versions. None of them blocks: an operation that
// cannot proceed yet returns ok with a null comm or request. `guarded` turns exceptions into result codes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <new>
#include <string>

#include "native/plugin/abi_common.h"
#include "native/plugin/fork_check.h"
#include "native/plugin/result.h"
#include "native/plugin/session.h"

namespace weft::nccl {

inline constexpr char kName[] = "weft";

// Facts about a device, from which the property structs of each interface version are filled.
struct DeviceFacts {
  char* name = nullptr;
  std::uint64_t guid = 0;
  int speed_mbps = 0;
  int receives_max = 1;
};

Status init(Logger log);
Status init(Logger log, std::uint64_t comm_id, int traffic_class, void** context);
Status finalize(void* context);
Status device_count(int* count);
Status device_facts(int device, DeviceFacts* facts);

Status listen(void* context, int device, void* handle, void** listen_comm);
// `traffic_class`: used by interface versions that have no context.
Status connect(void* context, int device, int traffic_class, void* handle, void** send_comm,
               DeviceHandle** device_comm);
Status accept(void* listen_comm, void** receive_comm, DeviceHandle** device_comm);
Status close_comm(void* comm);
Status close_listen(void* listen_comm);

Status reg_mr(void* comm, void* data, std::size_t bytes, int type, void** mhandle);
Status dereg_mr(void* comm, void* mhandle);

// One buffer of an irecv. Where receives are grouped, the send with its tag fills it.
struct Receive {
  void* data = nullptr;
  std::size_t capacity_bytes = 0;
  int tag = 0;
  void* mhandle = nullptr;
  void* parent = nullptr;
};

// `parent`: NCCL's profiler event that the message belongs to; null: none.
Status isend(void* send_comm, const void* data, std::size_t bytes, int tag, void* mhandle, void* parent,
             void** request);
Status irecv(void* receive_comm, const Receive* receives, int count, void** request);
// `sizes`: one number for a send, one for each buffer of a receive; null: not wanted.
Status test(void* request, int* done, int* sizes);

// Runs the body of an entry point. Exceptions become result codes, and calls in a forked child are refused.
template <typename Body>
Result guarded(Body&& body) noexcept {
  if (in_forked_child()) return result_of(Status::forked_child);
  try {
    return result_of(body());
  } catch (const std::bad_alloc&) {
    return result_of(Status::out_of_memory);
  } catch (...) {
    return result_of(Status::internal_error);
  }
}

}  // namespace weft::nccl
