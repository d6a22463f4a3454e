// Messages that stay in memory which no CPU reads, such as a GPU's, and which another process of this host copies from
// there. What a loan says is up to the code of that memory; ports pass it on.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>

#include "native/core/status.h"

namespace weft::engine {

// Names the memory of a message to another process.
struct Loan {
  std::array<std::uint8_t, 112> bytes{};
};

// A send whose bytes the receiver copies.
struct LentSend {
  Loan loan;
  std::atomic<bool> ready{false};  // from now on the receiver may read them
};

// Where the bytes of a loan go if the receive is in host memory.
struct LoanTarget {
  std::mutex mutex;              // held while bytes are written
  std::uint8_t* data = nullptr;  // null: nothing may be written any more
};

class LoanReturn {
 public:
  // The bytes of a loan are in place, or will never be. Any thread may call it. False: the loan does not count, because
  // the peer has taken it back or has ended; then the port fails the receive, with the reason.
  virtual bool on_taken(std::uint64_t turn, Status status) noexcept = 0;

 protected:
  ~LoanReturn() = default;
};

// A loan that arrived for a receive.
struct TakenLoan {
  Loan loan;
  std::uint64_t bytes = 0;
  std::shared_ptr<LoanTarget> target;  // null: the memory of the taker
  std::uint64_t turn = 0;              // for on_taken()
  std::shared_ptr<LoanReturn> back;
};

class LoanTaker {
 public:
  virtual ~LoanTaker() = default;
  // Copies the bytes, at some later time, and then calls back->on_taken(), once. The caller moves messages, so this
  // does not wait.
  virtual void take(TakenLoan loan) noexcept = 0;
};

// The loans of one connection. Before a process lends memory of a device, the peer has tried whether it can read some:
// devices are numbered by the process that lends.
class Loans {
 public:
  static constexpr std::uint32_t kDevices = 8;

  // Lets the peer try this device. `trial` names memory that the peer compares with what it says. Only the first call
  // for a device has an effect.
  virtual void offer(std::uint32_t device, const Loan& trial) noexcept = 0;
  virtual bool offers(std::uint32_t device) const noexcept = 0;
  // Whether the peer has said that it can read memory of this device.
  virtual bool can_lend(std::uint32_t device) const noexcept = 0;
  // Whether the peer offers a device that nobody has tried.
  virtual bool has_trial() const noexcept = 0;
  // Takes such a trial. False: there is none.
  virtual bool next_trial(std::uint32_t* device, Loan* trial) noexcept = 0;
  // Tells the peer that its device can be read. `for_host`: takes loans for receives in host memory.
  virtual void accept(std::uint32_t device, std::shared_ptr<LoanTaker> for_host) noexcept = 0;

 protected:
  ~Loans() = default;
};

}  // namespace weft::engine
