// Version 10 of NCCL's network plugin interface (NCCL 2.26 and later), which adds a profiler callback and traffic
// classes. Written for weft, not copied from NCCL's headers.
#pragma once

#include "native/plugin/abi_v9.h"

namespace weft::nccl::v10 {

using v9::Properties;

struct Net {
  const char* name;
  Result (*init)(Logger log, ProfilerCallback profile);
  Result (*devices)(int* count);
  Result (*get_properties)(int device, Properties* properties);
  Result (*listen)(int device, void* handle, void** listen_comm);
  Result (*connect)(int device, CommConfig* config, void* handle, void** send_comm, DeviceHandle** device_comm);
  Result (*accept)(void* listen_comm, void** receive_comm, DeviceHandle** device_comm);
  Result (*reg_mr)(void* comm, void* data, std::size_t size, int type, void** mhandle);
  Result (*reg_mr_dma_buf)(void* comm, void* data, std::size_t size, int type, std::uint64_t offset, int descriptor,
                           void** mhandle);
  Result (*dereg_mr)(void* comm, void* mhandle);
  Result (*isend)(void* send_comm, void* data, std::size_t size, int tag, void* mhandle, void* phandle, void** request);
  Result (*irecv)(void* receive_comm, int count, void** data, std::size_t* sizes, int* tags, void** mhandles,
                  void** phandles, void** request);
  Result (*iflush)(void* receive_comm, int count, void** data, int* sizes, void** mhandles, void** request);
  Result (*test)(void* request, int* done, int* sizes);
  Result (*close_send)(void* comm);
  Result (*close_receive)(void* comm);
  Result (*close_listen)(void* comm);
  Result (*get_device_mr)(void* comm, void* mhandle, void** device_mhandle);
  Result (*irecv_consumed)(void* receive_comm, int count, void* request);
  Result (*make_virtual_device)(int* device, VirtualProperties<4>* properties);
};
static_assert(sizeof(Net) == 160);
static_assert(offsetof(Net, get_properties) == 0x18);
static_assert(offsetof(Net, listen) == 0x20);
static_assert(offsetof(Net, connect) == 0x28);
static_assert(offsetof(Net, accept) == 0x30);
static_assert(offsetof(Net, reg_mr_dma_buf) == 0x40);
static_assert(offsetof(Net, dereg_mr) == 0x48);
static_assert(offsetof(Net, isend) == 0x50);
static_assert(offsetof(Net, irecv) == 0x58);
static_assert(offsetof(Net, iflush) == 0x60);
static_assert(offsetof(Net, test) == 0x68);
static_assert(offsetof(Net, close_send) == 0x70);
static_assert(offsetof(Net, close_receive) == 0x78);
static_assert(offsetof(Net, close_listen) == 0x80);
static_assert(offsetof(Net, irecv_consumed) == 144);
static_assert(offsetof(Net, make_virtual_device) == 152);

}  // namespace weft::nccl::v10
