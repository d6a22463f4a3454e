// Opens the flows of a connection on their engines, and the peers that flows share, from the handshake data of both
// ends; ends them with their session. Called by the control loop only.
#pragma once

#include <compare>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "native/control/frames.h"
#include "native/control/open_budget.h"
#include "native/engine/connection.h"
#include "native/engine/engine.h"
#include "native/engine/log_limit.h"
#include "native/engine/policies/policy_choice.h"
#include "native/engine/setup/datapath_choice.h"

namespace weft::control {

// The key of a peer. The session is part of it so that what one process claims cannot affect another, and comes first
// so that a session's peers are found together. `apart` keeps peers of one engine apart: all paths of a peer share one
// path policy, so the dialling end opens one peer for each path policy, and the listening end opens one for each peer
// of the dialling end.
struct PeerKey {
  std::uint64_t session = 0;
  std::uint32_t engine = 0, device = 0, remote_device = 0;
  std::uint16_t remote_engine = 0;
  std::uint64_t apart = 0;
  auto operator<=>(const PeerKey&) const = default;
};

// A flow reserved on a local engine, with this end's part of the data exchanged in the handshake.
struct LocalFlow {
  engine::Engine* engine = nullptr;
  PeerKey key;
  FlowEnd end;
};

// The two engines that a flow connects. Flows of the same engines whose `apart` differs do not share a peer.
struct FlowPlan {
  std::uint16_t local_engine = 0, remote_engine = 0;
  std::uint64_t apart = 0;
};

// What a session's data paths show about the peer process.
struct Survey {
  std::int64_t heard_ns = -1;  // when the last packet arrived from the peer process; -1: never
  // Set if a flow waits for a remote engine that has sent nothing for a quarter of the silence limit.
  bool quiet = false;
  std::size_t flows = 0;  // number of flows that are open or reserved
};

class FlowSetup {
 public:
  // `trace`: null: nothing is traced. `page`: the telemetry page that holds the counters of peers and flows. If it is
  // null or has no free row, they count in private memory.
  FlowSetup(const engine::Knobs* knobs, std::vector<std::unique_ptr<engine::Engine>>* engines,
            const engine::DatapathChoice* datapath, engine::TelemetryPage* page,
            std::shared_ptr<engine::TraceWriter> trace)
      : knobs_(knobs), engines_(engines), datapath_(datapath), page_(page), trace_(std::move(trace)) {}

  // Reserves one flow for each element of `plans`.
  Status reserve(std::uint32_t device, std::uint64_t session, std::uint32_t remote_device,
                 const std::vector<FlowPlan>& plans, std::vector<LocalFlow>* out, std::string* error);
  // Fills in this end's fields of an open frame.
  void describe(std::uint32_t device, const std::vector<LocalFlow>& flows, const datapath::SocketAddress* to,
                Open* out) const;
  // Opens peers and flows with the data of the peer's frame. On failure, everything that was reserved is released.
  // `rtt_expected_ns`: round-trip time of a control socket to the same process; 0: unknown. `open_bytes`: size of the
  // frame of a peer that may be unauthenticated; -1: it is authenticated.
  Status open(std::uint64_t connection, const std::vector<LocalFlow>& flows, const engine::PolicySet& policies,
              const Open& remote, std::uint32_t segment_bytes, std::int64_t rtt_expected_ns, std::int64_t open_bytes,
              const std::string& peer_address, engine::Notifier* notifier, std::shared_ptr<engine::ConnectionCore>* out,
              std::string* error);
  void give_back(const std::vector<LocalFlow>& flows);
  // Ends the session's flows with `reason`. The remote ends are notified unless the reason is peer_dead.
  void forget(std::uint64_t session, Status reason);
  // Collects what the session's data paths show. With `probe`, also sends a probe to each peer; the next survey shows
  // the replies.
  Survey survey(std::uint64_t session, bool probe);
  std::size_t peers_of(std::uint64_t session) const;
  // What an accepted session of an unauthenticated peer holds, as of the last count(). `more`: flows that it asks for;
  // they are counted as if they were open.
  Holding holding(std::uint64_t session, const std::vector<PeerKey>& more = {}) const;
  // For unauthenticated peers of one session, or of all sessions if `session` is 0: counts their flows and notes which
  // have answered, with one call to each engine. Sends at most kAsksMax further probes to a peer that never answered.
  void count(std::int64_t now_ns, std::uint64_t session = 0);
  void credit_pause(std::int64_t pause_ns) noexcept;  // extends the peers' deadlines by a pause of this process
  // The session to which a peer of an engine belongs; 0: none.
  std::uint64_t session_of(std::uint32_t engine, std::uint32_t peer) const;

 private:
  struct PeerPlace {
    std::uint32_t index = 0;
    std::uint64_t token = 0;
    std::uint32_t remote_index = 0;
    std::uint64_t remote_token = 0;
    std::string params;          // endpoint parameters that our datapath states to the peer's datapath
    std::uint32_t reserved = 0;  // flows that are neither open nor released
    bool open = false;
    bool strange = false;              // opened by a peer that is not authenticated
    bool silent = false;               // strange, and has never answered over a data path
    std::int64_t silent_since_ns = 0;  // time at which this silent peer was opened
    std::uint32_t asked = 0;           // number of times that count() has asked the peer for an answer
    std::uint32_t paths = 0;
    std::uint32_t flows = 0;                // flows that are open, as of the last count()
    telemetry::PeerPageRow* row = nullptr;  // released by the engine; null: not in the telemetry page
  };
  void log_notice(engine::Engine* engine);  // logs the datapath's notice about the links set up since the last call
  Status reserve_peer(engine::Engine* engine, std::uint32_t device, PeerPlace* place, std::string* error);
  Status open_peer(const LocalFlow& local, const engine::PolicySet& policies, const FlowEnd& remote, const Open& open,
                   std::uint32_t segment_bytes, std::int64_t rtt_expected_ns, std::int64_t open_bytes,
                   std::string* error);
  void release_place(std::map<PeerKey, PeerPlace>::iterator place) noexcept;
  // The peers of a session; `session` 0: the peers of all sessions.
  std::pair<std::map<PeerKey, PeerPlace>::iterator, std::map<PeerKey, PeerPlace>::iterator> range(
      std::uint64_t session) noexcept {
    if (session == 0) return {peers_.begin(), peers_.end()};
    return {peers_.lower_bound(PeerKey{.session = session}), peers_.lower_bound(PeerKey{.session = session + 1})};
  }
  static void defer_flows(const std::vector<LocalFlow>& flows, const engine::PolicySet& policies, const Open& remote,
                          engine::ConnectionCore* core);
  Status take_spare(engine::Engine* engine, std::uint32_t* index);
  Status open_home(const LocalFlow& flow, const engine::PolicySet& policies, const Open& remote,
                   const std::shared_ptr<engine::ConnectionCore>& core);
  Status open_flow(const LocalFlow& flow, std::size_t stripe, const engine::PolicySet& policies, const Open& remote,
                   const std::shared_ptr<engine::ConnectionCore>& core);

  // Payload checksums are on by default for UDP sockets, because a middlebox may damage the payload and then repair the
  // UDP checksum. Queue pairs have a CRC that no middlebox recomputes.
  bool checks_payload() const noexcept {
    if (knobs_->payload_crc != engine::CrcMode::automatic) return knobs_->payload_crc == engine::CrcMode::on;
    return datapath_->entry->unprotected || knobs_->fault_corrupt > 0;
  }

  const engine::Knobs* knobs_;
  std::vector<std::unique_ptr<engine::Engine>>* engines_;
  const engine::DatapathChoice* datapath_;
  engine::TelemetryPage* page_;
  std::shared_ptr<engine::TraceWriter> trace_;
  std::map<std::uint32_t, std::vector<std::uint32_t>> spare_;  // by engine: reserved flows that no connection has
  std::map<PeerKey, PeerPlace> peers_;
  std::unordered_map<std::uint64_t, std::uint64_t> sessions_;  // engine << 32 | peer -> session
  // Limits warnings about missing paths. Engines' threads use it, one at a time, while the control loop waits for
  // them.
  engine::LogLimit missing_log_;
};

std::uint64_t random_token() noexcept;  // random and not 0
void random_tokens(std::uint64_t* tokens, std::size_t count) noexcept;

}  // namespace weft::control
