// Injects loss, reordering, duplication and corruption into received datagrams, as the knobs fault_* say; the same seed
// gives the same faults. While all rates are zero it costs one branch per datagram.
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
  double loss = 0, reorder = 0, duplicate = 0, corrupt = 0;  // probability of each fault, per datagram
  std::bitset<256> ports;  // indices of the local sockets, or under verbs of the paths, that get faults; none set: all
  bool spares(std::uint32_t port) const noexcept { return ports.any() && !ports[port % ports.size()]; }
  bool any() const noexcept { return loss > 0 || reorder > 0 || duplicate > 0 || corrupt > 0; }
};

// Parses a list of path numbers, such as "0+3". Returns false with `error` set if the text is not such a list.
bool read_paths(const std::string& text, std::bitset<256>* out, std::string* error);
// Reads the keys of the knob fault, which check_knobs has validated. Each engine gets random numbers of its own.
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
  // Delivers the datagram to `sink` once, twice, later, damaged, or not at all, as the random numbers say.
  void offer(std::uint32_t port, const wire::RxDatagram& datagram, RxSink* sink);
  // A reordered datagram is delivered at most this many datagrams later, or by release_all() when nothing else arrives.
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
