// Limits how long a caller that waits for a message polls before it sleeps. Polling that soon finds the message is
// free, because it saves a wake-up. All other polling is charged to a budget, which grows with a share of the time that
// passes. So a caller whose waits are short always polls, and one whose waits are long polls only as often as the
// budget allows. A long message takes longer to arrive, so a wait with a long buffer may poll for longer.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>

namespace weft::engine {

class Patience {
 public:
  // A wait may poll for free_ns more for each full kStepBytes of its buffer, kFactorMax times free_ns at most. Buffers
  // of more than kBytesMax get free_ns only, because the engine's thread moves their messages (LoopLock::kBulkBytes).
  static constexpr std::uint64_t kStepBytes = 32 * 1024, kBytesMax = 512 * 1024;
  static constexpr std::int64_t kFactorMax = 4;

  // free_ns: how long a wait with a short buffer polls at most; if the message comes within this time, the budget is
  // not charged. share: share of the time, 0 to 1, by which the budget grows.
  Patience(std::int64_t free_ns, double share) noexcept
      : free_ns_(free_ns), share_(share), budget_ns_(share > 0 ? kFactorMax * free_ns : 0) {}

  // How long a wait that begins now may poll, for a buffer of this size: the limit for the size, or 0 if the budget is
  // less than that limit. If threads call it at the same time, changes of the budget may be lost.
  std::int64_t begin(std::int64_t now_ns, std::uint64_t bytes) noexcept {
    const std::int64_t passed_ns = now_ns - since_ns_.exchange(now_ns, std::memory_order_relaxed);
    const auto earned_ns =
        static_cast<std::int64_t>(share_ * static_cast<double>(std::max<std::int64_t>(passed_ns, 0)));
    const std::int64_t budget_ns =
        std::min(budget_ns_.load(std::memory_order_relaxed) + earned_ns, kFactorMax * free_ns_);
    budget_ns_.store(budget_ns, std::memory_order_relaxed);
    const auto steps = bytes > kBytesMax ? 1 : 1 + static_cast<std::int64_t>(bytes / kStepBytes);
    const std::int64_t limit_ns = free_ns_ * std::min(steps, kFactorMax);
    return budget_ns < limit_ns ? 0 : limit_ns;
  }
  // A wait has polled for this long until its message came.
  void on_found(std::int64_t polled_ns) noexcept {
    if (polled_ns > free_ns_) budget_ns_.fetch_sub(polled_ns - free_ns_, std::memory_order_relaxed);
  }
  // A wait has polled for this long without a result, and sleeps now.
  void on_vain(std::int64_t polled_ns) noexcept { budget_ns_.fetch_sub(polled_ns, std::memory_order_relaxed); }

 private:
  const std::int64_t free_ns_;
  const double share_;
  std::atomic<std::int64_t> since_ns_{0};
  std::atomic<std::int64_t> budget_ns_;
};

}  // namespace weft::engine
