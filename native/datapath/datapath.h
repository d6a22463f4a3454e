// The interface between an engine and the transport of its datagrams: links to peers, sending and receiving bursts,
// registered memory, and sleeping. The core chooses paths, retransmissions and rates before it calls a datapath.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "native/datapath/address.h"
#include "native/datapath/faults.h"

namespace weft::datapath {

// One network interface of a device, with the name of its RDMA port if the datapath uses one.
struct Place {
  SocketAddress address;
  unsigned interface_index = 0;
  std::string port;  // name of the port; only the datapath that found the device can parse it. Empty: none
};

// The local ends of the paths to one peer, as planned.
struct LinkPlan {
  std::uint32_t peer = 0;  // the engine's index for the peer
  std::uint32_t device = 0;
  std::uint16_t path_count = 0;
  const std::vector<Place>* places = nullptr;  // the device's interfaces; path i uses places[i % size]
};

// The peer's ends of the paths, from the handshake: the addresses of its device, and endpoint parameters that only a
// datapath of the same kind can parse.
struct RemoteEnds {
  const std::vector<SocketAddress>* addresses = nullptr;
  const std::string* params = nullptr;
};

// Memory registered by a caller: [data, data + bytes) must stay valid and must not move until it is removed.
struct Memory {
  std::uint32_t id = 0;  // id of the registration; never 0 once registered
  std::uint8_t* data = nullptr;
  std::size_t bytes = 0;
  int dmabuf = -1;  // dma-buf of GPU memory, with `data` at dmabuf_offset; -1: registered by address
  std::uint64_t dmabuf_offset = 0;
  bool on_device = false;  // GPU memory that a CPU can't access
};

class Datapath {
 public:
  Datapath() = default;
  virtual ~Datapath() = default;
  Datapath(const Datapath&) = delete;
  Datapath& operator=(const Datapath&) = delete;

  // On failure returns false and sets `error` to one line that says what to do.
  virtual bool open(std::string* error) = 0;
  // A letter that identifies this kind of datapath: the first character of its endpoint parameters in the handshake.
  virtual char kind() const noexcept = 0;

  // Link setup runs on the engine's thread. A link may have fewer paths than planned; `error` then says why.
  // open_link() fails if no path can be opened.
  virtual bool open_link(const LinkPlan& plan, std::string* params, std::string* error) = 0;
  // Connects the link's paths to those of the peer. `path_count` is set to the number of paths that both ends have.
  virtual bool connect_link(std::uint32_t peer, const RemoteEnds& theirs, std::uint16_t* path_count,
                            std::string* error) = 0;
  virtual void close_link(std::uint32_t peer) noexcept = 0;
  // A line for the log about the links that were set up since the last call, such as a setting that had no effect;
  // empty: none.
  virtual std::string take_notice() { return {}; }

  // Whether memory can be registered. Registered memory is sent and received into without a copy. If this returns
  // false, all payload is copied.
  virtual bool registers_memory() const noexcept { return false; }
  virtual bool add_memory(const Memory&, std::string*) { return false; }
  // After this returns, the datapath and its NICs no longer access the memory.
  virtual void remove_memory(std::uint32_t) noexcept {}
  // After this returns, no NIC reads registered memory any more for messages sent to this peer before the call.
  virtual void quiesce(std::uint32_t) noexcept {}
  // Opens a memory window onto [data, data + bytes) of registered memory, for one message of a peer. Returns the
  // window's key; 0: no window.
  virtual std::uint32_t open_memory_window(std::uint32_t, std::uint32_t, std::uint8_t*, std::uint64_t) noexcept {
    return 0;
  }
  // After this returns, nothing is written through the window.
  virtual void close_memory_window(std::uint32_t) noexcept {}

  // How many bytes per path this end can buffer before it drops datagrams. May be called on any thread.
  virtual std::int64_t buffer_bytes() const noexcept = 0;

  // Sends the bursts. When this returns, headers have been copied, and so has payload outside of registered memory.
  // Payload in registered memory must stay unchanged until the message is acknowledged. Bursts to closed links are
  // dropped. A call with at most kTxBursts bursts allocates nothing.
  static constexpr std::size_t kTxBursts = 64;
  virtual void tx_burst(wire::TxBurst* const* bursts, std::size_t count) = 0;
  // Delivers received datagrams, at most a few bursts per path. Returns the number of datagrams.
  virtual std::size_t rx_burst(RxSink* sink) = 0;
  // Sleeps until a datagram or a watched descriptor is ready, or the timeout has passed (< 0: no timeout).
  virtual void wait(std::int64_t timeout_ns) = 0;
  // Whether a thread can sleep in wait() while another one uses the datapath.
  virtual bool sleeps_apart() const noexcept { return false; }
  virtual bool watch(int descriptor) = 0;
  virtual bool holds_datagrams() const noexcept = 0;

  // Counts in `counters` instead of the datapath's own storage. Must be called before open().
  virtual void count_in(telemetry::EngineCells* counters) noexcept { counters_ = counters; }
  const telemetry::EngineCells& counters() const noexcept { return *counters_; }

 protected:
  telemetry::EngineCells own_counters_;
  telemetry::EngineCells* counters_ = &own_counters_;
};

// The error message for two ends that use different kinds of datapath.
inline std::string kind_mismatch() { return "the two ends use different datapaths: give both the same WEFT_DATAPATH"; }

}  // namespace weft::datapath
