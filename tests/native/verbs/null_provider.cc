// Implements the part of verbs that the datapath needs: one device with one port, queues as deques, delivery by memcpy.
// It follows the specification where the datapath relies on it: messages stay in order within a queue pair, a queue
// pair in error state flushes its requests, and no message arrives without a posted receive.
#include "tests/native/verbs/null_provider.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <set>

namespace weft::datapath {
namespace {

constexpr std::uint32_t kGrhBytes = 40;

struct Queue {
  ibv_cq base{};
  std::deque<ibv_wc> done;
};
struct Receive {
  std::uint64_t id;
  std::uint8_t* at;
  std::uint32_t bytes;
};
struct SharedReceives {
  ibv_srq base{};
  std::deque<Receive> posted;
};
struct Pair {
  ibv_qp base{};
  Queue *sends = nullptr, *receives = nullptr;
  SharedReceives* shared = nullptr;
  std::deque<Receive> posted;
  std::uint32_t far = 0;
  std::vector<ibv_sge> under_way;
};
// A message in transit, with a copy of everything that its packets would carry.
struct Sent {
  std::uint32_t to = 0;
  std::vector<std::uint8_t> bytes;
  ibv_wr_opcode opcode = IBV_WR_SEND;
  std::uint32_t immediate = 0, key = 0;
  std::uint64_t address = 0;
};
struct Bound {
  std::uint64_t address, bytes;
};

struct Network {
  NullProviderFaults faults;
  std::map<std::uint32_t, Pair*> pairs;
  std::uint32_t next_number = 17;
  std::uint64_t sent = 0;
  std::vector<Sent> log;
  std::map<std::uint32_t, Bound> windows;  // open memory windows, by key
  std::uint32_t next_window = 1;
  std::uint32_t regions = 0;
  std::set<SharedReceives*> shared;
};

Network& network() {
  static Network one;
  return one;
}

ibv_device device_of_ours{};

Pair* pair_of(ibv_qp* qp) { return reinterpret_cast<Pair*>(qp); }
Queue* queue_of(ibv_cq* cq) { return reinterpret_cast<Queue*>(cq); }

// Copies an RDMA write to its destination. Returns false if no window with this key covers the destination.
bool write(const Sent& sent) {
  const auto window = network().windows.find(sent.key);
  if (window == network().windows.end()) return false;
  const std::uint64_t offset = sent.address - window->second.address;
  if (offset > window->second.bytes || sent.bytes.size() > window->second.bytes - offset) return false;
  std::memcpy(reinterpret_cast<void*>(sent.address), sent.bytes.data(), sent.bytes.size());
  return true;
}

// Delivers a message. Returns false if it is refused because of its key; a reliable queue pair then moves to error.
bool deliver(const Sent& sent) {
  const auto place = network().pairs.find(sent.to);
  if (place == network().pairs.end()) return true;
  Pair& pair = *place->second;
  if (pair.base.state != IBV_QPS_RTR && pair.base.state != IBV_QPS_RTS) return true;
  std::deque<Receive>& posted = pair.shared != nullptr ? pair.shared->posted : pair.posted;
  const bool is_write = sent.opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
  const auto count = static_cast<std::uint32_t>(sent.bytes.size());
  const std::uint32_t before = pair.base.qp_type == IBV_QPT_UD ? kGrhBytes : 0;
  if (posted.empty() || (!is_write && posted.front().bytes < before + count)) return true;
  if (is_write && !write(sent)) return false;
  const Receive slot = posted.front();
  posted.pop_front();
  if (!is_write) std::memcpy(slot.at + before, sent.bytes.data(), count);
  ibv_wc done{};
  done.wr_id = slot.id;
  done.status = IBV_WC_SUCCESS;
  done.opcode = is_write ? IBV_WC_RECV_RDMA_WITH_IMM : IBV_WC_RECV;
  done.wc_flags = sent.opcode == IBV_WR_SEND ? 0 : IBV_WC_WITH_IMM;
  done.imm_data = sent.immediate;
  done.byte_len = before + count;
  done.qp_num = sent.to;
  pair.receives->done.push_back(done);
  return true;
}

void complete_send(Pair& pair, const ibv_send_wr& request, ibv_wc_status status) {
  ibv_wc done{};
  done.wr_id = request.wr_id;
  done.status = status;
  done.qp_num = pair.base.qp_num;
  pair.sends->done.push_back(done);
}

int post_send(ibv_qp* qp, ibv_send_wr* request, ibv_send_wr** bad) {
  Pair& pair = *pair_of(qp);
  Network& net = network();
  for (; request != nullptr; request = request->next) {
    if (pair.base.state == IBV_QPS_ERR) {
      complete_send(pair, *request, IBV_WC_WR_FLUSH_ERR);
      continue;
    }
    if (pair.base.state != IBV_QPS_RTS) {
      *bad = request;
      return EINVAL;
    }
    if (net.faults.deliver) {
      Sent sent;
      for (int i = 0; i < request->num_sge; ++i) {
        const auto* at = reinterpret_cast<const std::uint8_t*>(request->sg_list[i].addr);
        sent.bytes.insert(sent.bytes.end(), at, at + request->sg_list[i].length);
      }
      const bool ud = pair.base.qp_type == IBV_QPT_UD;
      sent.to = ud ? request->wr.ud.remote_qpn : pair.far;
      sent.opcode = request->opcode;
      sent.immediate = request->imm_data;
      if (sent.opcode == IBV_WR_RDMA_WRITE_WITH_IMM) {
        sent.key = request->wr.rdma.rkey;
        sent.address = request->wr.rdma.remote_addr;
      }
      const bool reliable = pair.base.qp_type == IBV_QPT_RC;
      ++net.sent;
      const bool dropped = !reliable && net.faults.drop_every != 0 && net.sent % net.faults.drop_every == 0;
      const bool doubled = !reliable && net.faults.duplicate_every != 0 && net.sent % net.faults.duplicate_every == 0;
      bool taken = true;
      for (int copies = dropped ? 0 : doubled ? 2 : 1; copies > 0; --copies) taken = deliver(sent) && taken;
      if (!reliable) net.log.push_back(std::move(sent));
      if (!taken && reliable) {
        pair.base.state = net.pairs[pair.far]->base.state = IBV_QPS_ERR;
        complete_send(pair, *request, IBV_WC_REM_ACCESS_ERR);
        continue;
      }
    }
    if (!net.faults.complete) {
      pair.under_way.insert(pair.under_way.end(), request->sg_list, request->sg_list + request->num_sge);
      continue;
    }
    if ((request->send_flags & IBV_SEND_SIGNALED) != 0) complete_send(pair, *request, IBV_WC_SUCCESS);
  }
  return 0;
}

Receive receive_of(const ibv_recv_wr& request) {
  return {request.wr_id, reinterpret_cast<std::uint8_t*>(request.sg_list[0].addr), request.sg_list[0].length};
}

int post_recv(ibv_qp* qp, ibv_recv_wr* request, ibv_recv_wr**) {
  for (; request != nullptr; request = request->next) pair_of(qp)->posted.push_back(receive_of(*request));
  return 0;
}

int post_srq_recv(ibv_srq* srq, ibv_recv_wr* request, ibv_recv_wr**) {
  for (; request != nullptr; request = request->next) {
    reinterpret_cast<SharedReceives*>(srq)->posted.push_back(receive_of(*request));
  }
  return 0;
}

int poll_cq(ibv_cq* cq, int most, ibv_wc* out) {
  std::deque<ibv_wc>& done = queue_of(cq)->done;
  int count = 0;
  for (; count < most && !done.empty(); ++count) {
    out[count] = done.front();
    done.pop_front();
  }
  return count;
}

int req_notify_cq(ibv_cq*, int) { return 0; }

ibv_mw* alloc_mw(ibv_pd* pd, ibv_mw_type type) {
  auto* made = new ibv_mw{};
  made->context = pd->context;
  made->pd = pd;
  made->type = type;
  made->rkey = network().next_window++ << 8;
  return made;
}
int dealloc_mw(ibv_mw* window) {
  network().windows.erase(window->rkey);
  delete window;
  return 0;
}
int bind_mw(ibv_qp* qp, ibv_mw* window, ibv_mw_bind* binding) {
  Network& net = network();
  if (net.faults.bind) {
    net.windows.erase(window->rkey);
    window->rkey = (window->rkey & ~0xFFu) | ((window->rkey + 1) & 0xFFu);
    if (binding->bind_info.length != 0) {
      net.windows[window->rkey] = {binding->bind_info.addr, binding->bind_info.length};
    }
  }
  ibv_send_wr request{};
  request.wr_id = binding->wr_id;
  complete_send(*pair_of(qp), request, net.faults.bind ? IBV_WC_SUCCESS : IBV_WC_MW_BIND_ERR);
  return 0;
}

ibv_device** get_device_list(int* count) {
  static ibv_device* list[] = {&device_of_ours, nullptr};
  *count = 1;
  return list;
}
void free_device_list(ibv_device**) {}
const char* get_device_name(ibv_device*) { return "null0"; }

ibv_context* open_device(ibv_device* device) {
  auto* context = new ibv_context{};
  context->device = device;
  context->ops.poll_cq = poll_cq;
  context->ops.req_notify_cq = req_notify_cq;
  context->ops.post_send = post_send;
  context->ops.post_recv = post_recv;
  context->ops.alloc_mw = alloc_mw;
  context->ops.dealloc_mw = dealloc_mw;
  context->ops.bind_mw = bind_mw;
  context->ops.post_srq_recv = post_srq_recv;
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0) {
    delete context;
    return nullptr;
  }
  context->async_fd = ends[0];
  context->cmd_fd = ends[1];
  return context;
}
int close_device(ibv_context* context) {
  ::close(context->async_fd);
  ::close(context->cmd_fd);
  delete context;
  return 0;
}
int query_device(ibv_context*, ibv_device_attr* out) {
  *out = {};
  out->max_srq_wr = 1 << 20;
  out->max_cqe = 1 << 22;
  return 0;
}
int query_port(ibv_context*, std::uint8_t, ibv_port_attr* out) {
  *out = {};
  out->state = IBV_PORT_ACTIVE;
  out->active_mtu = IBV_MTU_4096;
  out->link_layer = IBV_LINK_LAYER_ETHERNET;
  return 0;
}
int query_gid(ibv_context*, std::uint8_t, int, ibv_gid* out) {
  *out = {};
  return 0;
}

// Creates a verbs object that needs no field but its context.
template <class T>
T* make(ibv_context* context) {
  auto* made = new T{};
  made->context = context;
  return made;
}
ibv_pd* alloc_pd(ibv_context* context) { return make<ibv_pd>(context); }
int dealloc_pd(ibv_pd* pd) {
  delete pd;
  return 0;
}
ibv_mr* reg_mr(ibv_pd* pd, void* address, std::size_t bytes, int) {
  if (network().faults.regions_max != 0 && network().regions >= network().faults.regions_max) {
    errno = ENOMEM;
    return nullptr;
  }
  ++network().regions;
  auto* made = make<ibv_mr>(pd->context);
  made->pd = pd;
  made->addr = address;
  made->length = bytes;
  return made;
}
// Ignores the descriptor, because tests have no real dma-buf.
ibv_mr* reg_dmabuf_mr(ibv_pd* pd, std::uint64_t, std::size_t bytes, std::uint64_t iova, int, int access) {
  if (!network().faults.dmabuf) {
    errno = EOPNOTSUPP;
    return nullptr;
  }
  return reg_mr(pd, reinterpret_cast<void*>(iova), bytes, access);
}
int dereg_mr(ibv_mr* region) {
  --network().regions;
  delete region;
  return 0;
}
ibv_ah* create_ah(ibv_pd* pd, ibv_ah_attr*) { return make<ibv_ah>(pd->context); }
int destroy_ah(ibv_ah* address) {
  delete address;
  return 0;
}
ibv_comp_channel* create_comp_channel(ibv_context* context) {
  auto* made = make<ibv_comp_channel>(context);
  made->fd = ::dup(context->async_fd);
  return made;
}
int destroy_comp_channel(ibv_comp_channel* channel) {
  ::close(channel->fd);
  delete channel;
  return 0;
}
ibv_cq* create_cq(ibv_context* context, int, void*, ibv_comp_channel*, int) {
  auto* made = new Queue;
  made->base.context = context;
  return &made->base;
}
int destroy_cq(ibv_cq* cq) {
  delete queue_of(cq);
  return 0;
}
int get_cq_event(ibv_comp_channel*, ibv_cq**, void**) { return -1; }
void ack_cq_events(ibv_cq*, unsigned) {}
ibv_srq* create_srq(ibv_pd* pd, ibv_srq_init_attr*) {
  auto* made = new SharedReceives;
  made->base.context = pd->context;
  network().shared.insert(made);
  return &made->base;
}
int destroy_srq(ibv_srq* srq) {
  network().shared.erase(reinterpret_cast<SharedReceives*>(srq));
  delete reinterpret_cast<SharedReceives*>(srq);
  return 0;
}
ibv_qp* create_qp(ibv_pd* pd, ibv_qp_init_attr* wanted) {
  auto* made = new Pair;
  made->base.context = pd->context;
  made->base.pd = pd;
  made->base.qp_type = wanted->qp_type;
  made->base.qp_num = network().next_number++;
  made->base.state = IBV_QPS_RESET;
  made->sends = queue_of(wanted->send_cq);
  made->receives = queue_of(wanted->recv_cq);
  made->shared = reinterpret_cast<SharedReceives*>(wanted->srq);
  network().pairs[made->base.qp_num] = made;
  return &made->base;
}
// Discards a queue pair's completions that were not polled, together with their receive slots, as mlx5 does.
void forget_received(const Pair& pair) {
  std::erase_if(pair.receives->done, [&](const ibv_wc& done) { return done.qp_num == pair.base.qp_num; });
}
int modify_qp(ibv_qp* qp, ibv_qp_attr* wanted, int mask) {
  Pair& pair = *pair_of(qp);
  if ((mask & IBV_QP_DEST_QPN) != 0) pair.far = wanted->dest_qp_num;
  pair.base.state = wanted->qp_state;
  if (wanted->qp_state == IBV_QPS_RESET) {
    pair.under_way.clear();
    forget_received(pair);
  }
  return 0;
}
int query_qp(ibv_qp* qp, ibv_qp_attr* out, int, ibv_qp_init_attr*) {
  out->qp_state = qp->state;
  return 0;
}
int destroy_qp(ibv_qp* qp) {
  forget_received(*pair_of(qp));
  network().pairs.erase(qp->qp_num);
  delete pair_of(qp);
  return 0;
}
int get_async_event(ibv_context*, ibv_async_event*) { return -1; }
void ack_async_event(ibv_async_event*) {}
const char* wc_status_str(ibv_wc_status) { return "a status"; }
const char* event_type_str(ibv_event_type) { return "an event"; }

}  // namespace

const Ibv* null_provider() {
  static const Ibv table = [] {
    Ibv made;
#define WEFT_IBV_OURS(name) made.name = &name;
    WEFT_IBV_FUNCTIONS(WEFT_IBV_OURS)
#undef WEFT_IBV_OURS
    made.reg_mr = &reg_mr;
    made.reg_dmabuf_mr = &reg_dmabuf_mr;
    made.query_port = &query_port;
    return made;
  }();
  return &table;
}

void null_provider_reset(const NullProviderFaults& faults) {
  network().faults = faults;
  network().sent = 0;
  network().log.clear();
}

void null_provider_set_faults(const NullProviderFaults& faults) { network().faults = faults; }

int null_provider_under_way(const std::uint8_t* at, std::size_t bytes) {
  int count = 0;
  const auto from = reinterpret_cast<std::uintptr_t>(at);
  for (const auto& [number, pair] : network().pairs) {
    for (const ibv_sge& piece : pair->under_way) count += piece.addr < from + bytes && from < piece.addr + piece.length;
  }
  return count;
}

void null_provider_complete(ibv_qp* pair, const ibv_wc& completion) {
  pair_of(pair)->receives->done.push_back(completion);
}

void null_provider_replay() {
  const std::vector<Sent> sent = network().log;
  for (const Sent& one : sent) static_cast<void>(deliver(one));
}

std::size_t null_provider_windows() { return network().windows.size(); }
std::size_t null_provider_regions() { return network().regions; }
std::size_t null_provider_posted() {
  std::size_t count = 0;
  for (const SharedReceives* each : network().shared) count += each->posted.size();
  for (const auto& [number, pair] : network().pairs) count += pair->posted.size();
  return count;
}

std::vector<ibv_qp*> null_provider_pairs(ibv_qp_type type) {
  std::vector<ibv_qp*> found;
  for (const auto& [number, pair] : network().pairs) {
    if (pair->base.qp_type == type) found.push_back(&pair->base);
  }
  return found;
}

}  // namespace weft::datapath
