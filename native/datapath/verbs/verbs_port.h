// One port of an RDMA device as one engine has it: context, protection domain, completion queues, and the slots that
// everything is received into and sent from.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "native/datapath/datapath.h"
#include "native/datapath/verbs/queue_pair.h"
#include "native/datapath/verbs/windows.h"

namespace weft::datapath {

struct VerbsOptions {
  std::string library;  // as load_ibv takes it
  VerbsMode mode = VerbsMode::uc;
  std::uint32_t segment_bytes = 0;  // the largest datagram
  std::uint32_t slots = 2048;       // a direction
  std::uint32_t mtu_bytes = 0;      // of a packet; 0: the port's active one
  std::uint8_t traffic_class = 0;
  std::uint8_t service_level = 0;
  bool spread_source_ports = true;
  bool direct = false;        // payload is written to where it belongs, where memory is registered (decision 0011)
  double fault_qp_error = 0;  // injected: probability that a burst finds its queue pair moved to error
  FaultRates faults;
};

// Equal pieces of one registered block.
class SlotArray {
 public:
  SlotArray() = default;
  SlotArray(const SlotArray&) = delete;
  SlotArray& operator=(const SlotArray&) = delete;
  ~SlotArray() { close(); }
  bool open(const Ibv* ibv, ibv_pd* pd, std::uint32_t count, std::uint32_t slot_bytes, std::string* error);
  void close() noexcept;

  std::uint32_t count() const noexcept { return count_; }
  std::uint32_t slot_bytes() const noexcept { return slot_bytes_; }
  std::uint32_t key() const noexcept { return region_->lkey; }
  std::uint8_t* at(std::uint32_t slot) const noexcept { return bytes_ + std::size_t{slot} * slot_bytes_; }

 private:
  const Ibv* ibv_ = nullptr;
  ibv_mr* region_ = nullptr;
  std::uint8_t* bytes_ = nullptr;
  std::size_t total_bytes_ = 0;
  std::uint32_t count_ = 0, slot_bytes_ = 0;
};

// The 40 bytes that a UD queue pair puts before what it receives.
inline constexpr std::uint32_t kGrhBytes = 40;
// Work requests a queue pair holds: 256 paths to 1,000 peers have to fit in memory, at 64 to 128 bytes each.
inline constexpr std::uint32_t kSendsPerQp = 64;
// A written segment is two requests.
inline constexpr std::uint32_t sends_per_qp(const VerbsOptions& options) noexcept {
  return options.direct ? 2 * kSendsPerQp : kSendsPerQp;
}
inline constexpr std::uint32_t kControlSends = 256;
inline constexpr std::uint32_t kControlSlots = 512;

// The newest write that a queue pair of ours took: its header follows on the same queue pair, or was lost.
struct Landed {
  std::uint32_t immediate = 0, bytes = 0;
  bool fresh = false;
};

class VerbsPort {
 public:
  VerbsPort() = default;
  VerbsPort(const VerbsPort&) = delete;
  VerbsPort& operator=(const VerbsPort&) = delete;
  ~VerbsPort() { close(); }

  bool open(const Ibv* ibv, const Place& place, const VerbsOptions& options, std::string* error);
  void close() noexcept;
  bool make_data_qp(QueuePair* out, std::string* error);
  ibv_ah* make_address(const FarQp& far) noexcept;
  // Gives slots that were received into back to the NIC, all at once.
  void repost_data(const std::uint32_t* slots, std::size_t count) noexcept;
  void repost_control(const std::uint32_t* slots, std::size_t count) noexcept;
  // What it received and nobody has seen yet is kept for the next poll: a driver may forget it with the reset.
  bool reset_pair(QueuePair* pair) noexcept;
  void keep_received() noexcept;
  // Of a queue pair that is about to go: its slots come back with the next poll, and its number may be another's then.
  void forget_received(std::uint32_t number) noexcept;
  // Asks both receiving queues to ring the channel at their next completion.
  bool arm() noexcept;

  // Public to the datapath's own files: plain parts without an invariant between them.
  const Ibv* ibv = nullptr;
  Place place;
  VerbsOptions options;
  QpTraits traits;
  ibv_gid gid{};
  std::uint16_t lid = 0;
  std::uint32_t mtu_bytes = 0;
  std::uint32_t datagram_bytes_max = 0;  // of a UD message: one packet, whatever the options say
  ibv_context* context = nullptr;
  ibv_pd* pd = nullptr;
  ibv_comp_channel* channel = nullptr;
  ibv_cq *data_cq = nullptr, *control_cq = nullptr, *send_cq = nullptr;
  ibv_srq* srq = nullptr;
  SlotArray data_slots, control_slots, send_slots;
  std::vector<std::uint32_t> free_sends;             // of send_slots
  WindowPool windows;                                // where options.direct
  std::unordered_map<std::uint32_t, Landed> landed;  // by number of the queue pair
  std::uint32_t index = 0;
  QueuePair control;
  bool down = false;  // the device said so; its paths rest until it says otherwise
  // Completions that were taken while falling asleep or before a reset, for the next polls, oldest first.
  std::vector<ibv_wc> kept_data, kept_control;

 private:
  bool open_device(std::string* error);
  bool query(std::string* error);
  bool make_queues(std::string* error);
};

std::uint32_t bytes_of(ibv_mtu mtu) noexcept;
ibv_mtu mtu_of(std::uint32_t bytes) noexcept;  // the largest that fits

// What the port has active now; 1,024 where it does not answer.
std::uint32_t active_mtu_bytes(const Ibv* library, const Place& place) noexcept;

// The transports that the port can do with shared receive queues, best first; empty with `error` when it cannot be
// used.
std::vector<VerbsMode> probe_modes(const Ibv* library, const Place& place, std::string* error);

}  // namespace weft::datapath
