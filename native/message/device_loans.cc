// What a peer lends lies in an allocation of its GPU, which this process maps and its own GPU reads. A trial comes
// first: whether the driver allows that depends on containers, on which GPUs a process sees, and on how they are
// linked.
#include "native/message/device_loans.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <thread>
#include <utility>

#include "native/engine/clock.h"
#include "native/engine/log.h"

namespace weft::message {
namespace {

static_assert(sizeof(gpu::NamedMemory) == sizeof(engine::Loan));

gpu::NamedMemory named(const engine::Loan& loan) noexcept {
  gpu::NamedMemory memory;
  std::memcpy(&memory, loan.bytes.data(), sizeof memory);
  return memory;
}

}  // namespace

LoanCopy::~LoanCopy() {
  if (mapping_ != nullptr) gpu::Mappings::release(mapping_, engine::now_ns());
}

bool LoanCopy::begin(const engine::TakenLoan& loan, const gpu::Layout& to, const gpu::PieceTable& table) {
  const gpu::NamedMemory memory = named(loan.loan);
  mapping_ = mappings_->open(memory, loan.bytes, &error_);
  return mapping_ != nullptr && copy_.begin(mapping_->address + memory.offset_bytes, to, loan.bytes, table);
}

void HostLoans::take(engine::TakenLoan loan) noexcept {
  Status status = Status::device_unavailable;
  try {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (wake_) {
      loans_.push_back(loan);
      waiting_.fetch_add(1, std::memory_order_release);
      return wake_();
    }
  } catch (const std::bad_alloc&) {
    status = Status::out_of_memory;
  }
  static_cast<void>(loan.back->on_taken(loan.turn, status));
}

bool HostLoans::next(engine::TakenLoan* out) noexcept {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (loans_.empty()) return false;
  *out = std::move(loans_.front());
  loans_.pop_front();
  waiting_.fetch_sub(1, std::memory_order_relaxed);
  return true;
}

void HostLoans::close() noexcept {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    wake_ = nullptr;
  }
  for (engine::TakenLoan loan; next(&loan);) static_cast<void>(loan.back->on_taken(loan.turn, Status::cancelled));
}

DeviceLoans::DeviceLoans(const gpu::Driver& driver, gpu::Copier* copier, int device, std::function<void()> wake)
    : driver_(driver),
      copier_(copier),
      device_(static_cast<std::uint32_t>(device)),
      names_(driver),
      mappings_(driver, &copier->shared()),
      host_(std::make_shared<HostLoans>(std::move(wake))) {
  const std::string problem = make_trial();
  if (!problem.empty())
    engine::log(engine::LogLevel::info,
                "messages of GPU " + std::to_string(device) + " pass through host memory: " + problem);
}

DeviceLoans::~DeviceLoans() {
  host_->close();
  while (trying_ != nullptr && !poll_trial()) std::this_thread::yield();
  while (chunk_bytes_ != 0 && !copy_->ended()) std::this_thread::yield();
  if (current_.back != nullptr) end_current(Status::cancelled, "");
  if (pinned_ != nullptr) {
    if (bounce_ != nullptr) pinned_->give(bounce_);
    copier_->shared().retire(std::move(pinned_));
  }
}

std::unique_ptr<engine::LentSend> DeviceLoans::lend(Connection* connection, const gpu::Layout& layout) {
  engine::Loans* const loans = connection->loans();
  if (loans == nullptr || layout.bytes() < kLoanBytesMin || layout.pieces().size() != 1 || !loans->can_lend(device_))
    return nullptr;
  gpu::NamedMemory memory;
  const gpu::Current current(driver_, copier_->context());
  if (current.result() != gpu::kSuccess || !names_.name(layout.pieces().front().address, layout.bytes(), &memory))
    return nullptr;
  auto made = std::make_unique<engine::LentSend>();
  std::memcpy(made->loan.bytes.data(), &memory, sizeof memory);
  return made;
}

// Names this device's memory for trials, and takes pinned memory. Returns why that failed; empty: it did not.
std::string DeviceLoans::make_trial() {
  std::string problem;
  const gpu::SharedDevice& shared = copier_->shared();
  pinned_ = copier_->shared().pool(kBounceBytes + kTrialBytes, kTrialBytes, &problem);
  if (pinned_ == nullptr) return problem;
  bounce_ = pinned_->take(kBounceBytes + kTrialBytes);
  trial_read_ = bounce_ + kBounceBytes;
  if (shared.trial_memory() == 0) return shared.trial_missing();
  gpu::NamedMemory memory;
  gpu::MemoryNames once(driver_);
  const gpu::Current current(driver_, copier_->context());
  if (!once.name(shared.trial_memory(), gpu::SharedDevice::kTrialBytes, &memory))
    return "the driver shares no memory of it";
  memory.holds = shared.trial_holds();
  std::memcpy(trial_.bytes.data(), &memory, sizeof memory);
  can_offer_ = true;
  return "";
}

void DeviceLoans::introduce(const std::shared_ptr<Connection>& connection) noexcept {
  engine::Loans* const loans = connection->loans();
  if (loans == nullptr) return;
  if (can_offer_ && !loans->offers(device_)) loans->offer(device_, trial_);
  engine::Loan trial;
  std::uint32_t device = 0;
  if (bounce_ == nullptr || trying_ != nullptr || !loans->has_trial() || !loans->next_trial(&device, &trial)) return;
  try {
    begin_trial(connection, device, trial);
  } catch (const std::bad_alloc&) {
    end_trial(false);  // then messages are staged
  }
}

// Reads what the peer says that its memory holds.
void DeviceLoans::begin_trial(const std::shared_ptr<Connection>& connection, std::uint32_t device,
                              const engine::Loan& trial) {
  trying_ = connection;
  trying_device_ = device;
  trying_memory_ = named(trial);
  std::string unused;
  trial_copy_ = std::make_unique<gpu::SharedCopy>(copier_);
  trial_mapping_ = mappings_.open(trying_memory_, sizeof trying_memory_.holds, &unused);
  const bool begun = trial_mapping_ != nullptr && mappings_.reads_everywhere(*trial_mapping_) &&
                     trial_copy_->begin(trial_mapping_->address + trying_memory_.offset_bytes, trial_read_,
                                        sizeof trying_memory_.holds);
  if (!begun) end_trial(false);
}

// True: the trial has ended.
bool DeviceLoans::poll_trial() noexcept {
  if (!trial_copy_->ended()) return false;
  const std::size_t bytes = sizeof trying_memory_.holds;
  end_trial(!trial_copy_->failed() && std::memcmp(trial_read_, &trying_memory_.holds, bytes) == 0);
  return true;
}

void DeviceLoans::end_trial(bool passed) noexcept {
  const std::shared_ptr<Connection> connection = std::exchange(trying_, nullptr);
  if (trial_mapping_ != nullptr) gpu::Mappings::release(std::exchange(trial_mapping_, nullptr), engine::now_ns());
  trial_copy_.reset();
  engine::Loans* const loans = connection->loans();
  if (passed && loans != nullptr) loans->accept(trying_device_, host_);
  try {
    const std::string here = "GPU " + std::to_string(device_), there = "GPU " + std::to_string(trying_device_);
    engine::log(engine::LogLevel::info,
                connection->peer_address() + ": " + here +
                    (passed ? " copies messages out of the peer's " + there
                            : " cannot read the peer's " + there + ": its messages pass through host memory"));
  } catch (const std::bad_alloc&) {
    // The line is left out.
  }
}

bool DeviceLoans::poll() noexcept {
  bool moved = trying_ != nullptr && poll_trial();
  try {
    moved |= poll_host();
  } catch (const std::bad_alloc&) {
    end_current(Status::out_of_memory, "");
    moved = true;
  }
  return moved;
}

bool DeviceLoans::poll_host() {
  if (current_.back != nullptr) {
    if (!copy_->ended()) return false;
    land_chunk();
    return true;
  }
  if (!host_->next(&current_)) return false;
  done_bytes_ = chunk_bytes_ = 0;
  bool wanted = false;
  {
    const std::lock_guard<std::mutex> lock(current_.target->mutex);
    wanted = current_.target->data != nullptr;
  }
  std::string error;
  if (wanted) mapping_ = mappings_.open(named(current_.loan), current_.bytes, &error);
  if (mapping_ != nullptr) {
    begin_chunk();
  } else {
    end_current(wanted ? Status::device_error : Status::cancelled, error);
  }
  return true;
}

// Launches the copy of the next bytes into pinned memory.
void DeviceLoans::begin_chunk() {
  if (copy_ == nullptr) copy_ = std::make_unique<gpu::SharedCopy>(copier_);
  chunk_bytes_ = std::min<std::uint64_t>(current_.bytes - done_bytes_, kBounceBytes);
  const gpu::Address from = mapping_->address + named(current_.loan).offset_bytes + done_bytes_;
  if (copy_->begin(from, bounce_, chunk_bytes_)) return;
  end_current(Status::device_error, copy_->error());
}

// Copies the bytes that have come into the memory of the receive.
void DeviceLoans::land_chunk() {
  if (copy_->failed()) return end_current(Status::device_error, copy_->error());
  bool wanted = false;
  {
    const std::lock_guard<std::mutex> lock(current_.target->mutex);
    wanted = current_.target->data != nullptr;
    if (wanted) std::memcpy(current_.target->data + done_bytes_, bounce_, chunk_bytes_);
  }
  done_bytes_ += std::exchange(chunk_bytes_, 0);
  if (!wanted) return end_current(Status::cancelled, "");
  if (done_bytes_ == current_.bytes) return end_current(Status::ok, "");
  begin_chunk();
}

// `error`: may belong to the copy, which this function drops if it has failed.
void DeviceLoans::end_current(Status status, const std::string& error) noexcept {
  if (mapping_ != nullptr) gpu::Mappings::release(std::exchange(mapping_, nullptr), engine::now_ns());
  chunk_bytes_ = 0;
  const engine::TakenLoan ended = std::exchange(current_, {});
  if (ended.back->on_taken(ended.turn, status) && status != Status::ok && !error.empty()) {
    try {
      refused_.log(engine::now_ns(), engine::LogLevel::warn,
                   "a message in a peer's GPU memory cannot be received: " + error);
    } catch (const std::bad_alloc&) {
      // The connection fails in any case.
    }
  }
  if (copy_ != nullptr && copy_->failed()) copy_.reset();
}

}  // namespace weft::message
