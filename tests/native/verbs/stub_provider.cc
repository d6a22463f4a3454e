// Implements the stub provider: an array of queue pairs, rings of fixed size, and objects that are all freed at once.
// Functions that are not measured (devices, ports, channels) are those of the null provider.
#include "tests/native/verbs/stub_provider.h"

#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <new>

#include "tests/native/verbs/null_provider.h"

namespace weft::datapath {
namespace {

constexpr std::uint32_t kGrhBytes = 40;
constexpr std::size_t kPairsMax = 1u << 19;
constexpr std::size_t kMappedBytes = std::size_t{1} << 30;  // reserved address space; only pages in use take memory
constexpr std::size_t kPageBytes = 4096;

template <class T>
struct Ring {
  T* at = nullptr;
  std::uint32_t mask = 0, head = 0, tail = 0;

  bool empty() const noexcept { return head == tail; }
  void push(const T& value) noexcept {
    if (tail - head <= mask) at[tail++ & mask] = value;
  }
  T pop() noexcept { return at[head++ & mask]; }
};

struct Done {
  std::uint64_t id;
  std::uint32_t bytes, pair, immediate;
  bool is_write, has_immediate;
};
struct Queue {
  ibv_cq base{};
  Ring<Done> done;
};
struct Receive {
  std::uint64_t id;
  std::uint8_t* at;
};
struct Receives {
  ibv_srq base{};
  Ring<Receive> posted;
  std::uint32_t entries = 0;
  bool shared = false;
};
struct Pair {
  ibv_qp base{};
  Queue *sends = nullptr, *receives = nullptr;
  Receives* from = nullptr;
  std::uint32_t far = 0, send_requests = 0;
};

struct Stub {
  StubTraits traits;
  StubAsked asked;
  std::uint8_t* mapped = nullptr;
  std::size_t used_bytes = 0;
  Pair* pairs[kPairsMax] = {};
  std::uint32_t next_number = 1;
};

Stub stub;

template <class T>
T* take(std::size_t count = 1) {
  const std::size_t bytes = (count * sizeof(T) + 15) / 16 * 16;
  if (stub.mapped == nullptr) {
    void* mapped =
        ::mmap(nullptr, kMappedBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapped == MAP_FAILED) return nullptr;
    stub.mapped = static_cast<std::uint8_t*>(mapped);
  }
  if (stub.used_bytes + bytes > kMappedBytes) {
    errno = ENOMEM;
    return nullptr;
  }
  auto* found = reinterpret_cast<T*>(stub.mapped + stub.used_bytes);
  stub.used_bytes += bytes;
  for (std::size_t i = 0; i < count; ++i) new (found + i) T{};
  return found;
}

template <class T>
bool take_ring(std::uint32_t entries, Ring<T>* out) {
  const std::uint32_t size = std::bit_ceil(std::max(entries, 1u));
  out->at = take<T>(size);
  out->mask = size - 1;
  return out->at != nullptr;
}

Pair* pair_of(ibv_qp* qp) { return reinterpret_cast<Pair*>(qp); }
Queue* queue_of(ibv_cq* cq) { return reinterpret_cast<Queue*>(cq); }
Receives* receives_of(ibv_srq* srq) { return reinterpret_cast<Receives*>(srq); }

void deliver(std::uint32_t number, const ibv_send_wr& request) {
  Pair* to = number < kPairsMax ? stub.pairs[number] : nullptr;
  if (to == nullptr || to->from->posted.empty()) return;
  const Receive slot = to->from->posted.pop();
  // The payload of a write is not copied, because with a real NIC no CPU would copy it.
  if (request.opcode == IBV_WR_RDMA_WRITE_WITH_IMM) {
    to->receives->done.push({slot.id, request.sg_list[0].length, number, request.imm_data, true, true});
    return;
  }
  const std::uint32_t before = to->base.qp_type == IBV_QPT_UD ? kGrhBytes : 0;
  std::uint32_t total_bytes = 0, carried_bytes = 0;
  for (int i = 0; i < request.num_sge; ++i) {
    const ibv_sge& piece = request.sg_list[i];
    const std::uint32_t most = to->from->shared ? stub.traits.carried_bytes : total_bytes + piece.length;
    const std::uint32_t bytes = std::min(piece.length, most - carried_bytes);
    std::memcpy(slot.at + before + carried_bytes, reinterpret_cast<const void*>(piece.addr), bytes);
    carried_bytes += bytes;
    total_bytes += piece.length;
  }
  const bool claims = to->from->shared && total_bytes == stub.traits.carried_bytes && stub.traits.claimed_bytes != 0;
  const bool has_immediate = request.opcode == IBV_WR_SEND_WITH_IMM;
  const std::uint32_t said_bytes = claims && !has_immediate ? stub.traits.claimed_bytes : total_bytes;
  to->receives->done.push({slot.id, before + said_bytes, number, request.imm_data, false, has_immediate});
}

int post_send(ibv_qp* qp, ibv_send_wr* request, ibv_send_wr** bad) {
  Pair& pair = *pair_of(qp);
  if (stub.traits.refuses) {
    *bad = request;
    return EINVAL;
  }
  const bool ud = pair.base.qp_type == IBV_QPT_UD;
  for (; request != nullptr; request = request->next) {
    deliver(ud ? request->wr.ud.remote_qpn : pair.far, *request);
    if ((request->send_flags & IBV_SEND_SIGNALED) != 0) {
      pair.sends->done.push({request->wr_id, 0, pair.base.qp_num, 0, false, false});
    }
  }
  return 0;
}

void post_to(Receives* to, ibv_recv_wr* request) {
  for (; request != nullptr; request = request->next) {
    to->posted.push({request->wr_id, reinterpret_cast<std::uint8_t*>(request->sg_list[0].addr)});
  }
}
int post_recv(ibv_qp* qp, ibv_recv_wr* request, ibv_recv_wr**) {
  post_to(pair_of(qp)->from, request);
  return 0;
}
int post_srq_recv(ibv_srq* srq, ibv_recv_wr* request, ibv_recv_wr**) {
  post_to(receives_of(srq), request);
  return 0;
}

int poll_cq(ibv_cq* cq, int most, ibv_wc* out) {
  Ring<Done>& done = queue_of(cq)->done;
  int count = 0;
  for (; count < most && !done.empty(); ++count) {
    const Done one = done.pop();
    ibv_wc& said = out[count];
    said.wr_id = one.id;
    said.status = IBV_WC_SUCCESS;
    said.opcode = one.is_write ? IBV_WC_RECV_RDMA_WITH_IMM : IBV_WC_RECV;
    said.imm_data = one.immediate;
    said.byte_len = one.bytes;
    said.qp_num = one.pair;
    said.wc_flags = one.has_immediate ? IBV_WC_WITH_IMM : 0;
  }
  return count;
}

ibv_context* open_device(ibv_device* device) {
  ++stub.asked.calls;
  ibv_context* context = null_provider()->open_device(device);
  if (context == nullptr) return nullptr;
  context->ops.poll_cq = poll_cq;
  context->ops.post_send = post_send;
  context->ops.post_recv = post_recv;
  context->ops.post_srq_recv = post_srq_recv;
  return context;
}

ibv_mr* reg_mr(ibv_pd* pd, void* address, std::size_t bytes, int access) {
  ++stub.asked.calls;
  stub.asked.registered_bytes += static_cast<std::int64_t>(bytes);
  // Registering memory pins its pages, so this writes to each page; otherwise all would be the kernel's shared zero
  // page.
  for (std::size_t at = 0; at < bytes; at += kPageBytes) static_cast<volatile std::uint8_t*>(address)[at] = 0;
  return null_provider()->reg_mr(pd, address, bytes, access);
}
int dereg_mr(ibv_mr* region) {
  ++stub.asked.calls;
  stub.asked.registered_bytes -= static_cast<std::int64_t>(region->length);
  return null_provider()->dereg_mr(region);
}

ibv_ah* create_ah(ibv_pd* pd, ibv_ah_attr*) {
  ++stub.asked.calls;
  auto* made = take<ibv_ah>();
  if (made == nullptr) return nullptr;
  made->context = pd->context;
  ++stub.asked.addresses;
  return made;
}
int destroy_ah(ibv_ah*) {
  ++stub.asked.calls;
  --stub.asked.addresses;
  return 0;
}

ibv_cq* create_cq(ibv_context* context, int entries, void*, ibv_comp_channel*, int) {
  ++stub.asked.calls;
  auto* made = take<Queue>();
  if (made == nullptr || !take_ring(static_cast<std::uint32_t>(entries), &made->done)) return nullptr;
  made->base.context = context;
  made->base.cqe = entries;
  stub.asked.completions += entries;
  return &made->base;
}
int destroy_cq(ibv_cq* cq) {
  ++stub.asked.calls;
  stub.asked.completions -= cq->cqe;
  return 0;
}

Receives* make_receives(ibv_context* context, std::uint32_t entries, bool shared) {
  auto* made = take<Receives>();
  if (made == nullptr || !take_ring(entries, &made->posted)) return nullptr;
  made->base.context = context;
  made->entries = entries;
  made->shared = shared;
  stub.asked.receive_requests += entries;
  return made;
}
ibv_srq* create_srq(ibv_pd* pd, ibv_srq_init_attr* wanted) {
  ++stub.asked.calls;
  Receives* made = make_receives(pd->context, wanted->attr.max_wr, true);
  return made == nullptr ? nullptr : &made->base;
}
int destroy_srq(ibv_srq* srq) {
  ++stub.asked.calls;
  stub.asked.receive_requests -= receives_of(srq)->entries;
  return 0;
}

ibv_qp* create_qp(ibv_pd* pd, ibv_qp_init_attr* wanted) {
  ++stub.asked.calls;
  auto* made = stub.next_number < kPairsMax ? take<Pair>() : nullptr;
  if (made == nullptr) {
    errno = ENOMEM;
    return nullptr;
  }
  made->from =
      wanted->srq != nullptr ? receives_of(wanted->srq) : make_receives(pd->context, wanted->cap.max_recv_wr, false);
  if (made->from == nullptr) return nullptr;
  made->base.context = pd->context;
  made->base.qp_type = wanted->qp_type;
  made->base.qp_num = stub.next_number++;
  made->sends = queue_of(wanted->send_cq);
  made->receives = queue_of(wanted->recv_cq);
  made->send_requests = wanted->cap.max_send_wr;
  stub.pairs[made->base.qp_num] = made;
  ++stub.asked.queue_pairs;
  stub.asked.send_requests += made->send_requests;
  return &made->base;
}
int modify_qp(ibv_qp* qp, ibv_qp_attr* wanted, int mask) {
  ++stub.asked.calls;
  if ((mask & IBV_QP_DEST_QPN) != 0) pair_of(qp)->far = wanted->dest_qp_num;
  qp->state = wanted->qp_state;
  return 0;
}
int destroy_qp(ibv_qp* qp) {
  ++stub.asked.calls;
  const Pair& gone = *pair_of(qp);
  stub.pairs[qp->qp_num] = nullptr;
  --stub.asked.queue_pairs;
  stub.asked.send_requests -= gone.send_requests;
  if (!gone.from->shared) stub.asked.receive_requests -= gone.from->entries;
  return 0;
}

}  // namespace

const Ibv* stub_provider() {
  static const Ibv table = [] {
    Ibv made = *null_provider();
    made.open_device = &open_device;
    made.reg_mr = &reg_mr;
    made.dereg_mr = &dereg_mr;
    made.create_ah = &create_ah;
    made.destroy_ah = &destroy_ah;
    made.create_cq = &create_cq;
    made.destroy_cq = &destroy_cq;
    made.create_srq = &create_srq;
    made.destroy_srq = &destroy_srq;
    made.create_qp = &create_qp;
    made.modify_qp = &modify_qp;
    made.destroy_qp = &destroy_qp;
    return made;
  }();
  return &table;
}

void stub_provider_reset(const StubTraits& traits) {
  if (stub.mapped != nullptr) ::madvise(stub.mapped, kMappedBytes, MADV_DONTNEED);
  stub.used_bytes = 0;
  std::fill(stub.pairs, stub.pairs + std::min<std::size_t>(stub.next_number, kPairsMax), nullptr);
  stub.next_number = 1;
  stub.asked = {};
  stub.traits = traits;
}

void stub_provider_refuse(bool refuses) { stub.traits.refuses = refuses; }

StubAsked stub_provider_asked() { return stub.asked; }

}  // namespace weft::datapath
