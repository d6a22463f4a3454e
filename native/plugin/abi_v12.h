// Version 12 of NCCL's network plugin interface (NCCL 2.30 and later), which allows eight devices in a virtual one, and
// adds rails and planes. Written for weft, not copied from NCCL's headers.
#pragma once

#include "native/plugin/abi_v11.h"

namespace weft::nccl::v12 {

struct Properties {
  char* name;
  char* pci_path;
  std::uint64_t guid;
  int pointer_support;
  int registration_is_global;
  int force_flush;
  int speed_mbps;
  int port;
  float latency_us;
  int comms_max;
  int receives_max;
  int net_device_type;
  int net_device_version;
  VirtualProperties<8> virtual_properties;
  std::size_t p2p_bytes_max;
  std::size_t collective_bytes_max;
  int multi_request_size_max;
  std::int16_t rail_id;
  std::int16_t plane_id;
};
static_assert(sizeof(Properties) == 128);
static_assert(offsetof(Properties, pci_path) == 8);
static_assert(offsetof(Properties, guid) == 16);
static_assert(offsetof(Properties, pointer_support) == 24);
static_assert(offsetof(Properties, registration_is_global) == 28);
static_assert(offsetof(Properties, force_flush) == 32);
static_assert(offsetof(Properties, speed_mbps) == 36);
static_assert(offsetof(Properties, port) == 40);
static_assert(offsetof(Properties, latency_us) == 44);
static_assert(offsetof(Properties, comms_max) == 48);
static_assert(offsetof(Properties, receives_max) == 52);
static_assert(offsetof(Properties, net_device_type) == 56);
static_assert(offsetof(Properties, net_device_version) == 60);
static_assert(offsetof(Properties, virtual_properties) == 64);
static_assert(offsetof(Properties, p2p_bytes_max) == 104);
static_assert(offsetof(Properties, collective_bytes_max) == 112);
static_assert(offsetof(Properties, multi_request_size_max) == 120);
static_assert(offsetof(Properties, rail_id) == 124);
static_assert(offsetof(Properties, plane_id) == 126);

struct Net {
  const char* name;
  Result (*init)(void** context, std::uint64_t comm_id, CommConfig* config, Logger log, ProfilerCallback profile);
  Result (*devices)(int* count);
  Result (*get_properties)(int device, Properties* properties);
  Result (*listen)(void* context, int device, void* handle, void** listen_comm);
  Result (*connect)(void* context, int device, void* handle, void** send_comm, DeviceHandle** device_comm);
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
  Result (*make_virtual_device)(int* device, VirtualProperties<8>* properties);
  Result (*finalize)(void* context);
  Result (*set_attributes)(void* context, v11::Attributes* attributes);
};
static_assert(sizeof(Net) == 176);
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
static_assert(offsetof(Net, finalize) == 160);
static_assert(offsetof(Net, set_attributes) == 168);

}  // namespace weft::nccl::v12
