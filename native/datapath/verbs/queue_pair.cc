// Sets the attributes of each queue pair state transition by transport type (InfiniBand Architecture Specification 1.4,
// table 91). Errors name the transition and the provider's reason.
#include "native/datapath/verbs/queue_pair.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

namespace weft::datapath {
namespace {

// RC sends again after 2^14 * 4.096 us = 67 ms, seven times. It waits forever for a receive slot, since a receiver
// without slots is not dead.
constexpr std::uint8_t kRcTimeout = 14, kRcRetries = 7, kRnrForever = 7, kRnrTimer = 12;
constexpr std::uint8_t kHopLimit = 64;
constexpr std::uint32_t kFlowLabelMask = 0xF'FFFF;

bool said(int code, const char* what, std::string* error) {
  if (code == 0) return true;
  *error = std::string("cannot move a queue pair to ") + what + ": " + std::strerror(code < 0 ? -code : code);
  return false;
}

}  // namespace

ibv_ah_attr address_of(const QpTraits& traits, const RemoteQp& remote) noexcept {
  ibv_ah_attr address{};
  address.port_num = traits.port;
  address.sl = traits.service_level;
  address.dlid = remote.lid;
  address.is_global = traits.global ? 1 : 0;
  if (traits.global) {
    address.grh.dgid = remote.gid;
    address.grh.sgid_index = traits.gid_index;
    address.grh.hop_limit = kHopLimit;
    address.grh.traffic_class = traits.traffic_class;
    address.grh.flow_label = remote.flow_label & kFlowLabelMask;
  }
  return address;
}

QueuePair::QueuePair(QueuePair&& other) noexcept { *this = std::move(other); }

QueuePair& QueuePair::operator=(QueuePair&& other) noexcept {
  if (this != &other) {
    reset();
    ibv_ = other.ibv_;
    qp_ = std::exchange(other.qp_, nullptr);
    type_ = other.type_;
    inline_bytes_ = other.inline_bytes_;
    sends_ = other.sends_;
    sends_under_way = other.sends_under_way;
  }
  return *this;
}

bool QueuePair::make(const Ibv* ibv, const Plan& plan, std::string* error) {
  reset();
  ibv_qp_init_attr wanted{};
  wanted.qp_type = plan.type;
  wanted.send_cq = plan.send_cq;
  wanted.recv_cq = plan.receive_cq;
  wanted.srq = plan.srq;
  wanted.cap.max_send_wr = plan.sends;
  wanted.cap.max_recv_wr = plan.srq != nullptr ? 0 : std::max(plan.receives, 1u);
  wanted.cap.max_send_sge = 2;
  wanted.cap.max_recv_sge = 1;
  wanted.cap.max_inline_data = plan.inline_bytes;
  qp_ = ibv->create_qp(plan.pd, &wanted);
  if (qp_ == nullptr && plan.inline_bytes != 0) {  // tries without inline sends, which not every provider supports
    wanted.cap.max_inline_data = 0;
    qp_ = ibv->create_qp(plan.pd, &wanted);
  }
  if (qp_ == nullptr) {
    *error = std::string("cannot create a queue pair: ") + std::strerror(errno) +
             (errno == ENOMEM ? "; lower WEFT_PATHS or raise the locked-memory limit (ulimit -l)" : "");
    return false;
  }
  ibv_ = ibv;
  type_ = plan.type;
  inline_bytes_ = wanted.cap.max_inline_data;
  sends_ = wanted.cap.max_send_wr;
  return true;
}

void QueuePair::reset() noexcept {
  if (qp_ != nullptr) static_cast<void>(ibv_->destroy_qp(qp_));
  qp_ = nullptr;
}

bool QueuePair::to_init(const QpTraits& traits, std::string* error) {
  ibv_qp_attr attributes{};
  attributes.qp_state = IBV_QPS_INIT;
  attributes.port_num = traits.port;
  int mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT;
  if (type_ == IBV_QPT_UD) {
    attributes.qkey = kQkey;
    mask |= IBV_QP_QKEY;
  } else {
    mask |= IBV_QP_ACCESS_FLAGS;  // no remote access by default, so the peer may only send
    if (traits.remote_writes) attributes.qp_access_flags = IBV_ACCESS_REMOTE_WRITE;
  }
  return said(ibv_->modify_qp(qp_, &attributes, mask), "INIT", error);
}

bool QueuePair::join(const QpTraits& traits, const RemoteQp& remote, std::uint32_t psn, std::string* error) {
  if (!to_init(traits, error)) return false;
  ibv_qp_attr attributes{};
  attributes.qp_state = IBV_QPS_RTR;
  int mask = IBV_QP_STATE;
  if (type_ != IBV_QPT_UD) {
    attributes.path_mtu = traits.mtu;
    attributes.dest_qp_num = remote.number;
    attributes.rq_psn = psn & kPsnMask;
    attributes.ah_attr = address_of(traits, remote);
    mask |= IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
  }
  if (type_ == IBV_QPT_RC) {
    attributes.max_dest_rd_atomic = 0;
    attributes.min_rnr_timer = kRnrTimer;
    mask |= IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
  }
  if (!said(ibv_->modify_qp(qp_, &attributes, mask), "RTR", error)) return false;
  attributes = {};
  attributes.qp_state = IBV_QPS_RTS;
  attributes.sq_psn = psn & kPsnMask;
  mask = IBV_QP_STATE | IBV_QP_SQ_PSN;
  if (type_ == IBV_QPT_RC) {
    attributes.timeout = kRcTimeout;
    attributes.retry_cnt = kRcRetries;
    attributes.rnr_retry = kRnrForever;
    attributes.max_rd_atomic = 0;
    mask |= IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
  }
  return said(ibv_->modify_qp(qp_, &attributes, mask), "RTS", error);
}

bool QueuePair::to_reset() noexcept {
  ibv_qp_attr attributes{};
  attributes.qp_state = IBV_QPS_RESET;
  return ibv_->modify_qp(qp_, &attributes, IBV_QP_STATE) == 0;
}

bool QueuePair::to_error() noexcept {
  ibv_qp_attr attributes{};
  attributes.qp_state = IBV_QPS_ERR;
  return ibv_->modify_qp(qp_, &attributes, IBV_QP_STATE) == 0;
}

}  // namespace weft::datapath
