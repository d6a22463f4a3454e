// What befalls a packet between two adapters: lost, held back for a short or a long while, doubled. A pure function of
// seed and packet; holds what is late until its time.
#pragma once

#include <cstdint>
#include <queue>
#include <vector>

#include "native/softverbs/packet.h"
#include "native/softverbs/settings.h"

namespace weft::softverbs {

struct Fate {
  bool lost = false, reordered = false, late = false, doubled = false;
  std::int64_t delay_ns = 0, copy_delay_ns = 0;
};
Fate fate_of(const Settings& settings, const Packet& packet) noexcept;

// How long a request's memory is left unread; 0: not at all.
std::int64_t stall_ns_of(const Settings& settings, std::uint32_t queue_pair, std::uint64_t request) noexcept;

struct Held {
  std::int64_t due_ns = 0;
  std::uint64_t order = 0;  // of two that are due at once the earlier goes first
  Packet packet;
  std::vector<std::uint8_t> payload;
};

class HeldPackets {
 public:
  // False: full, and the packet is lost.
  bool hold(std::int64_t due_ns, const Packet& packet, const std::uint8_t* payload);
  // The next that is due; false: none.
  bool take(std::int64_t now_ns, Held* out);
  std::int64_t due_ns() const noexcept;  // INT64_MAX: nothing is held
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
