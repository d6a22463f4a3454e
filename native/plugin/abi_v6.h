// Version 6 of NCCL's network plugin interface (NCCL 2.13 and later): device properties and the table of calls. Written
// for weft, not copied from NCCL's headers.
#pragma once

#include "native/plugin/abi_common.h"

namespace weft::nccl::v6 {

struct Properties {
  char* name;
  char* pci_path;
  std::uint64_t guid;
  int pointer_support;
  int speed_mbps;
  int port;
  float latency_us;
  int comms_max;
  int receives_max;
};
static_assert(sizeof(Properties) == 48);
static_assert(offsetof(Properties, pci_path) == 8);
static_assert(offsetof(Properties, guid) == 16);
static_assert(offsetof(Properties, pointer_support) == 24);
static_assert(offsetof(Properties, speed_mbps) == 28);
static_assert(offsetof(Properties, port) == 32);
static_assert(offsetof(Properties, latency_us) == 36);
static_assert(offsetof(Properties, comms_max) == 40);
static_assert(offsetof(Properties, receives_max) == 44);

struct Net {
  const char* name;
  Result (*init)(Logger log);
  Result (*devices)(int* count);
  Result (*get_properties)(int device, Properties* properties);
  Result (*listen)(int device, void* handle, void** listen_comm);
  Result (*connect)(int device, void* handle, void** send_comm);
  Result (*accept)(void* listen_comm, void** receive_comm);
  Result (*reg_mr)(void* comm, void* data, int size, int type, void** mhandle);
  Result (*reg_mr_dma_buf)(void* comm, void* data, std::size_t size, int type, std::uint64_t offset, int descriptor,
                           void** mhandle);
  Result (*dereg_mr)(void* comm, void* mhandle);
  Result (*isend)(void* send_comm, void* data, int size, int tag, void* mhandle, void** request);
  Result (*irecv)(void* receive_comm, int count, void** data, int* sizes, int* tags, void** mhandles, void** request);
  Result (*iflush)(void* receive_comm, int count, void** data, int* sizes, void** mhandles, void** request);
  Result (*test)(void* request, int* done, int* sizes);
  Result (*close_send)(void* comm);
  Result (*close_receive)(void* comm);
  Result (*close_listen)(void* comm);
};
static_assert(sizeof(Net) == 136);
static_assert(offsetof(Net, get_properties) == 0x18);
static_assert(offsetof(Net, reg_mr_dma_buf) == 0x40);
static_assert(offsetof(Net, isend) == 0x50);
static_assert(offsetof(Net, test) == 0x68);
static_assert(offsetof(Net, close_listen) == 0x80);

}  // namespace weft::nccl::v6
