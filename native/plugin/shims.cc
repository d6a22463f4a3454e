// Adapts the calls in plugin.h to every version of NCCL's interface. Each function is named for the first version that
// it fits. Out-parameters are written before the call of guarded(), which may refuse the call.
#include <array>
#include <type_traits>

#include "native/plugin/abi_v10.h"
#include "native/plugin/abi_v11.h"
#include "native/plugin/abi_v12.h"
#include "native/plugin/abi_v6.h"
#include "native/plugin/abi_v7.h"
#include "native/plugin/abi_v8.h"
#include "native/plugin/abi_v9.h"
#include "native/plugin/plugin.h"

namespace weft::nccl {
namespace {

constexpr int kCommsMax = 1 << 16;

// NCCL passes an uninitialised struct. get_properties() zeroes it, and the fill functions set the nonzero fields.
template <typename Properties>
void fill_v6(Properties* properties, const DeviceFacts& facts) {
  properties->name = facts.name;
  // No PCI path is reported, because for a NIC near a GPU, NCCL would assume that 128-byte stores arrive whole and in
  // order, and enable a protocol (LL128) that does not work with bytes copied by a CPU.
  properties->pci_path = nullptr;
  properties->guid = facts.guid;
  properties->pointer_support = kPointerHost;
  properties->speed_mbps = facts.speed_mbps;
  properties->comms_max = kCommsMax;
  properties->receives_max = facts.receives_max;
}

template <typename Properties>
void fill_v7(Properties* properties, const DeviceFacts& facts) {
  fill_v6(properties, facts);
  properties->net_device_type = kDeviceTypeHost;
}

template <typename Properties>
void fill_v9(Properties* properties, const DeviceFacts& facts, int device) {
  fill_v7(properties, facts);
  properties->virtual_properties.ndevs = 1;
  properties->virtual_properties.devs[0] = device;
  properties->p2p_bytes_max = kMaxMessageBytes;
  properties->collective_bytes_max = kMaxMessageBytes;
}

template <typename Properties, typename Fill>
Result get_properties(int device, Properties* properties, Fill&& fill) noexcept {
  return guarded([&] {
    *properties = {};
    DeviceFacts facts;
    const Status status = device_facts(device, &facts);
    if (status == Status::ok) fill(facts);
    return status;
  });
}

Result get_properties_v6(int device, v6::Properties* properties) noexcept {
  return get_properties(device, properties, [&](const DeviceFacts& facts) { fill_v6(properties, facts); });
}

template <typename Properties>
Result get_properties_v7(int device, Properties* properties) noexcept {
  return get_properties(device, properties, [&](const DeviceFacts& facts) { fill_v7(properties, facts); });
}

Result get_properties_v9(int device, v9::Properties* properties) noexcept {
  return get_properties(device, properties, [&](const DeviceFacts& facts) { fill_v9(properties, facts, device); });
}

Result get_properties_v11(int device, v11::Properties* properties) noexcept {
  return get_properties(device, properties, [&](const DeviceFacts& facts) {
    fill_v9(properties, facts, device);
    properties->multi_request_size_max = 1;
  });
}

Result get_properties_v12(int device, v12::Properties* properties) noexcept {
  return get_properties(device, properties, [&](const DeviceFacts& facts) {
    fill_v9(properties, facts, device);
    properties->multi_request_size_max = 1;
    properties->rail_id = -1;
    properties->plane_id = -1;
  });
}

Result init_v6(Logger log) noexcept {
  return guarded([&] { return init(log); });
}

Result init_v10(Logger log, ProfilerCallback profiler) noexcept {
  Session::instance().set_profiler(profiler);
  return init_v6(log);
}

int class_of(const CommConfig* config) noexcept { return config == nullptr ? kNoTrafficClass : config->traffic_class; }

Result init_v11(void** context, std::uint64_t comm_id, CommConfig* config, Logger log,
                ProfilerCallback profiler) noexcept {
  Session::instance().set_profiler(profiler);
  return guarded([&] { return init(log, comm_id, class_of(config), context); });
}

Result finalize_v11(void* context) noexcept {
  return guarded([&] { return finalize(context); });
}

Result devices_v6(int* count) noexcept {
  return guarded([&] { return device_count(count); });
}

Result listen_v11(void* context, int device, void* handle, void** listen_comm) noexcept {
  return guarded([&] { return listen(context, device, handle, listen_comm); });
}

Result listen_v6(int device, void* handle, void** listen_comm) noexcept {
  return listen_v11(nullptr, device, handle, listen_comm);
}

Result connect_v11(void* context, int device, void* handle, void** send_comm, DeviceHandle** device_comm) noexcept {
  *send_comm = nullptr;
  return guarded([&] { return connect(context, device, kNoTrafficClass, handle, send_comm, device_comm); });
}

// In version 10, only the connecting end knows its traffic class; at the accepting end, flows use their process's
// default policies.
Result connect_v10(int device, CommConfig* config, void* handle, void** send_comm,
                   DeviceHandle** device_comm) noexcept {
  *send_comm = nullptr;
  return guarded([&] { return connect(nullptr, device, class_of(config), handle, send_comm, device_comm); });
}

Result connect_v7(int device, void* handle, void** send_comm, DeviceHandle** device_comm) noexcept {
  return connect_v11(nullptr, device, handle, send_comm, device_comm);
}

Result connect_v6(int device, void* handle, void** send_comm) noexcept {
  return connect_v7(device, handle, send_comm, nullptr);
}

Result accept_v7(void* listen_comm, void** receive_comm, DeviceHandle** device_comm) noexcept {
  *receive_comm = nullptr;
  return guarded([&] { return accept(listen_comm, receive_comm, device_comm); });
}

Result accept_v6(void* listen_comm, void** receive_comm) noexcept {
  return accept_v7(listen_comm, receive_comm, nullptr);
}

Result reg_mr_v8(void* comm, void* data, std::size_t size, int type, void** mhandle) noexcept {
  return guarded([&] { return reg_mr(comm, data, size, type, mhandle); });
}

Result reg_mr_v6(void* comm, void* data, int size, int type, void** mhandle) noexcept {
  *mhandle = nullptr;
  return guarded([&] {
    if (size < 0) return Status::invalid_argument;
    return reg_mr(comm, data, static_cast<std::size_t>(size), type, mhandle);
  });
}

Result dereg_mr_v6(void* comm, void* mhandle) noexcept {
  return guarded([&] { return dereg_mr(comm, mhandle); });
}

Result isend_v10(void* send_comm, void* data, std::size_t size, int tag, void* mhandle, void* parent,
                 void** request) noexcept {
  *request = nullptr;
  return guarded([&] { return isend(send_comm, data, size, tag, mhandle, parent, request); });
}

Result isend_v9(void* send_comm, void* data, std::size_t size, int tag, void* mhandle, void** request) noexcept {
  *request = nullptr;
  return guarded([&] { return isend(send_comm, data, size, tag, mhandle, nullptr, request); });
}

Result isend_v6(void* send_comm, void* data, int size, int tag, void* mhandle, void** request) noexcept {
  *request = nullptr;
  return guarded([&] {
    if (size < 0) return Status::invalid_argument;
    return isend(send_comm, data, static_cast<std::size_t>(size), tag, mhandle, nullptr, request);
  });
}

// Gathers NCCL's arrays of one irecv, which may have null arrays but for data and sizes.
template <typename Size>
Status irecv_arrays(void* receive_comm, int count, void** data, const Size* sizes, const int* tags, void** mhandles,
                    void** parents, void** request) {
  if (count < 1 || count > kReceivesMax) return Status::invalid_argument;
  std::array<Receive, kReceivesMax> receives;
  for (std::size_t i = 0; i < static_cast<std::size_t>(count); ++i) {
    if constexpr (std::is_signed_v<Size>) {
      if (sizes[i] < 0) return Status::invalid_argument;
    }
    receives[i] = {data[i], static_cast<std::size_t>(sizes[i]), tags == nullptr ? 0 : tags[i],
                   mhandles == nullptr ? nullptr : mhandles[i], parents == nullptr ? nullptr : parents[i]};
  }
  return irecv(receive_comm, receives.data(), count, request);
}

Result irecv_v10(void* receive_comm, int count, void** data, std::size_t* sizes, int* tags, void** mhandles,
                 void** parents, void** request) noexcept {
  *request = nullptr;
  return guarded([&] { return irecv_arrays(receive_comm, count, data, sizes, tags, mhandles, parents, request); });
}

Result irecv_v9(void* receive_comm, int count, void** data, std::size_t* sizes, int* tags, void** mhandles,
                void** request) noexcept {
  return irecv_v10(receive_comm, count, data, sizes, tags, mhandles, nullptr, request);
}

Result irecv_v6(void* receive_comm, int count, void** data, int* sizes, int* tags, void** mhandles,
                void** request) noexcept {
  *request = nullptr;
  return guarded([&] { return irecv_arrays(receive_comm, count, data, sizes, tags, mhandles, nullptr, request); });
}

// There is nothing to flush: the GPU sees data in host memory once the CPU has stored it, and this is done when a
// receive completes.
Result iflush_v6(void*, int, void**, int*, void**, void** request) noexcept {
  *request = nullptr;
  return guarded([] { return Status::ok; });
}

Result test_v6(void* request, int* done, int* sizes) noexcept {
  *done = 0;
  return guarded([&] { return test(request, done, sizes); });
}

Result close_comm_v6(void* comm) noexcept {
  return guarded([&] { return close_comm(comm); });
}

Result close_listen_v6(void* comm) noexcept {
  return guarded([&] { return close_listen(comm); });
}

// Sets the calls that are the same in all versions. Calls that a plugin for host memory does not need stay null:
// dma-buf registration, device handles, NIC fusion, hints.
template <typename Net>
constexpr Net common(Net net) {
  net.name = kName;
  net.devices = devices_v6;
  net.dereg_mr = dereg_mr_v6;
  net.iflush = iflush_v6;
  net.test = test_v6;
  net.close_send = close_comm_v6;
  net.close_receive = close_comm_v6;
  net.close_listen = close_listen_v6;
  return net;
}

// Versions 6 to 8 give sizes of messages as ints.
template <typename Net>
constexpr Net net_before_v9() {
  Net net = common(Net{});
  net.init = init_v6;
  net.listen = listen_v6;
  net.isend = isend_v6;
  net.irecv = irecv_v6;
  return net;
}

constexpr v6::Net net_v6() {
  v6::Net net = net_before_v9<v6::Net>();
  net.get_properties = get_properties_v6;
  net.connect = connect_v6;
  net.accept = accept_v6;
  net.reg_mr = reg_mr_v6;
  return net;
}

constexpr v7::Net net_v7() {
  v7::Net net = net_before_v9<v7::Net>();
  net.get_properties = get_properties_v7<v7::Properties>;
  net.connect = connect_v7;
  net.accept = accept_v7;
  net.reg_mr = reg_mr_v6;
  return net;
}

constexpr v8::Net net_v8() {
  v8::Net net = net_before_v9<v8::Net>();
  net.get_properties = get_properties_v7<v8::Properties>;
  net.connect = connect_v7;
  net.accept = accept_v7;
  net.reg_mr = reg_mr_v8;
  return net;
}

template <typename Net>
constexpr Net net_from_v9() {
  Net net = common(Net{});
  net.accept = accept_v7;
  net.reg_mr = reg_mr_v8;
  return net;
}

constexpr v9::Net net_v9() {
  v9::Net net = net_from_v9<v9::Net>();
  net.init = init_v6;
  net.get_properties = get_properties_v9;
  net.listen = listen_v6;
  net.connect = connect_v7;
  net.isend = isend_v9;
  net.irecv = irecv_v9;
  return net;
}

constexpr v10::Net net_v10() {
  v10::Net net = net_from_v9<v10::Net>();
  net.init = init_v10;
  net.get_properties = get_properties_v9;
  net.listen = listen_v6;
  net.connect = connect_v10;
  net.isend = isend_v10;
  net.irecv = irecv_v10;
  return net;
}

template <typename Net>
constexpr Net net_from_v11() {
  Net net = net_from_v9<Net>();
  net.init = init_v11;
  net.listen = listen_v11;
  net.connect = connect_v11;
  net.isend = isend_v10;
  net.irecv = irecv_v10;
  net.finalize = finalize_v11;
  return net;
}

constexpr v11::Net net_v11() {
  v11::Net net = net_from_v11<v11::Net>();
  net.get_properties = get_properties_v11;
  return net;
}

constexpr v12::Net net_v12() {
  v12::Net net = net_from_v11<v12::Net>();
  net.get_properties = get_properties_v12;
  return net;
}

}  // namespace
}  // namespace weft::nccl

#define WEFT_EXPORT __attribute__((visibility("default"), used)) constinit
extern "C" {
WEFT_EXPORT weft::nccl::v6::Net ncclNetPlugin_v6 = weft::nccl::net_v6();
WEFT_EXPORT weft::nccl::v7::Net ncclNetPlugin_v7 = weft::nccl::net_v7();
WEFT_EXPORT weft::nccl::v8::Net ncclNetPlugin_v8 = weft::nccl::net_v8();
WEFT_EXPORT weft::nccl::v9::Net ncclNetPlugin_v9 = weft::nccl::net_v9();
WEFT_EXPORT weft::nccl::v10::Net ncclNetPlugin_v10 = weft::nccl::net_v10();
WEFT_EXPORT weft::nccl::v11::Net ncclNetPlugin_v11 = weft::nccl::net_v11();
WEFT_EXPORT weft::nccl::v12::Net ncclNetPlugin_v12 = weft::nccl::net_v12();
}
