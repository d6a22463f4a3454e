// Injects faults into received datagrams. Each kind of fault takes one random number per datagram, in a fixed order, so
// that the seed and the arrival order determine a run. A datagram is copied only to be held back, duplicated or
// damaged.
#include "native/datapath/faults.h"

#include <algorithm>
#include <charconv>
#include <string_view>

namespace weft::datapath {

bool read_paths(const std::string& text, std::bitset<256>* out, std::string* error) {
  out->reset();
  std::string_view rest = text;
  while (!rest.empty()) {
    const std::string_view word = rest.substr(0, rest.find('+'));
    rest.remove_prefix(std::min(rest.size(), word.size() + 1));
    std::size_t path = 0;
    const auto [stop, code] = std::from_chars(word.data(), word.data() + word.size(), path);
    if (code != std::errc() || stop != word.data() + word.size() || path >= out->size()) {
      *error = "WEFT_FAULT=paths=" + text + ": '" + std::string(word) +
               "' is not a path number; give numbers 0..255, such as 0+3";
      return false;
    }
    out->set(path);
  }
  return true;
}

FaultRates fault_rates(const Settings& settings, std::uint32_t engine) {
  FaultRates rates;
  rates.seed = static_cast<std::uint64_t>(settings.number("fault_seed")) * 1'000'003 + engine;
  rates.loss = settings.real("fault_loss");
  rates.reorder = settings.real("fault_reorder");
  rates.duplicate = settings.real("fault_duplicate");
  rates.corrupt = settings.real("fault_corrupt");
  std::string unused;
  static_cast<void>(read_paths(settings.text("fault_paths"), &rates.ports, &unused));
  return rates;
}

// SplitMix64 (Steele et al. 2014). native/core has its own copy, because the datapath may not include native/core.
std::uint64_t FaultInjector::next() noexcept {
  state_ += 0x9E3779B97F4A7C15u;
  std::uint64_t z = state_;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

double FaultInjector::uniform() noexcept { return static_cast<double>(next() >> 11) * 0x1.0p-53; }

FaultInjector::Held FaultInjector::copy(std::uint32_t port, const wire::RxDatagram& datagram) {
  Held held;
  held.due = seen_ + 1 + next() % kHoldMax;
  held.port = port;
  held.congestion_experienced = datagram.congestion_experienced;
  held.header_bytes = datagram.header_bytes;
  held.payload_bytes = datagram.payload_bytes;
  held.body = datagram.body;
  held.bytes.assign(datagram.header, datagram.header + datagram.header_bytes);
  // Payload that a NIC wrote into the receive buffer through a memory window is not copied, so it can't be held back or
  // damaged.
  if (datagram.payload_bytes != 0 && datagram.body == wire::RxDatagram::Body::here) {
    held.bytes.insert(held.bytes.end(), datagram.payload, datagram.payload + datagram.payload_bytes);
  }
  return held;
}

void FaultInjector::deliver(const Held& held, RxSink* sink) {
  wire::RxDatagram datagram;
  datagram.header = held.bytes.data();
  datagram.header_bytes = held.header_bytes;
  datagram.payload = held.bytes.data() + held.header_bytes;
  datagram.payload_bytes = held.payload_bytes;
  datagram.body = held.body;
  datagram.congestion_experienced = held.congestion_experienced;
  sink->on_datagram(held.port, datagram);
}

void FaultInjector::offer(std::uint32_t port, const wire::RxDatagram& datagram, RxSink* sink) {
  if (rates_.spares(port)) {
    sink->on_datagram(port, datagram);
    return;
  }
  ++seen_;
  const bool is_data =
      datagram.header_bytes == wire::kDataBytes && datagram.header[3] == static_cast<std::uint8_t>(wire::Type::data);
  const bool lose = uniform() < rates_.loss, hold = uniform() < rates_.reorder;
  const bool twice = uniform() < rates_.duplicate, damage = uniform() < rates_.corrupt;
  if (lose) {
    ++counters_->injected_loss;
    counters_->injected_loss_data += is_data ? 1 : 0;
  } else if (damage) {
    Held damaged = copy(port, datagram);
    const std::uint64_t bit = next() % (8 * damaged.bytes.size());
    damaged.bytes[bit / 8] = static_cast<std::uint8_t>(damaged.bytes[bit / 8] ^ (1u << (bit % 8)));
    ++counters_->injected_corrupt;
    counters_->injected_corrupt_data += is_data ? 1 : 0;
    deliver(damaged, sink);
  } else if (hold) {
    ++counters_->injected_reorder;
    held_.push_back(copy(port, datagram));
  } else {
    if (twice) {
      ++counters_->injected_duplicate;
      held_.push_back(copy(port, datagram));
    }
    sink->on_datagram(port, datagram);
  }
  for (std::size_t i = 0; i < held_.size();) {
    if (held_[i].due > seen_) {
      ++i;
      continue;
    }
    const Held due = std::move(held_[i]);
    held_.erase(held_.begin() + static_cast<std::ptrdiff_t>(i));
    deliver(due, sink);
  }
}

void FaultInjector::release_all(RxSink* sink) {
  std::vector<Held> held;
  held.swap(held_);
  for (const Held& each : held) deliver(each, sink);
}

}  // namespace weft::datapath
