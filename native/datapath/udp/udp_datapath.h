// Sends and receives bursts over UDP sockets: one socket per path and device, GSO for sending, GRO for receiving, ECN
// in both directions.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "native/datapath/datapath.h"
#include "native/datapath/udp/port_plan.h"

struct mmsghdr;
struct iovec;

namespace weft::datapath {

// Which UDP ports sockets take. With `last`, any free ones from `first` to `last`. Without it, the first socket of each
// device takes `first`, and the others those that follow. {0, 0}: any free ports.
struct PortChoice {
  std::uint16_t first = 0, last = 0;
};

struct UdpOptions {
  std::int64_t socket_buffer_bytes = 8 << 20;
  bool ecn = true;
  FaultRates faults;
  int dscp = 0;
  PortChoice ports;
  std::string plan;                               // file with the ports of the paths (weft plan assign); empty: none
  std::atomic<std::int64_t>* promised = nullptr;  // reserved descriptors; each open socket subtracts one
};

class UdpDatapath final : public Datapath {
 public:
  explicit UdpDatapath(const UdpOptions& options);
  ~UdpDatapath() override;
  UdpDatapath(const UdpDatapath&) = delete;
  UdpDatapath& operator=(const UdpDatapath&) = delete;

  bool open(std::string* error) override;
  char kind() const noexcept override { return 'u'; }
  // Sockets belong to a device and are shared by all its peers. `params` is set to their port numbers.
  bool open_link(const LinkPlan& plan, std::string* params, std::string* error) override;
  bool connect_link(std::uint32_t peer, const RemoteEnds& theirs, std::uint16_t* path_count,
                    std::string* error) override;
  void close_link(std::uint32_t peer) noexcept override;
  std::string take_notice() override { return std::exchange(notice_, std::string()); }
  // Payload bytes that the kernel buffers per socket; the kernel charges twice a datagram's size.
  std::int64_t buffer_bytes() const noexcept override { return buffer_bytes_.load(std::memory_order_relaxed); }

  // When this returns, the kernel has copied all data. Consecutive bursts on one socket share a system call.
  void tx_burst(wire::TxBurst* const* bursts, std::size_t count) override;
  std::size_t rx_burst(RxSink* sink) override;
  void wait(std::int64_t timeout_ns) override;
  bool sleeps_apart() const noexcept override { return true; }  // wait() only uses the epoll instance
  bool watch(int descriptor) override;
  bool holds_datagrams() const noexcept override { return faults_.holds(); }

  void count_in(telemetry::EngineCells* counters) noexcept override {
    Datapath::count_in(counters);
    faults_.count_in(counters);
  }

  // For a datapath that moves datagrams of these sockets' ports past the kernel.
  std::size_t port_count() const noexcept { return ports_.size(); }
  const SocketAddress& port_address(std::size_t port) const noexcept { return ports_[port].address; }
  unsigned port_interface(std::size_t port) const noexcept { return ports_[port].interface_index; }
  std::size_t path_count(std::uint32_t peer) const noexcept {
    return peer < links_.size() ? links_[peer].routes.size() : 0;
  }
  // The index of a path's local port, and the address that it sends to.
  std::uint32_t path_port(std::uint32_t peer, std::size_t path) const noexcept {
    return links_[peer].routes[path].port;
  }
  const SocketAddress& path_target(std::uint32_t peer, std::size_t path) const noexcept {
    return links_[peer].routes[path].to;
  }
  // Delivers a datagram as if its port's socket had received it.
  void deliver(std::uint32_t port, const wire::RxDatagram& datagram, RxSink* sink) {
    if (faults_.active()) {
      faults_.offer(port, datagram, sink);
    } else {
      sink->on_datagram(port, datagram);
    }
  }

 private:
  struct Port {
    int descriptor = -1;
    std::uint16_t number = 0;
    bool v6 = false;
    SocketAddress address;  // with the port's number
    unsigned interface_index = 0;
    bool trains = true;            // whether GSO works; cleared when the kernel refuses a GSO train
    std::uint32_t drops_seen = 0;  // the kernel's running count of dropped datagrams (SO_RXQ_OVFL) when last read
  };
  // The local socket and remote address of one path to one peer.
  struct Route {
    std::uint32_t port = 0;
    SocketAddress to;
  };
  struct Item {
    const wire::TxBurst* burst;
    const Route* route;
    std::size_t place;  // of the burst in its call
  };
  struct Link {
    std::uint32_t device = 0;
    const std::vector<Place>* places = nullptr;
    std::vector<Route> routes;  // one route per path; empty until connected
  };
  struct Staging;
  // Binds a socket to the interface's address and to port `number`; 0: any free port. `port` is set to the socket's
  // index, with which received datagrams are tagged.
  bool open_port(const Place& place, std::uint16_t number, std::uint32_t* port, std::string* error);
  bool bind_port(int descriptor, SocketAddress* address);
  // Binds to a free port of the range in options_.ports. Fails with EADDRINUSE if there is none.
  bool bind_in_range(int descriptor, SocketAddress* address);
  // The route from this end's socket for path `near` to the peer's port for path `far`. Without a plan, path i uses i
  // for both.
  Route route(const Link& link, const RemoteEnds& theirs, const std::vector<std::uint16_t>& numbers, std::size_t near,
              std::size_t far) const;
  // The routes that the plan chose among the pairs of our sockets and the peer's ports; empty: none.
  std::vector<Route> planned_routes(const Link& link, const RemoteEnds& theirs,
                                    const std::vector<std::uint16_t>& numbers) const;
  bool set_options(int descriptor, bool v6, std::string* error);
  void send_run(const Item* items, std::size_t count);
  void send_singly(const Item& item);
  std::size_t receive(std::uint32_t index, RxSink* sink);
  void split(std::uint32_t index, const std::uint8_t* at, std::size_t bytes, std::size_t stride, bool marked,
             std::int64_t stamp_ns, RxSink* sink);

  UdpOptions options_;
  FaultInjector faults_;
  std::vector<Port> ports_;
  std::map<std::uint32_t, std::vector<std::uint32_t>> device_ports_;  // device -> socket index of each path
  std::vector<Link> links_;                                           // indexed by peer
  std::vector<Item> items_;                                           // bursts of the current tx_burst() call
  std::unique_ptr<Staging> staging_;
  PortPlan plan_;
  std::string notice_;
  std::uint32_t ports_tried_ = 0;  // of the range; starts elsewhere in each process, so that they meet less often
  std::atomic<std::int64_t> buffer_bytes_{0};
  std::uint64_t rounds_sent_ = 0;
  int epoll_ = -1;
};

}  // namespace weft::datapath
