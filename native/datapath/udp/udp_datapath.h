// Sends and receives bursts over UDP sockets: one socket per path and device, GSO trains out, GRO trains in, ECN both
// ways.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "native/datapath/datapath.h"

struct mmsghdr;
struct iovec;

namespace weft::datapath {

struct UdpOptions {
  std::int64_t socket_buffer_bytes = 8 << 20;
  bool ecn = true;
  FaultRates faults;
  std::atomic<std::int64_t>* promised = nullptr;  // budget of descriptors; each open socket takes one
};

class UdpDatapath final : public Datapath {
 public:
  explicit UdpDatapath(const UdpOptions& options);
  ~UdpDatapath() override;
  UdpDatapath(const UdpDatapath&) = delete;
  UdpDatapath& operator=(const UdpDatapath&) = delete;

  bool open(std::string* error) override;
  char kind() const noexcept override { return 'u'; }
  // Sockets belong to the device and are shared by all its peers. The words are their port numbers.
  bool open_link(const LinkPlan& plan, std::string* words, std::string* error) override;
  bool connect_link(std::uint32_t peer, const FarEnds& theirs, std::uint16_t* path_count, std::string* error) override;
  void close_link(std::uint32_t peer) noexcept override;
  // Payload bytes that the kernel buffers per port; it charges twice a datagram's size.
  std::int64_t buffer_bytes() const noexcept override { return buffer_bytes_; }

  // The kernel has copied everything when this returns. Consecutive bursts on one port share a system call.
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
  struct Port {
    int descriptor = -1;
    std::uint16_t number = 0;
    bool v6 = false;
    bool trains = true;            // cleared when the kernel refuses a GSO train
    std::uint32_t drops_seen = 0;  // last value of SO_RXQ_OVFL's running count
  };
  // Where datagrams of one path to one peer are sent.
  struct Route {
    std::uint32_t port = 0;
    SocketAddress to;
  };
  struct Item {
    const wire::TxBurst* burst;
    const Route* route;
  };
  struct Link {
    std::uint32_t device = 0;
    const std::vector<Place>* places = nullptr;
    std::vector<Route> routes;  // by path; empty until connected
  };
  struct Staging;
  // Binds a socket to the place's address, at any port. `port` is set to its index, with which datagrams are tagged.
  bool open_port(const Place& place, std::uint32_t* port, std::string* error);
  bool set_options(int descriptor, bool v6, std::string* error);
  void send_run(const Item* items, std::size_t count);
  void send_singly(const Item& item);
  std::size_t receive(std::uint32_t index, RxSink* sink);
  void split(std::uint32_t index, const std::uint8_t* at, std::size_t bytes, std::size_t stride, bool marked,
             std::int64_t stamp_ns, RxSink* sink);

  UdpOptions options_;
  FaultInjector faults_;
  std::vector<Port> ports_;
  std::map<std::uint32_t, std::vector<std::uint32_t>> device_ports_;  // by path
  std::vector<Link> links_;                                           // by peer
  std::vector<Item> items_;                                           // of the current call
  std::unique_ptr<Staging> staging_;
  std::int64_t buffer_bytes_ = 0;
  std::uint64_t rounds_sent_ = 0;
  int epoll_ = -1;
};

}  // namespace weft::datapath
