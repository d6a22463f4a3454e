// What the sender knows of the receives posted at the other end: how many, and how long each is.
// Decides whether a message may go now; sends nothing.
#pragma once

#include <memory>
#include <new>

#include "native/core/types.h"

namespace weft::core {

class AdvertLedger {
 public:
  static constexpr u64 kAheadMax = 4096;  // advertisements kept beyond the next message: more is refused (P-7)
  enum class Permission : u8 { go, wait, too_long };

  u64 known() const noexcept { return known_; }

  // Takes what is new in an advertisement. False: it claims more than may be kept; nothing changed.
  bool on_advert(const wire::Advert& advert, u64 next_message) noexcept {
    const u64 first = expand32(known_, advert.first_message);
    const u64 end = first + advert.count;
    if (first > known_ || end <= known_) return true;  // a hole before it, or nothing new: the ack says where we are
    if (end > next_message + kAheadMax) return false;
    for (u64 message = known_; message < end; ++message) {
      if (message >= next_message && !keep(message, advert.entry(message - first).capacity_bytes, next_message)) break;
      known_ = message + 1;
    }
    return true;
  }

  Permission may_send(u64 message, u64 message_bytes, const EagerLimits& eager) const noexcept {
    if (message < known_) {
      return message_bytes <= ring_[message & mask_] ? Permission::go : Permission::too_long;
    }
    const bool may_go = message_bytes <= eager.bytes && message < known_ + eager.slots;
    return may_go ? Permission::go : Permission::wait;
  }

 private:
  bool keep(u64 message, u64 capacity_bytes, u64 next_message) noexcept {
    while (ring_ == nullptr || message - next_message > mask_) {
      const u64 entries = ring_ == nullptr ? 8 : 2 * (mask_ + 1);
      std::unique_ptr<u64[]> larger(new (std::nothrow) u64[entries]());
      if (larger == nullptr) return false;
      if (ring_ != nullptr) {
        for (u64 i = 0; i <= mask_; ++i) larger[(next_message + i) & (entries - 1)] = ring_[(next_message + i) & mask_];
      }
      ring_ = std::move(larger);
      mask_ = entries - 1;
    }
    ring_[message & mask_] = capacity_bytes;
    return true;
  }

  std::unique_ptr<u64[]> ring_;  // capacity by message number, from the next message on
  u64 mask_ = 0;
  u64 known_ = 0;
};

}  // namespace weft::core
