// Messages that processes of one host lend each other in the memory of their GPUs: a worker names its own memory to
// peers, and copies what they lend, into memory of its GPU or, through pinned memory, of the host.
#pragma once

#include <atomic>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "native/engine/loan.h"
#include "native/engine/log_limit.h"
#include "native/gpu/shared_copy.h"
#include "native/gpu/shared_memory.h"
#include "native/message/runtime.h"

namespace weft::message {

// A copy of a loan to the device.
class LoanCopy {
 public:
  LoanCopy(gpu::Copier* copier, gpu::Mappings* mappings) noexcept : copy_(copier), mappings_(mappings) {}
  ~LoanCopy();
  // Maps the memory and launches the copy. False: error() says why not.
  bool begin(const engine::TakenLoan& loan, const gpu::Layout& to, const gpu::PieceTable& table);
  bool ended() noexcept { return copy_.ended(); }
  bool failed() const noexcept { return copy_.failed() || !error_.empty(); }
  const std::string& error() const noexcept { return error_.empty() ? copy_.error() : error_; }

 private:
  gpu::SharedCopy copy_;
  gpu::Mappings* const mappings_;
  gpu::Mappings::Mapping* mapping_ = nullptr;
  std::string error_;
};

// Loans for receives in host memory, which wait for the worker.
class HostLoans final : public engine::LoanTaker {
 public:
  explicit HostLoans(std::function<void()> wake) : wake_(std::move(wake)) {}
  void take(engine::TakenLoan loan) noexcept override;
  bool waiting() const noexcept { return waiting_.load(std::memory_order_acquire) != 0; }
  bool next(engine::TakenLoan* out) noexcept;
  // Fails loans that wait, and those that are taken later.
  void close() noexcept;

 private:
  std::mutex mutex_;
  std::function<void()> wake_;  // empty after close()
  std::list<engine::TakenLoan> loans_;
  std::atomic<std::size_t> waiting_{0};
};

class DeviceLoans {
 public:
  // Shorter messages are staged: to name memory takes longer than to copy them.
  static constexpr std::size_t kLoanBytesMin = 16 * 1024;

  // `wake`: lets the worker's thread call poll(). `device`: the driver's number. Allocates memory, on which the driver
  // may wait for streams: to be made before any stream can wait for a message.
  DeviceLoans(const gpu::Driver& driver, gpu::Copier* copier, int device, std::function<void()> wake);
  DeviceLoans(const DeviceLoans&) = delete;
  DeviceLoans& operator=(const DeviceLoans&) = delete;
  ~DeviceLoans();

  // Names the memory of a send to the peer of this connection. Null: the peer cannot read it. One thread at a time.
  std::unique_ptr<engine::LentSend> lend(Connection* connection, const gpu::Layout& layout);

  // The functions below are for the worker's thread.
  //
  // Lets the peer of a connection try this device's memory, and begins to try the peer's.
  void introduce(const std::shared_ptr<Connection>& connection) noexcept;
  std::unique_ptr<LoanCopy> make_copy() { return std::make_unique<LoanCopy>(copier_, &mappings_); }
  // Advances loans for host memory, and the trial. True: something moved.
  bool poll() noexcept;
  bool busy() const noexcept { return current_.back != nullptr || trying_ != nullptr; }
  // Whether poll() has something to begin.
  bool has_work() const noexcept { return current_.back == nullptr && host_->waiting(); }

 private:
  static constexpr std::size_t kBounceBytes = 4 << 20, kTrialBytes = 4096;
  std::string make_trial();
  void begin_trial(const std::shared_ptr<Connection>& connection, std::uint32_t device, const engine::Loan& trial);
  bool poll_trial() noexcept;
  void end_trial(bool passed) noexcept;
  bool poll_host();
  void begin_chunk();
  void land_chunk();
  void end_current(Status status, const std::string& error) noexcept;

  const gpu::Driver& driver_;
  gpu::Copier* const copier_;
  const std::uint32_t device_;
  gpu::MemoryNames names_;
  gpu::Mappings mappings_;
  const std::shared_ptr<HostLoans> host_;
  std::unique_ptr<gpu::PinnedPool> pinned_;
  std::uint8_t* bounce_ = nullptr;      // kBounceBytes of pinned memory for loans; null: none
  std::uint8_t* trial_read_ = nullptr;  // ... and kTrialBytes for what a peer's trial holds
  engine::Loan trial_;                  // what peers try, if `can_offer_`
  bool can_offer_ = false;

  // The trial of a peer's device that is being read; null: none.
  std::shared_ptr<Connection> trying_;
  std::uint32_t trying_device_ = 0;
  gpu::NamedMemory trying_memory_;
  gpu::Mappings::Mapping* trial_mapping_ = nullptr;
  std::unique_ptr<gpu::SharedCopy> trial_copy_;

  // The loan for host memory that is being copied.
  engine::TakenLoan current_;
  gpu::Mappings::Mapping* mapping_ = nullptr;
  std::unique_ptr<gpu::SharedCopy> copy_;
  engine::LogLimit refused_{8};
  std::uint64_t done_bytes_ = 0, chunk_bytes_ = 0;  // chunk_bytes_ 0: no copy is in progress
};

}  // namespace weft::message
