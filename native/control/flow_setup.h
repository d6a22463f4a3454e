// Opens the flows of a connection on their engines, and the peers that flows share, from the handshake data of both
// ends; ends them with their session. Called by the control thread only.
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

// Key of a peer: local engine, session, local device, remote device, remote engine, and a last part that separates
// peers of one engine. It includes the session so that one process's claims cannot affect another process. Because all
// paths of a peer have one path policy, the dialling end opens a peer for each path policy, and the listening end one
// for each of those.
using PeerKey = std::tuple<std::uint32_t, std::uint64_t, std::uint32_t, std::uint32_t, std::uint16_t, std::uint64_t>;

// A flow reserved on a local engine: this end's half of what the frames carry.
struct LocalFlow {
  engine::Engine* engine = nullptr;
  PeerKey key;
  FlowEnd end;
};

// The two engines that a flow connects, and the last part of its peer's key.
struct FlowPlan {
  std::uint16_t local_engine = 0, remote_engine = 0;
  std::uint64_t apart = 0;
};

// What a session's data paths show about the peer process.
struct Survey {
  std::int64_t heard_ns = -1;  // when the last packet arrived from it; -1: never
  bool quiet = false;  // a flow waits for one of its engines, which has sent nothing for a quarter of the silence limit
  std::size_t flows = 0;  // open or reserved
};

class FlowSetup {
 public:
  // `page`: holds the counters of peers and flows. Without it, or if it has no free row, they count in private memory.
  FlowSetup(const engine::Knobs* knobs, std::vector<std::unique_ptr<engine::Engine>>* engines,
            const engine::DatapathChoice* datapath, engine::TelemetryPage* page)
      : knobs_(knobs), engines_(engines), datapath_(datapath), page_(page) {}

  // Reserves a flow for each plan.
  Status reserve(std::uint32_t device, std::uint64_t session, std::uint32_t remote_device,
                 const std::vector<FlowPlan>& plans, std::vector<LocalFlow>* out, std::string* error);
  // Fills in this end's fields of an open frame.
  void describe(std::uint32_t device, const std::vector<LocalFlow>& flows, const datapath::SocketAddress* to,
                Open* out) const;
  // Opens peers and flows with the peer's half. On failure everything reserved is released. `rtt_expected_ns`: round-
  // trip time of a control socket to the same process; 0: unknown.
  Status open(std::uint64_t connection, const std::vector<LocalFlow>& flows, const engine::PolicySet& policies,
              const Open& remote, std::uint32_t segment_bytes, std::int64_t rtt_expected_ns,
              const std::string& peer_address, engine::Notifier* notifier, std::shared_ptr<engine::ConnectionCore>* out,
              std::string* error);
  void give_back(const std::vector<LocalFlow>& flows);
  // Ends the session's flows with `reason`. Remote ends that may still run (any reason but peer_dead) are notified.
  void forget(std::uint64_t session, Status reason);
  // With `probe`, each peer is also probed; the next survey shows the reply.
  Survey survey(std::uint64_t session, bool probe);
  std::size_t peers_of(std::uint64_t session) const;
  // The session that an engine's peer belongs to; 0: none.
  std::uint64_t session_of(std::uint32_t engine, std::uint32_t peer) const;

 private:
  struct PeerPlace {
    std::uint32_t index = 0;
    std::uint64_t token = 0;
    std::uint32_t remote_index = 0;
    std::uint64_t remote_token = 0;
    std::string words;           // of our datapath, for the peer's datapath
    std::uint32_t reserved = 0;  // flows that are neither open nor released
    bool open = false;
    telemetry::PeerPageRow* row = nullptr;  // null: not in the telemetry page; released by the engine
  };
  Status reserve_peer(engine::Engine* engine, std::uint32_t device, PeerPlace* place, std::string* error);
  Status open_peer(const LocalFlow& local, const engine::PolicySet& policies, const FlowEnd& remote, const Open& open,
                   std::uint32_t segment_bytes, std::int64_t rtt_expected_ns, std::string* error);
  telemetry::FlowPageRow* take_flow_row(std::uint64_t connection, const LocalFlow& flow, std::size_t stripe,
                                        std::size_t stripes) noexcept;

  // By default on for sockets: a middlebox may damage the payload and then repair the UDP checksum. Queue pairs have a
  // CRC that no middlebox recomputes.
  bool checks_payload() const noexcept {
    if (knobs_->payload_crc != engine::CrcMode::automatic) return knobs_->payload_crc == engine::CrcMode::on;
    return datapath_->entry->unprotected || knobs_->fault_corrupt > 0;
  }

  const engine::Knobs* knobs_;
  std::vector<std::unique_ptr<engine::Engine>>* engines_;
  const engine::DatapathChoice* datapath_;
  engine::TelemetryPage* page_;
  std::map<PeerKey, PeerPlace> peers_;
  engine::LogLimit
      missing_log_;  // for missing paths; used on engines' threads, one at a time, while the control thread waits
};

std::uint64_t random_token() noexcept;

}  // namespace weft::control
