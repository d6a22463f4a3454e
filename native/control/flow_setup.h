// Opens the flows of a connection on their engines, and the peers they share, from what both ends said in the
// handshake; ends them with their session. Called by the control thread alone.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "native/control/frames.h"
#include "native/engine/connection.h"
#include "native/engine/engine.h"
#include "native/engine/log_limit.h"
#include "native/engine/policies/policy_choice.h"
#include "native/engine/setup/datapath_choice.h"

namespace weft::control {

// A peer belongs to the session it was met in: what one process says of itself cannot touch another's.
// Local engine, session, local device, remote device, remote engine, and what tells peers of one engine apart: paths
// have one policy, so the dialling end opens a peer for each path policy, and the listening end one for each of those.
using PeerKey = std::tuple<std::uint32_t, std::uint64_t, std::uint32_t, std::uint32_t, std::uint16_t, std::uint64_t>;

// A flow reserved on one of our engines: our half of what the frames carry.
struct LocalFlow {
  engine::Engine* engine = nullptr;
  PeerKey key;
  FlowEnd end;
};

// Which engines a flow joins, and the last part of its peer's key.
struct FlowPlan {
  std::uint16_t local_engine = 0, remote_engine = 0;
  std::uint64_t apart = 0;
};

// What a session's data paths tell of the process at their other end.
struct Survey {
  std::int64_t heard_ns = -1;  // when anything was last heard of it; -1: never
  bool quiet = false;          // a flow waits for one of its engines, which was not heard for a quarter of the silence
  std::size_t flows = 0;       // open or reserved
};

class FlowSetup {
 public:
  // `page`: where peers and flows count; null: in memory of their own, as those for which it has no row left.
  FlowSetup(const engine::Knobs* knobs, std::vector<std::unique_ptr<engine::Engine>>* engines,
            const engine::DatapathChoice* datapath, engine::TelemetryPage* page)
      : knobs_(knobs), engines_(engines), datapath_(datapath), page_(page) {}

  // Reserves a flow for each plan.
  Status reserve(std::uint32_t device, std::uint64_t session, std::uint32_t remote_device,
                 const std::vector<FlowPlan>& plans, std::vector<LocalFlow>* out, std::string* error);
  // Fills what an open frame says of our end.
  void describe(std::uint32_t device, const std::vector<LocalFlow>& flows, const datapath::SocketAddress* to,
                Open* out) const;
  // Opens peers and flows with the other end's half. On failure everything is given back. `rtt_expected_ns`: the round
  // trip of a control socket to the same process; 0: unknown.
  Status open(std::uint64_t connection, const std::vector<LocalFlow>& flows, const engine::PolicySet& policies,
              const Open& remote, std::uint32_t segment_bytes, std::int64_t rtt_expected_ns,
              const std::string& peer_address, engine::Notifier* notifier, std::shared_ptr<engine::ConnectionCore>* out,
              std::string* error);
  void give_back(const std::vector<LocalFlow>& flows);
  // The session is over: its flows end with `reason`. Peers that may still listen (any reason but peer_dead) are told.
  void forget(std::uint64_t session, Status reason);
  // With `probe` each peer is asked for a sign of life, which the next survey will show.
  Survey survey(std::uint64_t session, bool probe);
  std::size_t peers_of(std::uint64_t session) const;
  // The session that an engine's peer belongs to; 0: none (any more).
  std::uint64_t session_of(std::uint32_t engine, std::uint32_t peer) const;

 private:
  struct PeerPlace {
    std::uint32_t index = 0;
    std::uint64_t token = 0;
    std::uint32_t remote_index = 0;
    std::uint64_t remote_token = 0;
    std::string words;           // of our datapath, for its peer
    std::uint32_t reserved = 0;  // flows that are neither open nor given back
    bool open = false;
    telemetry::PeerPageRow* row = nullptr;  // null: not in the telemetry page; the engine gives it back
  };
  Status reserve_peer(engine::Engine* engine, std::uint32_t device, PeerPlace* place, std::string* error);
  Status open_peer(const LocalFlow& local, const engine::PolicySet& policies, const FlowEnd& remote, const Open& open,
                   std::uint32_t segment_bytes, std::int64_t rtt_expected_ns, std::string* error);
  telemetry::FlowPageRow* take_flow_row(std::uint64_t connection, const LocalFlow& flow, std::size_t stripe,
                                        std::size_t stripes) noexcept;

  // By default over sockets, whose checksum a box on the way may repair after it has damaged the payload; queue pairs
  // have a CRC that no box touches.
  bool checks_payload() const noexcept {
    if (knobs_->payload_crc != engine::CrcMode::automatic) return knobs_->payload_crc == engine::CrcMode::on;
    return datapath_->entry->unprotected || knobs_->fault_corrupt > 0;
  }

  const engine::Knobs* knobs_;
  std::vector<std::unique_ptr<engine::Engine>>* engines_;
  const engine::DatapathChoice* datapath_;
  engine::TelemetryPage* page_;
  std::map<PeerKey, PeerPlace> peers_;
  engine::LogLimit missing_log_;  // of paths; used on engines' threads, one at a time, while the control thread waits
};

std::uint64_t random_token() noexcept;

}  // namespace weft::control
