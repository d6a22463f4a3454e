// Opens the flows of a connection on their engines, and the peers they share, from what both ends said in the
// handshake. Called by the control thread alone; speaks no control frame.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "native/engine/connection.h"
#include "native/engine/devices.h"
#include "native/engine/engine.h"
#include "native/engine/frames.h"
#include "native/engine/policy_choice.h"

namespace weft::engine {

// A peer belongs to the channel it was met on: what one process says of itself cannot touch another's.
// Local engine, channel, local device, remote device, remote engine, and what tells peers of one engine apart: paths
// have one policy, so the dialling end opens a peer for each path policy, and the listening end one for each of those.
using PeerKey = std::tuple<std::uint32_t, std::uint64_t, std::uint32_t, std::uint32_t, std::uint16_t, std::uint64_t>;

// A flow reserved on one of our engines: our half of what the frames carry.
struct LocalFlow {
  Engine* engine = nullptr;
  PeerKey key;
  FlowEnd end;
};

// Which engines a flow joins, and the last part of its peer's key.
struct FlowPlan {
  std::uint16_t local_engine = 0, remote_engine = 0;
  std::uint64_t apart = 0;
};

class FlowSetup {
 public:
  FlowSetup(const Knobs* knobs, std::vector<std::unique_ptr<Engine>>* engines, const std::vector<DeviceState>* devices)
      : knobs_(knobs), engines_(engines), devices_(devices) {}

  // Reserves a flow for each plan.
  Status reserve(std::uint32_t device, std::uint64_t channel, std::uint32_t remote_device,
                 const std::vector<FlowPlan>& plans, std::vector<LocalFlow>* out, std::string* error);
  // Fills what an open frame says of our end.
  void describe(std::uint32_t device, const std::vector<LocalFlow>& flows, const datapath::SocketAddress* to,
                Open* out) const;
  // Opens peers and flows with the other end's half. On failure everything is given back.
  Status open(std::uint64_t connection, const std::vector<LocalFlow>& flows, const PolicySet& policies,
              const Open& remote, std::uint32_t segment_bytes, const std::string& peer_address, Notifier* notifier,
              std::shared_ptr<ConnectionCore>* out, std::string* error);
  void give_back(const std::vector<LocalFlow>& flows);
  // The process at the other end of the channel is gone: its peers will never be used again.
  void forget(std::uint64_t channel);

 private:
  struct PeerPlace {
    std::uint32_t index = 0;
    std::uint64_t token = 0;
    std::uint32_t remote_index = 0;
    std::uint64_t remote_token = 0;
    std::string words;           // of our datapath, for its peer
    std::uint32_t reserved = 0;  // flows that are neither open nor given back
    bool open = false;
  };
  Status reserve_peer(Engine* engine, std::uint32_t device, PeerPlace* place, std::string* error);
  Status open_peer(const LocalFlow& local, const PolicySet& policies, const FlowEnd& remote, const Open& open,
                   std::uint32_t segment_bytes, std::string* error);

  // By default over sockets, whose checksum a box on the way may repair after it has damaged the payload; queue pairs
  // have a CRC that no box touches.
  bool checks_payload(std::uint32_t device) const noexcept {
    if (knobs_->payload_crc != CrcMode::automatic) return knobs_->payload_crc == CrcMode::on;
    return (*devices_)[device].over_sockets() || knobs_->fault_corrupt > 0;
  }

  const Knobs* knobs_;
  std::vector<std::unique_ptr<Engine>>* engines_;
  const std::vector<DeviceState>* devices_;
  std::map<PeerKey, PeerPlace> peers_;
};

std::uint64_t random_token() noexcept;

}  // namespace weft::engine
