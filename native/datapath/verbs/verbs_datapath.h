// Sends and receives bursts over RDMA queue pairs: one for each path, and a UD queue pair for acknowledgments that is
// polled first. Received bytes arrive in slots owned by the transport (decision 0010), or are written to their
// destination through a memory window (decision 0011). In both cases nothing accesses a buffer once its message is
// complete (P-1).
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "native/datapath/verbs/immediate.h"
#include "native/datapath/verbs/send_records.h"
#include "native/datapath/verbs/verbs_port.h"
#include "native/datapath/verbs/work_requests.h"

namespace weft::datapath {

class VerbsDatapath final : public Datapath {
 public:
  // `library`: the function table to use; null: open() loads the library that `options` names.
  explicit VerbsDatapath(const VerbsOptions& options, const Ibv* library = nullptr);
  ~VerbsDatapath() override;
  VerbsDatapath(const VerbsDatapath&) = delete;
  VerbsDatapath& operator=(const VerbsDatapath&) = delete;

  bool open(std::string* error) override;
  char kind() const noexcept override { return 'v'; }
  bool open_link(const LinkPlan& plan, std::string* params, std::string* error) override;
  bool connect_link(std::uint32_t peer, const RemoteEnds& theirs, std::uint16_t* path_count,
                    std::string* error) override;
  void close_link(std::uint32_t peer) noexcept override;
  std::int64_t buffer_bytes() const noexcept override { return std::int64_t{kSendsPerQp} * options_.segment_bytes; }

  bool registers_memory() const noexcept override { return true; }
  bool add_memory(const Memory& memory, std::string* error) override;
  void remove_memory(std::uint32_t id) noexcept override;
  void quiesce(std::uint32_t peer) noexcept override;
  std::uint32_t open_memory_window(std::uint32_t peer, std::uint32_t memory, std::uint8_t* data,
                                   std::uint64_t bytes) noexcept override;
  void close_memory_window(std::uint32_t key) noexcept override;

  void tx_burst(wire::TxBurst* const* bursts, std::size_t count) override;
  std::size_t rx_burst(RxSink* sink) override;
  void wait(std::int64_t timeout_ns) override;
  bool watch(int descriptor) override;
  bool holds_datagrams() const noexcept override { return faults_.holds(); }

  void count_in(telemetry::EngineCells* counters) noexcept override {
    Datapath::count_in(counters);
    faults_.count_in(counters);
  }

 private:
  struct Path {
    VerbsPort* port = nullptr;
    QueuePair own;              // this path's queue pair, unless the mode is UD
    QueuePair* pair = nullptr;  // the queue pair in use: `own`, or in UD mode one shared by the device's peers
    ibv_ah* address = nullptr;  // the peer's address handle, in UD mode only
    RemoteQp remote;
    ibv_mtu mtu = IBV_MTU_1024;    // the smaller of both ends' MTUs
    std::uint32_t generation = 0;  // incremented when the queue pair is re-established; gives the first packet number
    std::uint32_t writes = 0;      // number of segments sent by RDMA write
    bool broken = false;
    std::int64_t broken_ns = 0;  // when the path broke
    std::uint8_t asked = 0;      // in RC mode: 1 while this end has re-established its side and waits for the peer's
  };
  struct Control {
    VerbsPort* port = nullptr;
    ibv_ah* address = nullptr;
    std::uint32_t remote_number = 0;
  };
  struct Link {
    std::uint32_t device = 0;
    // Tokens that authenticate requests to re-establish a path: those from the peer carry `token`, ours carry
    // `remote_token`.
    std::uint64_t token = 0, remote_token = 0;
    std::vector<VerbsPort*> ports;  // one port per interface of the device
    std::vector<Path> paths;        // indexed by path number
    std::vector<Control> controls;  // the peer's control queue pairs, one per local interface; empty until connected
  };
  struct Region {
    ibv_mr* region = nullptr;
    bool refused = false;
  };
  struct Registered {
    Memory memory;
    std::vector<Region> regions;  // indexed by VerbsPort::index
  };
  struct Reestablishment {
    std::uint32_t peer;
    std::uint8_t path;
    std::int64_t due_ns, wait_ns;
  };

  // Defined in verbs_link.cc:
  VerbsPort* port_of(const Place& place, std::string* error);
  bool make_paths(const LinkPlan& plan, Link* link, std::string* error);
  bool join_path(Link* link, std::size_t path, std::string* error);
  std::string params_of(const Link& link) const;
  // The port, queue pair and remote address that a burst uses.
  struct Destination {
    VerbsPort* port;
    QueuePair* pair;
    ibv_ah* address;  // the peer's, in UD mode and for the control queue pair; else null
    std::uint32_t remote_number;
    Path* path;  // null: the burst uses the control queue pair
  };
  // Defined in verbs_tx.cc:
  bool send(const Destination& destination, const wire::TxBurst& burst);
  bool send_on_path(Link* link, const wire::TxBurst& burst);
  SendRecord* take_record(VerbsPort* port, QueuePair* pair, std::size_t requests, std::size_t slots);
  bool is_written(const Destination& destination, const wire::Payload& payload) const noexcept;
  [[gnu::always_inline]] inline bool append_segments(const Destination& destination, const wire::TxBurst& burst,
                                                     SendRecord* record, WorkRequests* requests);
  void reap(VerbsPort* port);
  // Defined in verbs_rx.cc:
  std::size_t poll_control(VerbsPort* port, RxSink* sink);
  std::size_t poll_data(VerbsPort* port, RxSink* sink);
  void pass(const wire::RxDatagram& datagram, RxSink* sink);
  void on_write(VerbsPort* port, const ibv_wc& done) noexcept;
  static wire::RxDatagram written(VerbsPort* port, const ibv_wc& done, const std::uint8_t* header) noexcept;
  // Defined in verbs_memory.cc:
  ibv_mr* region_of(Registered* memory, VerbsPort* port, std::string* error);
  ibv_mr* region_or_null(std::uint32_t memory, VerbsPort* port) noexcept;
  bool lies_on_device(std::uint32_t memory) const noexcept;
  template <class Chosen>
  void drain(const Chosen& chosen) noexcept;
  // Defined in verbs_reestablish.cc:
  template <class Change>
  void change_paths_over(const QueuePair* pair, std::uint32_t peer, std::uint8_t index, const Change& change);
  void on_broken(std::uint32_t peer, std::uint8_t path);
  void reestablish_due();
  void reestablish(std::int64_t now_ns, Link* to, Path* path, Reestablishment* entry);
  bool rejoin(Path* path);
  bool join(Path* path, std::string* error);
  void on_reestablished(Path* path);
  void say(Link* link, std::uint8_t kind, std::uint8_t path, std::uint32_t generation);
  bool on_reestablish_packet(const std::uint8_t* at, std::size_t bytes);
  void take_async(VerbsPort* port);

  Link* link(std::uint32_t peer) noexcept { return peer < links_.size() ? links_[peer].get() : nullptr; }

  const Ibv* ibv_ = nullptr;
  VerbsOptions options_;
  FaultInjector faults_;
  std::vector<std::unique_ptr<VerbsPort>> ports_;
  std::map<std::uint32_t, std::deque<QueuePair>> shared_;       // in UD mode: device -> queue pair of each path
  std::vector<std::unique_ptr<Link>> links_;                    // indexed by peer
  std::unordered_map<std::uint32_t, Registered> memories_;      // memory id -> registration
  std::unordered_map<std::uint32_t, VerbsPort*> window_ports_;  // window key -> port
  SendRecords records_;
  std::vector<Reestablishment> reestablishments_;
  std::int64_t reestablish_ns_ = INT64_MAX;  // earliest due time of `reestablishments_`
  std::uint64_t random_ = 1;
  std::uint32_t rounds_ = 0;
  int epoll_ = -1;
};

}  // namespace weft::datapath
