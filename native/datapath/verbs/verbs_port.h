// One port of an RDMA device as used by one engine: context, protection domain, completion queues, and the slots for
// receiving and sending.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "native/datapath/datapath.h"
#include "native/datapath/verbs/memory_windows.h"
#include "native/datapath/verbs/queue_pair.h"
#include "native/datapath/verbs/rdma_ports.h"

namespace weft::datapath {

struct VerbsOptions {
  std::string library;  // name of the library, as in load_ibv()
  VerbsMode mode = VerbsMode::uc;
  std::uint32_t segment_bytes = 0;  // size of the largest datagram
  std::uint32_t slots = 2048;       // number of slots in registered memory per direction; each holds one segment
  std::uint32_t mtu_bytes = 0;      // packet MTU; 0: the port's active MTU
  std::uint8_t traffic_class = 0;
  std::uint8_t service_level = 0;
  bool spread_source_ports = true;
  bool direct = false;        // use RDMA writes into registered memory (decision 0011)
  double fault_qp_error = 0;  // fault injection: probability that a burst moves its queue pair to error
  FaultRates faults;
};

// An array of slots of equal size, each for one datagram, in one registered block of memory.
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

// Size of the global route header that a UD queue pair puts before a received message.
inline constexpr std::uint32_t kGrhBytes = 40;
// Number of send requests per queue pair. It is small because 256 paths to each of 1,000 peers must fit in memory, at
// 64 to 128 bytes per request.
inline constexpr std::uint32_t kSendsPerQp = 64;
// A segment sent by RDMA write takes two send requests.
inline constexpr std::uint32_t sends_per_qp(const VerbsOptions& options) noexcept {
  return options.direct ? 2 * kSendsPerQp : kSendsPerQp;
}
inline constexpr std::uint32_t kControlSends = 256;
inline constexpr std::uint32_t kControlSlots = 512;

// The latest RDMA write received on a queue pair. The segment's header follows on the same queue pair, unless it is
// lost.
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
  ibv_ah* make_address(const RemoteQp& remote) noexcept;
  // Posts the slots of received datagrams again, all at once.
  void repost_data(const std::uint32_t* slots, std::size_t count) noexcept;
  void repost_control(const std::uint32_t* slots, std::size_t count) noexcept;
  // Resets a queue pair. Completions not yet polled are kept, because a driver may discard them in the reset.
  bool reset_pair(QueuePair* pair) noexcept;
  void keep_received() noexcept;
  // Discards the completions of a queue pair that will be destroyed, because its number may be reused. The next poll
  // posts their slots again.
  void forget_received(std::uint32_t number) noexcept;
  // Arms both receive completion queues, so that their next completion signals the channel.
  bool arm() noexcept;

  // The members below are public, because all files of the verbs datapath use them.
  const Ibv* ibv = nullptr;
  Place place;
  PortName name;  // parsed from `place`
  VerbsOptions options;
  QpTraits traits;
  ibv_gid gid{};
  std::uint16_t lid = 0;
  std::uint32_t mtu_bytes = 0;
  std::uint32_t datagram_bytes_max = 0;  // largest UD message: one packet
  ibv_context* context = nullptr;
  ibv_pd* pd = nullptr;
  ibv_comp_channel* channel = nullptr;
  ibv_cq *data_cq = nullptr, *control_cq = nullptr, *send_cq = nullptr;
  ibv_srq* srq = nullptr;
  SlotArray data_slots, control_slots, send_slots;
  std::vector<std::uint32_t> free_sends;             // free entries of send_slots
  MemoryWindowPool windows;                          // used if options.direct
  std::unordered_map<std::uint32_t, Landed> landed;  // queue pair number -> latest RDMA write received on it
  std::uint32_t index = 0;
  QueuePair control;
  // Set if the device reported an error; paths over this port are not used until the port is active again.
  bool down = false;
  // Completions that were polled before sleeping or before a reset, oldest first. The next poll processes them.
  std::vector<ibv_wc> kept_data, kept_control;

 private:
  bool open_device(std::string* error);
  bool query(std::string* error);
  bool make_queues(std::string* error);
};

std::uint32_t bytes_of(ibv_mtu mtu) noexcept;
ibv_mtu mtu_of(std::uint32_t bytes) noexcept;  // the largest MTU that is not above `bytes`

// The port's active MTU; 1,024 if the port can't be opened.
std::uint32_t active_mtu_bytes(const Ibv* library, const Place& place) noexcept;

// The transports (UC, RC, UD) that the port supports with shared receive queues, best first. Empty with `error` set if
// the port cannot be used.
std::vector<VerbsMode> probe_modes(const Ibv* library, const Place& place, std::string* error);

}  // namespace weft::datapath
