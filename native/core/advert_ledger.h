// The sender's record of the receives that the peer has advertised: their number and the capacity of each.
#pragma once

#include <memory>
#include <new>

#include "native/core/types.h"

namespace weft::core {

class AdvertLedger {
 public:
  static constexpr u64 kAheadMax = 4096;  // maximum number of advertised receives that are kept (P-7)
  enum class Permission : u8 { go, wait, too_long };

  // An advertised receive. Key 0 means that it has no memory window and its bytes must be sent in datagrams.
  struct Receive {
    u64 capacity_bytes = 0;
    u64 address = 0;
    u32 key = 0;
  };

  u64 known() const noexcept { return known_; }
  // The advertised receive of a message. Valid only for the next message to be sent, once may_send() permits it.
  Receive receive_of(u64 message) const noexcept { return message < known_ ? ring_[message & mask_] : Receive{}; }

  // Drops the advertisements of all messages before `message`, and no longer expects those that are missing.
  void pass(u64 message) noexcept { known_ = known_ < message ? message : known_; }

  // Adds the new entries of an advertisement. Returns false and changes nothing if there are more entries than may be
  // kept.
  bool on_advert(const wire::Advert& advert, u64 next_message) noexcept {
    const u64 first = expand32(known_, advert.first_message);
    const u64 end = first + advert.count;
    // Ignores an advertisement that has no new entry or starts after a gap. The confirmation packet states known(), so
    // the receiver sends missing entries again.
    if (first > known_ || end <= known_) return true;
    if (end > next_message + kAheadMax) return false;
    for (u64 message = known_; message < end; ++message) {
      if (message >= next_message && !keep(message, advert.entry(message - first), next_message)) break;
      known_ = message + 1;
    }
    return true;
  }

  Permission may_send(u64 message, u64 message_bytes, const EagerLimits& eager) const noexcept {
    if (message < known_) {
      return message_bytes <= ring_[message & mask_].capacity_bytes ? Permission::go : Permission::too_long;
    }
    const bool may_go = message_bytes <= eager.bytes && message < known_ + eager.slots;
    return may_go ? Permission::go : Permission::wait;
  }

  // Frees the storage if every advertised receive has been used.
  void release(u64 next_message) noexcept {
    if (known_ <= next_message) ring_.reset();
  }

 private:
  bool keep(u64 message, const wire::AdvertEntry& entry, u64 next_message) noexcept {
    while (ring_ == nullptr || message - next_message > mask_) {
      const u64 entries = ring_ == nullptr ? 4 : 2 * (mask_ + 1);
      std::unique_ptr<Receive[]> larger(new (std::nothrow) Receive[entries]);
      if (larger == nullptr) return false;
      if (ring_ != nullptr) {
        for (u64 i = 0; i <= mask_; ++i) larger[(next_message + i) & (entries - 1)] = ring_[(next_message + i) & mask_];
      }
      ring_ = std::move(larger);
      mask_ = entries - 1;
    }
    ring_[message & mask_] = {entry.capacity_bytes, entry.address, entry.key};
    return true;
  }

  std::unique_ptr<Receive[]> ring_;  // circular, by message number; the oldest entry is for the next message
  u64 mask_ = 0;
  u64 known_ = 0;
};

}  // namespace weft::core
