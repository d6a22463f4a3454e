// How long a caller that waits for a message polls before it sleeps. Polling that ends with the message costs nothing,
// because it saves a wake-up. Polling that ends in sleep is charged to a budget, which grows with a share of the time
// that passes. So short waits are always polled, and long ones only as often as the budget allows. A message of many
// bytes takes longer by itself, so a wait for one may be polled for longer.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>

namespace weft::engine {

class Patience {
 public:
  // A wait may poll for longest_ns more for each kBytes of its message, unless that is longer than kBytesMax: then the
  // engine's thread takes over (LoopLock::kBulkBytes).
  static constexpr std::uint64_t kBytes = 32 * 1024, kBytesMax = 512 * 1024;

  // longest_ns: longest polling of a wait for a few bytes. share: how much of the time may be polled without a result,
  // 0 to 1.
  Patience(std::int64_t longest_ns, double share) noexcept
      : longest_ns_(longest_ns), share_(share), budget_ns_(share > 0 ? kSaved * longest_ns : 0) {}

  // How long a wait for so many bytes that begins now may poll. The budget may become negative. Threads may race: the
  // budget is then kept less exactly.
  std::int64_t begin(std::int64_t now_ns, std::uint64_t bytes) noexcept {
    const std::int64_t passed_ns = now_ns - since_ns_.exchange(now_ns, std::memory_order_relaxed);
    const auto earned_ns =
        static_cast<std::int64_t>(share_ * static_cast<double>(std::max<std::int64_t>(passed_ns, 0)));
    const std::int64_t budget_ns =
        std::min(budget_ns_.load(std::memory_order_relaxed) + earned_ns, kSaved * longest_ns_);
    budget_ns_.store(budget_ns, std::memory_order_relaxed);
    if (budget_ns < longest_ns_) return 0;
    return bytes > kBytesMax ? longest_ns_ : longest_ns_ * static_cast<std::int64_t>(1 + bytes / kBytes);
  }
  // A wait has polled for this long without a result, and sleeps now.
  void on_vain(std::int64_t polled_ns) noexcept { budget_ns_.fetch_sub(polled_ns, std::memory_order_relaxed); }

 private:
  static constexpr std::int64_t kSaved = 4;  // the budget is at most so many longest_ns
  const std::int64_t longest_ns_;
  const double share_;
  std::atomic<std::int64_t> since_ns_{0};
  std::atomic<std::int64_t> budget_ns_;
};

}  // namespace weft::engine
