// Implements the libibverbs functions that weft uses, and the function table that callers reach through a context.
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <new>
#include <string_view>

#include "native/datapath/verbs/verbs_abi.h"
#include "tests/softverbs/native/adapter.h"
#include "tests/softverbs/native/softverbs.h"

#define SOFTVERBS_EXPORT extern "C" __attribute__((visibility("default")))

namespace {

using namespace weft::softverbs;

constexpr int kMany = 1 << 20;

Adapter& adapter() { return Adapter::the(); }

// Functions for the context's table, which inline functions in verbs.h call.
int poll_cq(ibv_cq* cq, int most, ibv_wc* out) { return adapter().poll(static_cast<Cq*>(cq), most, out); }

int req_notify_cq(ibv_cq* cq, int solicited_only) {
  const std::lock_guard lock(adapter().mutex);
  static_cast<Cq*>(cq)->armed = true;
  static_cast<Cq*>(cq)->solicited_only = solicited_only != 0;
  return 0;
}

int post_send(ibv_qp* qp, ibv_send_wr* request, ibv_send_wr** bad) {
  const std::lock_guard lock(adapter().mutex);
  return adapter().post_send(static_cast<Qp*>(qp), request, bad);
}

int post_receives(Receives* to, std::uint32_t pieces_most, ibv_recv_wr* request, ibv_recv_wr** bad) {
  for (; request != nullptr; request = request->next) {
    *bad = request;
    if (const int refused = Adapter::post_receive(to, pieces_most, request); refused != 0) return refused;
  }
  return 0;
}

int post_recv(ibv_qp* qp, ibv_recv_wr* request, ibv_recv_wr** bad) {
  const std::lock_guard lock(adapter().mutex);
  Qp& pair = *static_cast<Qp*>(qp);
  *bad = request;
  if (pair.srq != nullptr || pair.state == IBV_QPS_RESET) return EINVAL;
  const int refused = post_receives(&pair.own, pair.receive_pieces_most, request, bad);
  if (pair.state == IBV_QPS_ERR) adapter().flush_receives(&pair);
  return refused;
}

int post_srq_recv(ibv_srq* srq, ibv_recv_wr* request, ibv_recv_wr** bad) {
  const std::lock_guard lock(adapter().mutex);
  return post_receives(&static_cast<Srq*>(srq)->receives, 32, request, bad);
}

ibv_mw* alloc_mw(ibv_pd* pd, ibv_mw_type type) {
  if (type != IBV_MW_TYPE_1) {
    errno = EOPNOTSUPP;
    return nullptr;
  }
  const std::lock_guard lock(adapter().mutex);
  return adapter().memory.add_window(pd);
}

int dealloc_mw(ibv_mw* window) {
  const std::lock_guard lock(adapter().mutex);
  adapter().memory.remove_window(static_cast<Window*>(window));
  return 0;
}

int bind_mw(ibv_qp* qp, ibv_mw* window, ibv_mw_bind* wanted) {
  const std::lock_guard lock(adapter().mutex);
  return adapter().bind(static_cast<Qp*>(qp), static_cast<Window*>(window), *wanted);
}

ibv_device* device_at(std::int64_t index) {
  static ibv_device all[kDevicesMax];
  static const bool named = [] {
    for (int i = 0; i < static_cast<int>(kDevicesMax); ++i) {
      all[i].node_type = IBV_NODE_CA;
      all[i].transport_type = IBV_TRANSPORT_IB;
      std::snprintf(all[i].name, sizeof all[i].name, "soft%d", i);
      std::snprintf(all[i].dev_name, sizeof all[i].dev_name, "softverbs%d", i);
    }
    return true;
  }();
  static_cast<void>(named);
  return &all[index];
}

// Takes the next event. If there is none, fails with EAGAIN or blocks, depending on the descriptor's mode.
template <class Events, class Event>
int take_event(int descriptor, Events* events, Event* out) {
  for (;;) {
    std::uint64_t one = 0;
    if (::read(descriptor, &one, sizeof one) != sizeof one) return -1;
    const std::lock_guard lock(adapter().mutex);
    if (events->empty()) continue;  // the event's object was destroyed, and the event with it
    *out = events->front();
    events->pop_front();
    return 0;
  }
}

Region* add_region(ibv_pd* pd, void* at, std::size_t bytes, std::uint64_t first, int access, bool certain) {
  const std::lock_guard lock(adapter().mutex);
  return adapter().memory.add(adapter().settings, pd, at, bytes, first, access, certain);
}

}  // namespace

SOFTVERBS_EXPORT const char* weft_software_provider(const char** problem) {
  static thread_local std::string said, wrong;
  Settings settings;
  if (!read_settings(&settings, &wrong)) {
    *problem = wrong.c_str();
    return nullptr;
  }
  said = describe(settings);
  return said.c_str();
}

SOFTVERBS_EXPORT std::int64_t softverbs_count(const char* name) {
  constexpr std::string_view kNames[] = {"sent",       "received", "lost",    "reordered", "late",
                                         "duplicated", "stalled",  "refused", "full",      "unreachable"};
  static_assert(std::size(kNames) == static_cast<std::size_t>(Count::kinds));
  const auto* const found = std::find(std::begin(kNames), std::end(kNames), std::string_view(name));
  return found == std::end(kNames) ? -1 : adapter().count(static_cast<Count>(found - std::begin(kNames)));
}

SOFTVERBS_EXPORT ibv_device** ibv_get_device_list(int* count) {
  Settings settings;
  std::string error;
  if (!read_settings(&settings, &error)) {
    errno = EINVAL;
    return nullptr;
  }
  auto** const list = new ibv_device*[static_cast<std::size_t>(settings.devices) + 1]();
  for (std::int64_t i = 0; i < settings.devices; ++i) list[i] = device_at(i);
  if (count != nullptr) *count = static_cast<int>(settings.devices);
  return list;
}
SOFTVERBS_EXPORT void ibv_free_device_list(ibv_device** list) { delete[] list; }
SOFTVERBS_EXPORT const char* ibv_get_device_name(ibv_device* device) { return device->name; }

SOFTVERBS_EXPORT ibv_context* ibv_open_device(ibv_device* device) {
  Context* const context = adapter().open(device, static_cast<std::uint32_t>(device - device_at(0)));
  if (context == nullptr) return nullptr;
  context->ops.alloc_mw = &alloc_mw;
  context->ops.bind_mw = &bind_mw;
  context->ops.dealloc_mw = &dealloc_mw;
  context->ops.poll_cq = &poll_cq;
  context->ops.req_notify_cq = &req_notify_cq;
  context->ops.post_srq_recv = &post_srq_recv;
  context->ops.post_send = &post_send;
  context->ops.post_recv = &post_recv;
  return context;
}
SOFTVERBS_EXPORT int ibv_close_device(ibv_context* context) {
  adapter().close(static_cast<Context*>(context));
  return 0;
}

SOFTVERBS_EXPORT int ibv_query_device(ibv_context*, ibv_device_attr* out) {
  *out = {};
  std::snprintf(out->fw_ver, sizeof out->fw_ver, "softverbs");
  out->max_mr_size = UINT64_MAX;
  out->page_size_cap = 4096;
  out->max_qp = out->max_cq = out->max_mr = out->max_pd = out->max_mw = out->max_ah = out->max_srq = kMany;
  out->max_qp_wr = 1 << 16;
  out->max_srq_wr = out->max_cqe = kMany;
  out->max_sge = out->max_srq_sge = 32;
  out->device_cap_flags = IBV_DEVICE_MEM_WINDOW;
  out->max_pkeys = 1;
  out->phys_port_cnt = 1;
  return 0;
}

// verbs.h declares ibv_query_port with the struct of an older ABI, so its definition has another name in C++.
SOFTVERBS_EXPORT int softverbs_query_port(ibv_context*, std::uint8_t port,
                                          ibv_port_attr* out) __asm__("ibv_query_port");
SOFTVERBS_EXPORT int softverbs_query_port(ibv_context*, std::uint8_t port, ibv_port_attr* out) {
  if (port != 1) return EINVAL;
  const std::lock_guard lock(adapter().mutex);
  *out = {};
  out->state = IBV_PORT_ACTIVE;
  out->max_mtu = IBV_MTU_4096;
  for (const ibv_mtu mtu : {IBV_MTU_256, IBV_MTU_512, IBV_MTU_1024, IBV_MTU_2048, IBV_MTU_4096}) {
    if (128 << static_cast<unsigned>(mtu) <= adapter().settings.mtu_bytes) out->active_mtu = mtu;
  }
  out->gid_tbl_len = out->pkey_tbl_len = 1;
  out->max_msg_sz = 1u << 31;
  out->link_layer = IBV_LINK_LAYER_ETHERNET;
  return 0;
}

SOFTVERBS_EXPORT int ibv_query_gid(ibv_context* context, std::uint8_t port, int index, ibv_gid* out) {
  if (port != 1 || index != 0) return -1;
  *out = static_cast<Context*>(context)->gid;
  return 0;
}

SOFTVERBS_EXPORT ibv_pd* ibv_alloc_pd(ibv_context* context) {
  auto* const made = new Domain();
  made->context = context;
  return made;
}
SOFTVERBS_EXPORT int ibv_dealloc_pd(ibv_pd* pd) {
  delete static_cast<Domain*>(pd);
  return 0;
}

SOFTVERBS_EXPORT ibv_mr* ibv_reg_mr(ibv_pd* pd, void* at, std::size_t bytes, int access) {
  return add_region(pd, at, bytes, reinterpret_cast<std::uintptr_t>(at), access, false);
}
SOFTVERBS_EXPORT ibv_mr* ibv_reg_mr_iova2(ibv_pd* pd, void* at, std::size_t bytes, std::uint64_t iova,
                                          unsigned access) {
  return add_region(pd, at, bytes, iova, static_cast<int>(access), false);
}
// Only a kernel can access memory through a dma-buf's descriptor. So the iova is used as the CUDA address, which it is
// when weft calls this function; if CUDA does not know it as device memory, the registration is refused.
SOFTVERBS_EXPORT ibv_mr* ibv_reg_dmabuf_mr(ibv_pd* pd, std::uint64_t, std::size_t bytes, std::uint64_t iova, int,
                                           int access) {
  return add_region(pd, reinterpret_cast<void*>(iova), bytes, iova, access, true);
}
SOFTVERBS_EXPORT int ibv_dereg_mr(ibv_mr* region) {
  const std::lock_guard lock(adapter().mutex);
  return adapter().memory.remove(static_cast<Region*>(region));
}

SOFTVERBS_EXPORT ibv_comp_channel* ibv_create_comp_channel(ibv_context* context) {
  auto* const made = new Channel();
  made->context = context;
  made->fd = ::eventfd(0, EFD_CLOEXEC | EFD_SEMAPHORE);
  if (made->fd >= 0) return made;
  delete made;
  return nullptr;
}
SOFTVERBS_EXPORT int ibv_destroy_comp_channel(ibv_comp_channel* channel) {
  ::close(channel->fd);
  delete static_cast<Channel*>(channel);
  return 0;
}

SOFTVERBS_EXPORT ibv_cq* ibv_create_cq(ibv_context* context, int entries, void* cq_context, ibv_comp_channel* channel,
                                       int) {
  if (entries < 1 || entries > kMany) {
    errno = EINVAL;
    return nullptr;
  }
  auto* const made = new Cq();
  made->context = context;
  made->channel = channel;
  made->bell = static_cast<Channel*>(channel);
  made->cq_context = cq_context;
  made->cqe = entries;
  made->most = static_cast<std::size_t>(entries);
  return made;
}
SOFTVERBS_EXPORT int ibv_destroy_cq(ibv_cq* cq) {
  auto* const gone = static_cast<Cq*>(cq);
  {
    const std::lock_guard lock(adapter().mutex);
    if (gone->bell != nullptr) std::erase(gone->bell->rung, gone);
    std::erase_if(static_cast<Context*>(cq->context)->events, [cq](const ibv_async_event& event) {
      return event.event_type == IBV_EVENT_CQ_ERR && event.element.cq == cq;
    });
  }
  delete gone;
  return 0;
}
SOFTVERBS_EXPORT int ibv_get_cq_event(ibv_comp_channel* channel, ibv_cq** cq, void** cq_context) {
  Cq* rung = nullptr;
  if (take_event(channel->fd, &static_cast<Channel*>(channel)->rung, &rung) != 0) return -1;
  *cq = rung;
  *cq_context = rung->cq_context;
  return 0;
}
SOFTVERBS_EXPORT void ibv_ack_cq_events(ibv_cq*, unsigned) {}

SOFTVERBS_EXPORT ibv_srq* ibv_create_srq(ibv_pd* pd, ibv_srq_init_attr* wanted) {
  auto* const made = new Srq();
  made->context = pd->context;
  made->pd = pd;
  made->srq_context = wanted->srq_context;
  made->receives.most = wanted->attr.max_wr;
  return made;
}
SOFTVERBS_EXPORT int ibv_destroy_srq(ibv_srq* srq) {
  delete static_cast<Srq*>(srq);
  return 0;
}

SOFTVERBS_EXPORT ibv_qp* ibv_create_qp(ibv_pd* pd, ibv_qp_init_attr* wanted) {
  const std::lock_guard lock(adapter().mutex);
  return adapter().add_pair(pd, *wanted);
}
SOFTVERBS_EXPORT int ibv_modify_qp(ibv_qp* qp, ibv_qp_attr* wanted, int mask) {
  const std::lock_guard lock(adapter().mutex);
  return adapter().modify(static_cast<Qp*>(qp), *wanted, mask);
}
SOFTVERBS_EXPORT int ibv_query_qp(ibv_qp* qp, ibv_qp_attr* out, int, ibv_qp_init_attr* made) {
  const std::lock_guard lock(adapter().mutex);
  const Qp& pair = *static_cast<Qp*>(qp);
  *out = {};
  out->qp_state = out->cur_qp_state = pair.state;
  out->dest_qp_num = pair.far_number;
  out->rq_psn = pair.expected_psn;
  out->sq_psn = pair.next_psn;
  out->qkey = pair.qkey;
  out->cap = {pair.send_most, static_cast<std::uint32_t>(pair.own.most), pair.send_pieces_most,
              pair.receive_pieces_most, pair.inline_most};
  if (made != nullptr) {
    *made = {};
    made->qp_type = pair.qp_type;
    made->cap = out->cap;
  }
  return 0;
}
SOFTVERBS_EXPORT int ibv_destroy_qp(ibv_qp* qp) {
  const std::lock_guard lock(adapter().mutex);
  adapter().remove_pair(static_cast<Qp*>(qp));
  return 0;
}

SOFTVERBS_EXPORT ibv_ah* ibv_create_ah(ibv_pd* pd, ibv_ah_attr* wanted) {
  if (wanted->is_global == 0 || wanted->grh.sgid_index != 0 || wanted->port_num != 1) {
    errno = EINVAL;
    return nullptr;
  }
  auto* const made = new Address();
  made->context = pd->context;
  made->pd = pd;
  made->far = wanted->grh.dgid;
  made->traffic_class = wanted->grh.traffic_class;
  return made;
}
SOFTVERBS_EXPORT int ibv_destroy_ah(ibv_ah* address) {
  delete static_cast<Address*>(address);
  return 0;
}

SOFTVERBS_EXPORT int ibv_get_async_event(ibv_context* context, ibv_async_event* out) {
  return take_event(context->async_fd, &static_cast<Context*>(context)->events, out);
}
SOFTVERBS_EXPORT void ibv_ack_async_event(ibv_async_event*) {}

SOFTVERBS_EXPORT const char* ibv_wc_status_str(ibv_wc_status status) {
  constexpr const char* kTexts[] = {"success",
                                    "local length error",
                                    "local queue pair operation error",
                                    "local end-to-end context error",
                                    "local protection error",
                                    "flushed",
                                    "window binding error",
                                    "bad response",
                                    "local access error",
                                    "remote invalid request",
                                    "remote access error",
                                    "remote operation error",
                                    "transport retries exceeded",
                                    "receiver-not-ready retries exceeded"};
  const auto index = static_cast<std::size_t>(status);
  return index < std::size(kTexts) ? kTexts[index] : "unknown status";
}
SOFTVERBS_EXPORT const char* ibv_event_type_str(ibv_event_type type) {
  switch (type) {
    case IBV_EVENT_CQ_ERR:
      return "completion queue overran";
    case IBV_EVENT_QP_FATAL:
      return "queue pair failed";
    case IBV_EVENT_QP_REQ_ERR:
      return "invalid request arrived";
    case IBV_EVENT_QP_ACCESS_ERR:
      return "request without the right arrived";
    case IBV_EVENT_QP_LAST_WQE_REACHED:
      return "last receive reached";
    default:
      return "unknown event";
  }
}
