// Changes the state of queue pairs and checks the attributes that each transition requires (InfiniBand Architecture
// Specification 1.4, table 91). Unsupported attributes are refused here; otherwise packets would not arrive, and
// nothing would explain why.
#include <algorithm>
#include <cerrno>

#include "tests/softverbs/native/adapter.h"

namespace weft::softverbs {
namespace {

constexpr std::uint32_t kInlineBytesMax = 512, kPiecesMax = 32, kRequestsMax = 1u << 16;

// Returns the attributes that a state transition requires for this transport, as a bit mask; -1 if the transition is
// not valid.
int required(ibv_qp_type type, ibv_qp_state from, ibv_qp_state to) {
  const bool reliable = type == IBV_QPT_RC, datagrams = type == IBV_QPT_UD;
  if (to == IBV_QPS_RESET || to == IBV_QPS_ERR) return 0;
  if (from == IBV_QPS_RESET && to == IBV_QPS_INIT) {
    return IBV_QP_PKEY_INDEX | IBV_QP_PORT | (datagrams ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS);
  }
  if (from == IBV_QPS_INIT && to == IBV_QPS_RTR) {
    if (datagrams) return 0;
    return IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
           (reliable ? IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER : 0);
  }
  if (from == IBV_QPS_RTR && to == IBV_QPS_RTS) {
    return IBV_QP_SQ_PSN |
           (reliable ? IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC : 0);
  }
  return from == to && from != IBV_QPS_RESET ? 0 : -1;
}

// Decodes a timeout: 4.096 us times 2 to the power of `field`; 0: no timeout.
std::int64_t timeout_ns_of(std::uint8_t field) { return field == 0 ? 0 : std::int64_t{4096} << (field & 31); }

// Decodes an RNR timer (InfiniBand Architecture Specification 1.4, table 45). The table is in units of 10 us; its first
// value is the longest.
std::int64_t not_ready_ns_of(std::uint8_t field) {
  constexpr int kTens[32] = {65536, 1,    2,    3,    4,    6,     8,     12,    16,    24,   32,
                             48,    64,   96,   128,  192,  256,   384,   512,   768,   1024, 1536,
                             2048,  3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152};
  return std::int64_t{kTens[field & 31]} * 10'000;
}

bool set_address(Qp* pair, const ibv_ah_attr& address) {
  if (address.is_global == 0 || address.grh.sgid_index != 0 || address.port_num != 1) return false;
  pair->far = address.grh.dgid;
  pair->traffic_class = address.grh.traffic_class;
  return true;
}

}  // namespace

Qp* Adapter::find(std::uint32_t number) noexcept {
  const auto found = pairs_.find(number);
  return found == pairs_.end() ? nullptr : found->second.get();
}

Qp* Adapter::add_pair(ibv_pd* pd, const ibv_qp_init_attr& wanted) {
  const ibv_qp_cap& most = wanted.cap;
  const bool known = wanted.qp_type == IBV_QPT_RC || wanted.qp_type == IBV_QPT_UC || wanted.qp_type == IBV_QPT_UD;
  if (!known || wanted.send_cq == nullptr || wanted.recv_cq == nullptr || most.max_send_wr > kRequestsMax ||
      most.max_recv_wr > kRequestsMax || most.max_send_sge > kPiecesMax || most.max_recv_sge > kPiecesMax ||
      most.max_inline_data > kInlineBytesMax) {
    errno = EINVAL;
    return nullptr;
  }
  auto made = std::make_unique<Qp>();
  while (pairs_.count(next_number_) != 0 || next_number_ < 2) next_number_ = (next_number_ + 1) & kPsnMask;
  made->context = pd->context;
  made->pd = pd;
  made->qp_type = wanted.qp_type;
  made->qp_context = wanted.qp_context;
  made->qp_num = next_number_;
  next_number_ = (next_number_ + 1) & kPsnMask;
  made->state = IBV_QPS_RESET;
  made->send_cq = wanted.send_cq;
  made->recv_cq = wanted.recv_cq;
  made->srq = wanted.srq;
  made->sends = static_cast<Cq*>(wanted.send_cq);
  made->completes_to = static_cast<Cq*>(wanted.recv_cq);
  made->own.most = most.max_recv_wr;
  made->send_most = most.max_send_wr;
  made->send_pieces_most = most.max_send_sge;
  made->receive_pieces_most = most.max_recv_sge;
  made->inline_most = most.max_inline_data;
  made->signals_all = wanted.sq_sig_all != 0;
  return (pairs_[made->qp_num] = std::move(made)).get();
}

// Resets the queue pair's state. A receive that it had taken from a shared queue is returned there.
static void reset(Qp* pair) {
  Adapter::forget(pair->sends, pair->qp_num);
  Adapter::forget(pair->completes_to, pair->qp_num);
  if (pair->receive && pair->srq != nullptr) receives_of(*pair).posted.push_front(std::move(*pair->receive));
  pair->receive.reset();
  pair->own.posted.clear();
  pair->requests.clear();
  pair->at = 0;
  pair->in_message = pair->refused_gap = false;
  pair->rest_until_ns = pair->answer_due_ns = pair->full_since_ns = 0;
}

void Adapter::remove_pair(Qp* pair) {
  reset(pair);
  std::erase_if(static_cast<Context*>(pair->context)->events, [pair](const ibv_async_event& event) {
    return event.element.qp == pair && event.event_type != IBV_EVENT_CQ_ERR;
  });
  busy_.erase(pair->qp_num);
  pairs_.erase(pair->qp_num);
}

int Adapter::modify(Qp* pair, const ibv_qp_attr& wanted, int mask) {
  const ibv_qp_state from = pair->state;
  const ibv_qp_state to = (mask & IBV_QP_STATE) != 0 ? wanted.qp_state : from;
  const int needed = required(pair->qp_type, from, to);
  if (needed < 0 || (mask & needed) != needed) return EINVAL;
  if ((mask & IBV_QP_PORT) != 0 && wanted.port_num != 1) return EINVAL;
  if ((mask & IBV_QP_PKEY_INDEX) != 0 && wanted.pkey_index != 0) return EINVAL;
  const std::uint32_t mtu_bytes = 128u << static_cast<unsigned>(wanted.path_mtu);
  if ((mask & IBV_QP_PATH_MTU) != 0 && (mtu_bytes < 256 || mtu_bytes > settings.mtu_bytes)) return EINVAL;
  if ((mask & IBV_QP_AV) != 0 && !set_address(pair, wanted.ah_attr)) return EINVAL;
  if ((mask & IBV_QP_PATH_MTU) != 0) pair->mtu_bytes = mtu_bytes;
  if (pair->qp_type == IBV_QPT_UD) pair->mtu_bytes = static_cast<std::uint32_t>(settings.mtu_bytes);
  if ((mask & IBV_QP_ACCESS_FLAGS) != 0) pair->access = static_cast<int>(wanted.qp_access_flags);
  if ((mask & IBV_QP_QKEY) != 0) pair->qkey = wanted.qkey;
  if ((mask & IBV_QP_DEST_QPN) != 0) pair->far_number = wanted.dest_qp_num;
  if ((mask & IBV_QP_RQ_PSN) != 0) pair->expected_psn = wanted.rq_psn & kPsnMask;
  if ((mask & IBV_QP_SQ_PSN) != 0) pair->next_psn = pair->unacked_psn = wanted.sq_psn & kPsnMask;
  if ((mask & IBV_QP_TIMEOUT) != 0) pair->timeout_ns = timeout_ns_of(wanted.timeout);
  if ((mask & IBV_QP_RETRY_CNT) != 0) pair->retries = pair->retries_left = wanted.retry_cnt;
  if ((mask & IBV_QP_RNR_RETRY) != 0) pair->not_ready_retries = pair->not_ready_left = wanted.rnr_retry;
  if ((mask & IBV_QP_MIN_RNR_TIMER) != 0) pair->not_ready_ns = not_ready_ns_of(wanted.min_rnr_timer);
  if (to == IBV_QPS_ERR) {
    fail(pair, std::nullopt);
  } else if (to == IBV_QPS_RESET) {
    reset(pair);
    pair->state = IBV_QPS_RESET;
  } else {
    pair->state = to;
  }
  return 0;
}

void Adapter::fail(Qp* pair, std::optional<ibv_event_type> event) {
  if (pair->state == IBV_QPS_ERR) return;
  pair->state = IBV_QPS_ERR;
  while (!pair->requests.empty()) {
    const Request request = std::move(pair->requests.front());
    pair->requests.pop_front();
    complete_request(pair, request, IBV_WC_WR_FLUSH_ERR);
  }
  pair->at = 0;
  flush_receives(pair);
  auto* const context = static_cast<Context*>(pair->context);
  if (event) raise(context, *event, pair, nullptr);
  if (pair->srq != nullptr) raise(context, IBV_EVENT_QP_LAST_WQE_REACHED, pair, nullptr);
}

}  // namespace weft::softverbs
