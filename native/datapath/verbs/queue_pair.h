// Owns one queue pair and moves it through its states: created, connected to the remote end, error, reset.
#pragma once

#include <cstdint>
#include <string>

#include "native/datapath/verbs/ibv.h"

namespace weft::datapath {

enum class VerbsMode : std::uint8_t { uc, rc, ud };

constexpr const char* mode_name(VerbsMode mode) noexcept {
  return mode == VerbsMode::uc ? "UC" : mode == VerbsMode::rc ? "RC" : "UD";
}

// Attributes that all queue pairs of a port share: addressing, ECN and priority marking, MTU.
struct QpTraits {
  std::uint8_t port = 1;
  std::uint8_t gid_index = 0;
  std::uint8_t traffic_class = 0;
  std::uint8_t service_level = 0;
  ibv_mtu mtu = IBV_MTU_1024;
  bool remote_writes = false;  // the peer may write through memory windows; no other remote key is given out
  bool global = true;  // packets carry a global route header: needed by RoCE, but not within an InfiniBand subnet
};

struct RemoteQp {
  std::uint32_t number = 0;
  ibv_gid gid{};
  std::uint16_t lid = 0;
  std::uint32_t flow_label = 0;  // for RoCE v2: determines the UDP source port, and so the ECMP path
};

// Q_Key of all UD queue pairs; the NIC drops datagrams with another Q_Key.
inline constexpr std::uint32_t kQkey = 0x57454654;
inline constexpr std::uint32_t kPsnMask = 0xFFFFFF;

ibv_ah_attr address_of(const QpTraits& traits, const RemoteQp& remote) noexcept;

// Owns an ibv_qp and destroys it.
class QueuePair {
 public:
  struct Plan {
    ibv_qp_type type = IBV_QPT_UC;
    ibv_pd* pd = nullptr;
    ibv_cq *send_cq = nullptr, *receive_cq = nullptr;
    ibv_srq* srq = nullptr;  // shared receive queue; null: the queue pair has its own, of `receives` entries
    std::uint32_t sends = 0, receives = 0, inline_bytes = 0;
  };
  QueuePair() = default;
  QueuePair(const QueuePair&) = delete;
  QueuePair& operator=(const QueuePair&) = delete;
  QueuePair(QueuePair&& other) noexcept;
  QueuePair& operator=(QueuePair&& other) noexcept;
  ~QueuePair() { reset(); }

  bool make(const Ibv* ibv, const Plan& plan, std::string* error);
  void reset() noexcept;
  // Makes the queue pair ready to send. UC, RC: connects it to `remote`; packet numbers start at `psn` in both
  // directions. UD: it can then send to any remote end.
  bool join(const QpTraits& traits, const RemoteQp& remote, std::uint32_t psn, std::string* error);
  // Resets the queue pair, which flushes all outstanding requests. It must be joined again before use.
  bool to_reset() noexcept;
  bool to_error() noexcept;

  ibv_qp* get() const noexcept { return qp_; }
  std::uint32_t number() const noexcept { return qp_ == nullptr ? 0 : qp_->qp_num; }
  std::uint32_t inline_bytes_max() const noexcept { return inline_bytes_; }
  std::uint32_t sends_max() const noexcept { return sends_; }

  std::uint32_t sends_under_way = 0;  // send requests posted by the owner whose completion was not seen yet

 private:
  bool to_init(const QpTraits& traits, std::string* error);

  const Ibv* ibv_ = nullptr;
  ibv_qp* qp_ = nullptr;
  ibv_qp_type type_ = IBV_QPT_UC;
  std::uint32_t inline_bytes_ = 0, sends_ = 0;
};

}  // namespace weft::datapath
