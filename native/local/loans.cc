// A process lends memory of a device only after the other has read a trial of it, which proves that the driver lets it,
// that both mean the same process, and that the path between the devices works.
#include "native/local/loans.h"

#include <cstring>
#include <new>
#include <utility>

namespace weft::local {
namespace {

constexpr std::uint32_t bit(std::uint32_t device) noexcept { return std::uint32_t{1} << device; }

}  // namespace

void PortLoans::offer(std::uint32_t device, const engine::Loan& trial) noexcept {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (is_over_ || offers(device)) return;
  offered_.fetch_or(bit(device), std::memory_order_relaxed);
  for (std::size_t i = 0; i < own_.trials[device].size(); ++i) {
    std::uint64_t word = 0;
    std::memcpy(&word, &trial.bytes[i * sizeof word], sizeof word);
    own_.trials[device][i].store(word, std::memory_order_relaxed);
  }
  own_.offers.fetch_or(bit(device), std::memory_order_release);
}

bool PortLoans::offers(std::uint32_t device) const noexcept {
  return device >= kDevices || !lends_ || (offered_.load(std::memory_order_relaxed) & bit(device)) != 0;
}

bool PortLoans::can_lend(std::uint32_t device) const noexcept {
  const std::lock_guard<std::mutex> lock(mutex_);
  return !is_over_ && lends_ && device < kDevices &&
         (other_.accepts.load(std::memory_order_acquire) & bit(device)) != 0;
}

// Devices of the peer's, a bit each. The mutex must be held.
std::uint32_t PortLoans::untried() const noexcept {
  constexpr std::uint32_t kAll = (std::uint32_t{1} << kDevices) - 1;
  return is_over_ || !lends_ ? 0 : other_.offers.load(std::memory_order_acquire) & kAll & ~tried_;
}

bool PortLoans::has_trial() const noexcept {
  const std::lock_guard<std::mutex> lock(mutex_);
  return untried() != 0;
}

bool PortLoans::next_trial(std::uint32_t* device, engine::Loan* trial) noexcept {
  const std::lock_guard<std::mutex> lock(mutex_);
  const std::uint32_t left = untried();
  if (left == 0) return false;
  *device = static_cast<std::uint32_t>(__builtin_ctz(left));
  tried_ |= bit(*device);
  for (std::size_t i = 0; i < other_.trials[*device].size(); ++i) {
    const std::uint64_t word = other_.trials[*device][i].load(std::memory_order_relaxed);
    std::memcpy(&trial->bytes[i * sizeof word], &word, sizeof word);
  }
  return true;
}

void PortLoans::accept(std::uint32_t device, std::shared_ptr<engine::LoanTaker> for_host) noexcept {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (is_over_) return;
  if (accepted_.load(std::memory_order_relaxed) == 0) for_host_ = std::move(for_host);
  accepted_.fetch_or(bit(device), std::memory_order_release);
  own_.accepts.fetch_or(bit(device), std::memory_order_release);
}

bool PortLoans::take(const engine::MessagePort::Posting& receive, std::uint64_t bytes, const engine::Loan& loan,
                     const std::shared_ptr<engine::LoanReturn>& back) noexcept {
  const std::uint64_t turn = begun_.load(std::memory_order_relaxed);
  std::shared_ptr<engine::LoanTarget> target;
  try {
    if (entries_ == nullptr) entries_ = std::make_unique<std::array<Entry, kLoansMax>>();
    if (receive.taker == nullptr) target = std::make_shared<engine::LoanTarget>();
  } catch (const std::bad_alloc&) {
    return false;
  }
  if (target != nullptr) target->data = receive.data;
  Entry& made = entry(turn);
  made.slot = receive.slot;
  made.bytes = bytes;
  made.target = target;
  made.status.store(kTaking, std::memory_order_relaxed);
  begun_.store(turn + 1, std::memory_order_relaxed);
  engine::LoanTaker* const taker = receive.taker != nullptr ? receive.taker : for_host_.get();
  taker->take({loan, bytes, std::move(target), turn, back});
  return true;
}

void PortLoans::on_taken(std::uint64_t turn, Status status) noexcept {
  entry(turn).status.store(static_cast<std::int32_t>(status), std::memory_order_release);
}

bool PortLoans::next_ended(Ended* out) noexcept {
  if (!any()) return false;
  Entry& oldest = entry(ended_.load(std::memory_order_relaxed));
  const std::int32_t status = oldest.status.load(std::memory_order_acquire);
  if (status == kTaking) return false;
  *out = {oldest.slot, oldest.bytes, static_cast<Status>(status)};
  oldest.target = nullptr;
  ended_.store(ended_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  return true;
}

void PortLoans::end() noexcept {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    is_over_ = true;
  }
  for (std::uint64_t turn = ended_.load(std::memory_order_relaxed); turn != begun_.load(std::memory_order_relaxed);
       ++turn) {
    const std::shared_ptr<engine::LoanTarget> target = std::move(entry(turn).target);
    if (target == nullptr) continue;
    const std::lock_guard<std::mutex> lock(target->mutex);
    target->data = nullptr;
  }
}

}  // namespace weft::local
