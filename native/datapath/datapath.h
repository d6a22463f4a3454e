// What an engine asks of whatever moves its datagrams: the ends of a peer's paths, bursts out, datagrams in, sleep.
// Path, resends and rate were chosen before a burst reaches it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "native/datapath/faults.h"
#include "native/datapath/udp/interfaces.h"

namespace weft::datapath {

// One network interface of a device, or one port of an RDMA device and the interface that it belongs to.
struct Place {
  SocketAddress address;
  unsigned interface_index = 0;
  std::string rdma_device;  // empty: sockets only
  std::uint8_t rdma_port = 0;
  int gid_index = -1;
};

// Our ends of the paths to one peer.
struct LinkPlan {
  std::uint32_t peer = 0;  // the engine's index of it
  std::uint32_t device = 0;
  std::uint16_t path_count = 0;
  const std::vector<Place>* places = nullptr;  // of the device; path i uses places[i % size]
};

// What the peer said of its ends: addresses of its device, and words that only a datapath of the same kind reads.
struct FarEnds {
  const std::vector<SocketAddress>* addresses = nullptr;
  const std::string* words = nullptr;
};

// Memory that a caller registered: [data, data + bytes) stays where it is until it is removed.
struct Memory {
  std::uint32_t id = 0;  // never 0
  std::uint8_t* data = nullptr;
  std::size_t bytes = 0;
  int dmabuf = -1;  // of GPU memory: its descriptor and where in it `data` lies; -1: by its address
  std::uint64_t dmabuf_offset = 0;
  bool on_device = false;  // no CPU can read or write it
};

class Datapath {
 public:
  Datapath() = default;
  virtual ~Datapath() = default;
  Datapath(const Datapath&) = delete;
  Datapath& operator=(const Datapath&) = delete;

  // False with `error` set to one line that says what to do.
  virtual bool open(std::string* error) = 0;
  // Words that begin with it are of this kind.
  virtual char kind() const noexcept = 0;

  // Setting up; on the engine's thread. Fewer paths than planned still make a link, and `error` says why there are not
  // all of them; none does not.
  virtual bool open_link(const LinkPlan& plan, std::string* words, std::string* error) = 0;
  // `path_count`: of the paths that both ends have.
  virtual bool connect_link(std::uint32_t peer, const FarEnds& theirs, std::uint16_t* path_count,
                            std::string* error) = 0;
  virtual void close_link(std::uint32_t peer) noexcept = 0;

  // Memory: what is registered may be sent without a copy and received into directly. A datapath that has no use for it
  // says no, and nothing else changes.
  virtual bool registers_memory() const noexcept { return false; }
  virtual bool add_memory(const Memory&, std::string*) { return false; }
  // When it returns nothing reads or writes there for us any more.
  virtual void remove_memory(std::uint32_t) noexcept {}
  // When it returns nothing reads registered memory any more for what was sent to this peer so far.
  virtual void settle(std::uint32_t) noexcept {}
  // The key of a window onto [data, data + bytes) of a registered memory, for one message of `peer`; 0: none.
  virtual std::uint32_t open_window(std::uint32_t, std::uint32_t, std::uint8_t*, std::uint64_t) noexcept { return 0; }
  // When it returns nothing is written there through it any more.
  virtual void close_window(std::uint32_t) noexcept {}

  // Bytes in flight on a path that this end holds before it drops.
  virtual std::int64_t buffer_bytes() const noexcept = 0;

  // Takes the bursts; headers are copied when this returns. Payload too, but where memory is registered: then until
  // the message is acknowledged. A burst to a link that is closed is dropped.
  virtual void tx_burst(wire::TxBurst* const* bursts, std::size_t count) = 0;
  // Passes on what has arrived, at most a few bursts a path. Returns the datagrams seen.
  virtual std::size_t rx_burst(RxSink* sink) = 0;
  // Sleeps until a datagram or a watched descriptor is there, or the time is over (< 0: for ever).
  virtual void wait(std::int64_t timeout_ns) = 0;
  virtual bool watch(int descriptor) = 0;
  virtual bool holds_datagrams() const noexcept = 0;

  // Before open(): where it counts, instead of in storage of its own.
  virtual void count_in(telemetry::EngineCells* counters) noexcept { counters_ = counters; }
  const telemetry::EngineCells& counters() const noexcept { return *counters_; }

 protected:
  telemetry::EngineCells own_counters_;
  telemetry::EngineCells* counters_ = &own_counters_;
};

// The first complaint about words of another kind is the operator's to read.
inline std::string kind_mismatch() { return "the two ends use different datapaths: give both the same WEFT_DATAPATH"; }

}  // namespace weft::datapath
