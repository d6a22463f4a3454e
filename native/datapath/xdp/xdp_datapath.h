// Sends and receives the datagrams of UDP sockets through AF_XDP sockets, past the kernel's network stack. The UDP
// sockets stay open: they own the ports, and carry what the AF_XDP sockets cannot.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "native/datapath/udp/udp_datapath.h"
#include "native/datapath/xdp/frames.h"
#include "native/datapath/xdp/netlink.h"
#include "native/datapath/xdp/socket.h"
#include "native/datapath/xdp/steering.h"

namespace weft::datapath {

// Place::port of an interface that AF_XDP is used on.
inline constexpr char kXdpPlace[] = "xdp";

struct XdpOptions {
  UdpOptions udp;
  std::uint32_t engine = 0, engines = 1;  // engine e has the queues q with q % engines == e
  std::uint32_t queues = 1;               // queues that this engine has, over all interfaces
  std::uint32_t segment_bytes = 1472;     // largest datagram
};

class XdpDatapath final : public Datapath {
 public:
  explicit XdpDatapath(const XdpOptions& options);
  ~XdpDatapath() override;
  XdpDatapath(const XdpDatapath&) = delete;
  XdpDatapath& operator=(const XdpDatapath&) = delete;

  bool open(std::string* error) override;
  // The same as over UDP sockets: the peer sees no difference.
  char kind() const noexcept override { return udp_.kind(); }
  bool open_link(const LinkPlan& plan, std::string* params, std::string* error) override;
  bool connect_link(std::uint32_t peer, const RemoteEnds& theirs, std::uint16_t* path_count,
                    std::string* error) override;
  void close_link(std::uint32_t peer) noexcept override;
  std::string take_notice() override;
  std::int64_t buffer_bytes() const noexcept override;

  void tx_burst(wire::TxBurst* const* bursts, std::size_t count) override;
  std::size_t rx_burst(RxSink* sink) override;
  void wait(std::int64_t timeout_ns) override { udp_.wait(timeout_ns); }
  bool sleeps_apart() const noexcept override { return true; }
  bool watch(int descriptor) override { return udp_.watch(descriptor); }
  bool holds_datagrams() const noexcept override { return udp_.holds_datagrams(); }

  void count_in(telemetry::EngineCells* counters) noexcept override {
    Datapath::count_in(counters);
    udp_.count_in(counters);
  }

 private:
  // An AF_XDP socket, and the beginning of a packet that continues in the next chunk.
  struct Queue {
    xdp::Socket socket;
    std::vector<std::uint8_t> joined;  // empty unless packets may be longer than a chunk
    std::size_t joined_bytes = 0;
    std::int64_t joined_stamp_ns = 0;
    bool joining = false;
    std::uint32_t unsent = 0;  // datagrams queued since the last kick
  };
  struct Interface {
    std::shared_ptr<xdp::Steering> steering;  // null: the interface is left to the kernel
    std::uint32_t row = 0;
    std::vector<Queue*> queues;
  };
  // The route between two addresses over an interface, which paths share.
  using NeighbourKey = std::tuple<unsigned, std::string, std::string>;
  struct Neighbour {
    SocketAddress from, to;
    unsigned interface_index = 0;
    std::uint32_t users = 0;
    xdp::NextHop hop;
    std::uint32_t version = 0;  // grows whenever `hop` is looked up
    bool ask = false;           // the kernel sends the next burst, so that it asks for the MAC address again
  };
  struct Path {
    Queue* queue = nullptr;  // null: the kernel sends
    std::uint32_t neighbour = 0, version = 0;
    xdp::FrameHeaders headers;
  };
  // Defined in xdp_link.cc:
  void open_interface(unsigned index, const std::string& name);
  bool open_queue(unsigned interface_index, std::uint32_t queue, Interface* out, std::string* error);
  void steer_ports();
  void note(const std::string& line);
  std::uint32_t neighbour_of(unsigned interface_index, const SocketAddress& from, const SocketAddress& to);
  void look_up(Neighbour* neighbour);
  void forget_paths(std::uint32_t peer) noexcept;
  void follow_changes(std::int64_t now_ns);
  // Defined in xdp_tx.cc:
  Path* sendable(const wire::TxBurst& burst) noexcept;
  void send(Path* path, const wire::TxBurst& burst);
  void put_frame(const Path& path, const wire::TxBurst& burst, std::size_t index) noexcept;
  bool make_room(Queue* queue, std::uint32_t chunks) noexcept;
  void flush(Queue* queue) noexcept;
  // Defined in xdp_rx.cc:
  std::size_t receive(Queue* queue, RxSink* sink);
  void take(Queue* queue, const xdp::Descriptor& packet, RxSink* sink);
  std::int64_t take_stamp(std::uint64_t address) noexcept;
  void pass(const std::uint8_t* frame, std::size_t bytes, std::int64_t stamp_ns, RxSink* sink);
  std::uint32_t port_of(const xdp::ParsedFrame& frame) const noexcept;

  XdpOptions options_;
  UdpDatapath udp_;
  xdp::Netlink netlink_;
  xdp::Umem umem_;
  std::uint32_t rx_chunks_ = 0;  // of each queue
  std::map<unsigned, Interface> interfaces_;
  std::vector<std::unique_ptr<Queue>> queues_;
  std::size_t steered_ = 0;                // ports of udp_ that the programs know
  std::vector<std::uint32_t> first_port_;  // by port number: index of a port of udp_, plus 1; 0: none
  std::vector<std::uint32_t> next_port_;   // by port of udp_: another one of the same number, plus 1; 0: none
  std::vector<std::vector<Path>> paths_;   // by peer and path
  std::vector<Neighbour> neighbours_;
  std::map<NeighbourKey, std::uint32_t> neighbour_index_;
  std::vector<wire::TxBurst*> kernel_bursts_;  // bursts of the current tx_burst() call that the kernel sends
  std::size_t stale_ = 0;                      // neighbours_ below this index are to be looked up again
  std::int64_t follow_due_ns_ = 0, all_due_ns_ = 0;
  std::uint32_t rounds_ = 0;
  std::size_t next_queue_ = 0;          // from which rx_burst() receives first, in turn
  std::int64_t realtime_ahead_ns_ = 0;  // of the monotonic clock, in the current call of receive()
  std::string notice_;
};

}  // namespace weft::datapath
