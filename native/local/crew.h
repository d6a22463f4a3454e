// Threads that help to copy a long message out of the peer's memory: one core copies fewer bytes in a second than the
// memory of most hosts can deliver.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "native/engine/knobs.h"
#include "native/local/peer_memory.h"

namespace weft::local {

// How many threads copy a message at once, the receiver's included.
std::size_t copiers_of(const engine::Knobs& knobs);

class Crew : public std::enable_shared_from_this<Crew> {
 public:
  // `helpers`: threads beside the one that copies. `spin_ns`: how long they look for further work, at most.
  Crew(std::size_t helpers, std::int64_t spin_ns);
  ~Crew();
  Crew(const Crew&) = delete;
  Crew& operator=(const Crew&) = delete;

  // Starts the threads, the first time. Without threads, or with fewer, callers of copy() copy more themselves.
  void start() noexcept;
  // Ends the threads. One that a peer holds up is left behind, with this object.
  void stop() noexcept;

  // Copies as PeerMemory::copy() does, with those helpers that are idle, which copy `helped_bytes` of it. No thread
  // writes to `to` after it has returned. Any thread may call it; several may at once.
  PeerMemory::Copied copy(const PeerMemory& peer, void* to, std::uint64_t address, std::uint64_t bytes,
                          std::uint64_t* helped_bytes) noexcept;

 private:
  struct Job;
  // Above these two bits, the state of a helper has a ticket that each offer increments: so a thread withdraws no offer
  // but its own.
  enum State : std::uint32_t { kIdle, kClaimed, kOffered, kWorking };
  struct alignas(128) Helper {
    std::atomic<std::int32_t> state{kIdle};  // a futex
    std::atomic<bool> asleep{false}, running{false};
    Job* job = nullptr;  // valid from an offer until the helper has left it
    std::thread thread;
  };
  static State kind(std::int32_t state) noexcept { return static_cast<State>(static_cast<std::uint32_t>(state) & 3); }
  static std::int32_t with(std::int32_t state, State kind, std::uint32_t tickets = 0) noexcept {
    return static_cast<std::int32_t>((static_cast<std::uint32_t>(state) & ~3u) + 4 * tickets + kind);
  }
  void run(Helper* helper) noexcept;
  bool await_offer(Helper* helper, std::int64_t patience_ns) noexcept;
  static std::int64_t work(Helper* helper) noexcept;
  static std::uint64_t copy_pieces(Job* job) noexcept;
  static bool offer_to(Helper* helper, Job* job, std::int32_t* offered) noexcept;
  static void await_helpers(Job* job) noexcept;
  bool is_worth_asking() noexcept;
  void on_help(std::uint64_t bytes, std::uint64_t helped_bytes) noexcept;

  const std::int64_t spin_ns_;
  std::vector<std::unique_ptr<Helper>> helpers_;
  std::atomic<bool> started_{false}, stopping_{false};
  std::atomic<std::int32_t> running_{0};  // threads that have not ended; a futex
  // Help that comes late, as all cores are busy, is asked for less and less often.
  std::atomic<std::uint32_t> vain_{0}, left_out_{0};
};

}  // namespace weft::local
