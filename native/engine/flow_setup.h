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

namespace weft::engine {

// A flow reserved on one of our engines: our half of what the frames carry.
struct LocalFlow {
  Engine* engine = nullptr;
  FlowEnd end;
};

class FlowSetup {
 public:
  FlowSetup(const Knobs* knobs, std::vector<std::unique_ptr<Engine>>* engines, const std::vector<DeviceState>* devices)
      : knobs_(knobs), engines_(engines), devices_(devices) {}

  // Reserves flow `i` on local engine `engines[i].first` towards remote engine `engines[i].second`.
  Status reserve(std::uint32_t device, std::uint64_t channel, std::uint32_t remote_device,
                 const std::vector<std::pair<std::uint16_t, std::uint16_t>>& engines, std::vector<LocalFlow>* out,
                 std::string* error);
  // Fills what an open frame says of our end.
  void describe(std::uint32_t device, const std::vector<LocalFlow>& flows, const datapath::SocketAddress* to,
                Open* out) const;
  // Opens peers and flows with the other end's half. On failure everything is given back.
  Status open(std::uint32_t device, std::uint64_t channel, std::uint64_t connection,
              const std::vector<LocalFlow>& flows, const Open& remote, std::uint32_t segment_bytes,
              const std::string& peer_address, Notifier* notifier, std::shared_ptr<ConnectionCore>* out,
              std::string* error);
  void give_back(const std::vector<LocalFlow>& flows);
  // The process at the other end of the channel is gone: its peers will never be used again.
  void forget(std::uint64_t channel);

 private:
  // A peer belongs to the channel it was met on: what one process says of itself cannot touch another's.
  // local engine, channel, local device, remote device, remote engine
  using PeerKey = std::tuple<std::uint32_t, std::uint64_t, std::uint32_t, std::uint32_t, std::uint16_t>;
  struct PeerPlace {
    std::uint32_t index = 0;
    std::uint64_t token = 0;
    std::uint32_t remote_index = 0;
    std::uint64_t remote_token = 0;
    bool open = false;
  };
  // Our data ports of a device on an engine, opened when first needed.
  bool open_ports(Engine* engine, std::uint32_t device, std::vector<std::uint32_t>* out, std::string* error);
  Status open_peer(const PeerKey& key, const LocalFlow& local, const FlowEnd& remote, const Open& open,
                   std::uint32_t segment_bytes, std::string* error);
  std::vector<Route> make_routes(const LocalFlow& local, const FlowEnd& remote, const Open& open, std::uint32_t device,
                                 std::size_t path_count) const;

  const Knobs* knobs_;
  std::vector<std::unique_ptr<Engine>>* engines_;
  const std::vector<DeviceState>* devices_;
  std::map<PeerKey, PeerPlace> peers_;
  std::map<std::pair<std::uint32_t, std::uint32_t>, std::vector<std::uint32_t>> ports_;  // by engine and device
};

std::uint64_t random_token() noexcept;

}  // namespace weft::engine
