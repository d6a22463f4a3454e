// Moves bursts over UDP sockets: one socket a path and device, GSO trains out, GRO trains in, ECN both ways.
// Knows no flow, policy or protocol beyond where a header ends; decides nothing about what to send.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "native/datapath/faults.h"
#include "native/datapath/udp/interfaces.h"

struct mmsghdr;
struct iovec;

namespace weft::datapath {

struct UdpOptions {
  std::int64_t socket_buffer_bytes = 8 << 20;
  bool ecn = true;
  FaultRates faults;
};

struct UdpCounters {
  std::int64_t datagrams_sent = 0;
  std::int64_t datagrams_received = 0;
  std::int64_t send_errors = 0;  // datagrams the kernel did not take: they count as lost on this host
  std::int64_t host_drops = 0;   // dropped by a full receive buffer of ours
  std::int64_t calls = 0;
};

struct TxItem {
  const wire::TxBurst* burst;
  std::uint32_t port;
  const SocketAddress* to;
};

class UdpDatapath {
 public:
  explicit UdpDatapath(const UdpOptions& options);
  ~UdpDatapath();
  UdpDatapath(const UdpDatapath&) = delete;
  UdpDatapath& operator=(const UdpDatapath&) = delete;

  // False with `error` set when the receive buffers cannot be had.
  bool open(std::string* error);
  // Binds a socket to `local` (its port is ignored: any). The index is what datagrams are tagged with.
  bool open_port(const SocketAddress& local, unsigned interface_index, std::uint32_t* port, std::string* error);
  std::size_t port_count() const noexcept { return ports_.size(); }
  std::uint16_t port_number(std::uint32_t port) const noexcept { return ports_[port].number; }
  // Payload bytes the kernel holds for this port before it drops; the kernel counts twice what a datagram brings.
  std::int64_t buffer_bytes() const noexcept { return buffer_bytes_; }

  // Hands the bursts to the kernel, which has copied them when this returns. Runs of one port share a system call.
  void tx_burst(const TxItem* items, std::size_t count);
  // Passes on what has arrived, at most a few trains a port. Returns the datagrams seen.
  std::size_t rx_burst(RxSink* sink);
  // Sleeps until a port or `wake_descriptor` (see watch) is readable, or the time is over (< 0: for ever).
  void wait(std::int64_t timeout_ns);
  bool watch(int descriptor);
  bool holds_datagrams() const noexcept { return faults_.holds(); }

  const UdpCounters& counters() const noexcept { return counters_; }
  const FaultCounters& fault_counters() const noexcept { return faults_.counters(); }

 private:
  struct Port {
    int descriptor = -1;
    std::uint16_t number = 0;
    bool v6 = false;
    bool trains = true;            // until the kernel refuses one
    std::uint32_t drops_seen = 0;  // SO_RXQ_OVFL's running count
  };
  struct Staging;
  void send_run(const TxItem* items, std::size_t count);
  void send_singly(const TxItem& item);
  std::size_t receive(std::uint32_t index, RxSink* sink);
  void split(std::uint32_t index, const std::uint8_t* at, std::size_t bytes, std::size_t stride, bool marked,
             RxSink* sink);
  bool set_options(int descriptor, bool v6, std::string* error);

  UdpOptions options_;
  FaultInjector faults_;
  UdpCounters counters_;
  std::vector<Port> ports_;
  std::unique_ptr<Staging> staging_;
  std::int64_t buffer_bytes_ = 0;
  int epoll_ = -1;
};

}  // namespace weft::datapath
