// A packet's fate is a hash of the seed, the queue pair and the number of the transmission, so that the timing of
// threads does not change it.
#include "tests/softverbs/native/network.h"

#include <utility>

namespace weft::softverbs {
namespace {

constexpr std::size_t kHeldMax = 8192;

// Random numbers for one packet or request, independent of those of others (Steele, Lea, Flood: SplitMix, OOPSLA 2014).
class Draws {
 public:
  Draws(std::int64_t seed, std::uint64_t what, std::uint64_t which) noexcept
      : state_(static_cast<std::uint64_t>(seed) * 0x9E3779B97F4A7C15u ^ what << 32 ^ which) {
    static_cast<void>(next());
  }
  bool happens(double probability) noexcept { return uniform() < probability; }
  std::int64_t up_to(std::int64_t most) noexcept {
    return 1 + static_cast<std::int64_t>(uniform() * static_cast<double>(most));
  }

 private:
  double uniform() noexcept { return static_cast<double>(next() >> 11) * 0x1.0p-53; }
  std::uint64_t next() noexcept {
    std::uint64_t z = state_ += 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
  }
  std::uint64_t state_;
};

}  // namespace

Fate fate_of(const Settings& settings, const Packet& packet) noexcept {
  Fate fate;
  // Separates the numbers of data packets from those of acknowledgments and NACKs, which are counted separately.
  const std::uint64_t serial = packet.serial | (packet.kind == Kind::data ? 0 : std::uint64_t{1} << 63);
  Draws draws(settings.seed, packet.from, serial);
  fate.lost = draws.happens(settings.loss);
  fate.reordered = draws.happens(settings.reorder);
  fate.late = draws.happens(settings.late);
  fate.doubled = draws.happens(settings.duplicate);
  const std::int64_t short_ns = draws.up_to(settings.reorder_ns_max), long_ns = draws.up_to(settings.late_ns_max);
  if (fate.reordered) fate.delay_ns = short_ns;
  if (fate.late) fate.delay_ns = long_ns;
  if (fate.doubled) fate.copy_delay_ns = draws.up_to(settings.late_ns_max);
  return fate;
}

std::int64_t stall_ns_of(const Settings& settings, std::uint32_t queue_pair, std::uint64_t request) noexcept {
  if (settings.stall <= 0) return 0;
  Draws draws(~settings.seed, queue_pair, request);
  return draws.happens(settings.stall) ? draws.up_to(settings.stall_ns_max) : 0;
}

bool HeldPackets::hold(std::int64_t due_ns, const Packet& packet, const std::uint8_t* payload) {
  if (held_.size() >= kHeldMax) return false;
  held_.push({due_ns, order_++, packet, std::vector<std::uint8_t>(payload, payload + packet.bytes)});
  return true;
}

bool HeldPackets::take(std::int64_t now_ns, Held* out) {
  if (held_.empty() || held_.top().due_ns > now_ns) return false;
  *out = held_.top();
  held_.pop();
  return true;
}

std::int64_t HeldPackets::due_ns() const noexcept { return held_.empty() ? INT64_MAX : held_.top().due_ns; }

void HeldPackets::clear() { held_ = {}; }

}  // namespace weft::softverbs
