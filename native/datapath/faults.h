// Injects loss, reordering, duplication and corruption into received datagrams, reproducibly by a seed (the knobs
// fault_*). While all rates are zero it costs one branch per datagram.
#pragma once

#include <bitset>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "native/datapath/settings.h"
#include "native/telemetry/counters.h"
#include "native/wire/burst.h"

namespace weft::datapath {

struct FaultRates {
  std::uint64_t seed = 1;
  double loss = 0, reorder = 0, duplicate = 0, corrupt = 0;  // probability per datagram
  std::bitset<256> ports;                                    // ports to which the rates apply; empty: all
  bool spares(std::uint32_t port) const noexcept { return ports.any() && !ports[port % ports.size()]; }
  bool any() const noexcept { return loss > 0 || reorder > 0 || duplicate > 0 || corrupt > 0; }
};

// The paths that a list names, as in "0,3". False, with `error` set to the reason, when it is none.
bool read_paths(const std::string& text, std::bitset<256>* out, std::string* error);
// As the knobs fault_* say, which check_knobs has accepted. Each engine has random numbers of its own.
FaultRates fault_rates(const Settings& settings, std::uint32_t engine);

// The receiver of datagrams, implemented by the engine.
class RxSink {
 public:
  virtual void on_datagram(std::uint32_t port, const wire::RxDatagram& datagram) = 0;

 protected:
  ~RxSink() = default;
};

class FaultInjector {
 public:
  explicit FaultInjector(const FaultRates& rates) noexcept : rates_(rates), state_(rates.seed), active_(rates.any()) {}
  FaultInjector(const FaultInjector&) = delete;
  FaultInjector& operator=(const FaultInjector&) = delete;

  bool active() const noexcept { return active_; }
  // Passes the datagram on once, twice, later, damaged, or not at all.
  void offer(std::uint32_t port, const wire::RxDatagram& datagram, RxSink* sink);
  // A reordered datagram is delivered after at most this many others, or when nothing else arrives (release_all).
  static constexpr std::uint64_t kHoldMax = 32;
  bool holds() const noexcept { return !held_.empty(); }
  void release_all(RxSink* sink);
  // Counts in `counters` instead of the injector's own storage.
  void count_in(telemetry::EngineCells* counters) noexcept { counters_ = counters; }
  const telemetry::EngineCells& counters() const noexcept { return *counters_; }

 private:
  struct Held {
    std::uint64_t due;
    std::uint32_t port;
    bool congestion_experienced;
    std::uint32_t header_bytes, payload_bytes;
    wire::RxDatagram::Body body;
    std::vector<std::uint8_t> bytes;
  };
  double uniform() noexcept;
  std::uint64_t next() noexcept;
  Held copy(std::uint32_t port, const wire::RxDatagram& datagram);
  static void deliver(const Held& held, RxSink* sink);

  FaultRates rates_;
  std::uint64_t state_;
  std::uint64_t seen_ = 0;
  bool active_;
  std::vector<Held> held_;
  telemetry::EngineCells own_counters_;
  telemetry::EngineCells* counters_ = &own_counters_;
};

}  // namespace weft::datapath
