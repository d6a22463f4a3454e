// The loans of a port's connection: which devices the two processes can lend and read, and the loans that arrived and
// are being taken.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>

#include "native/engine/message_port.h"
#include "native/local/segment.h"

namespace weft::local {

class PortLoans final : public engine::Loans {
 public:
  static constexpr std::uint64_t kLoansMax = engine::RequestSlots::kSlots;

  PortLoans(Side* own, Side* other, bool lends) noexcept : own_(*own), other_(*other), lends_(lends) {}

  void offer(std::uint32_t device, const engine::Loan& trial) noexcept override;
  bool offers(std::uint32_t device) const noexcept override;
  bool can_lend(std::uint32_t device) const noexcept override;
  bool has_trial() const noexcept override;
  bool next_trial(std::uint32_t* device, engine::Loan* trial) noexcept override;
  void accept(std::uint32_t device, std::shared_ptr<engine::LoanTaker> for_host) noexcept override;

  // The functions below are for the thread that holds the port's lock, but for on_taken().
  //
  // Whether the peer may lend at all, because this process has accepted a device.
  bool may_arrive() const noexcept { return accepted_.load(std::memory_order_acquire) != 0; }
  // Hands a loan of `bytes` bytes for this receive over to the taker. False: lack of memory.
  bool take(const engine::MessagePort::Posting& receive, std::uint64_t bytes, const engine::Loan& loan,
            const std::shared_ptr<engine::LoanReturn>& back) noexcept;
  void on_taken(std::uint64_t turn, Status status) noexcept;
  bool any() const noexcept { return begun_.load(std::memory_order_relaxed) != ended_.load(std::memory_order_relaxed); }
  // The oldest loan, if it is no longer being taken.
  struct Ended {
    engine::RequestSlot* slot = nullptr;
    std::uint64_t bytes = 0;
    Status status = Status::ok;
  };
  bool next_ended(Ended* out) noexcept;
  // Nothing is written to memory of receives any more, but by takers to their own, and the shared memory is not used.
  void end() noexcept;

 private:
  static constexpr std::int32_t kTaking = -1;
  std::uint32_t untried() const noexcept;
  struct Entry {
    engine::RequestSlot* slot = nullptr;
    std::uint64_t bytes = 0;
    std::shared_ptr<engine::LoanTarget> target;
    std::atomic<std::int32_t> status{kTaking};  // a Status
  };

  Side& own_;
  Side& other_;
  const bool lends_;
  mutable std::mutex mutex_;  // guards what the two sides say of devices, and the next two
  bool is_over_ = false;
  std::uint32_t tried_ = 0;
  std::atomic<std::uint32_t> offered_{0}, accepted_{0};    // changed under the mutex
  std::shared_ptr<engine::LoanTaker> for_host_;            // set before `accepted_`, for good
  std::unique_ptr<std::array<Entry, kLoansMax>> entries_;  // made with the first loan
  Entry& entry(std::uint64_t turn) const noexcept { return (*entries_)[turn % kLoansMax]; }
  std::atomic<std::uint64_t> begun_{0}, ended_{0};
};

}  // namespace weft::local
