// Chooses what happens to each packet between two adapters (loss, short or long delay, duplication), as a pure function
// of the seed and the packet. Also holds delayed packets until they are due.
#pragma once

#include <cstdint>
#include <queue>
#include <vector>

#include "tests/softverbs/native/packet.h"
#include "tests/softverbs/native/settings.h"

namespace weft::softverbs {

struct Fate {
  bool lost = false, reordered = false, late = false, doubled = false;
  std::int64_t delay_ns = 0, copy_delay_ns = 0;
};
Fate fate_of(const Settings& settings, const Packet& packet) noexcept;

// How long to wait before a send request's memory is read; 0: no delay.
std::int64_t stall_ns_of(const Settings& settings, std::uint32_t queue_pair, std::uint64_t request) noexcept;

struct Held {
  std::int64_t due_ns = 0;
  std::uint64_t order = 0;  // orders packets with the same due time; the lower goes first
  Packet packet;
  std::vector<std::uint8_t> payload;
};

class HeldPackets {
 public:
  // Holds a packet until `due_ns`. Returns false if the buffer is full; the packet is then lost.
  bool hold(std::int64_t due_ns, const Packet& packet, const std::uint8_t* payload);
  // Takes the next packet that is due. Returns false if there is none.
  bool take(std::int64_t now_ns, Held* out);
  std::int64_t due_ns() const noexcept;  // when the next held packet is due; INT64_MAX: none is held
  void clear();

 private:
  struct Later {
    bool operator()(const Held& a, const Held& b) const noexcept {
      return a.due_ns != b.due_ns ? a.due_ns > b.due_ns : a.order > b.order;
    }
  };
  std::priority_queue<Held, std::vector<Held>, Later> held_;
  std::uint64_t order_ = 0;
};

}  // namespace weft::softverbs
