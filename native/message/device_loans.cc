// What a peer lends lies in an allocation of its GPU, which this process maps and its own GPU reads. A trial comes
// first: whether the driver allows that depends on containers, on which GPUs a process sees, and on how they are
// linked.
#include "native/message/device_loans.h"

#include <sys/random.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <thread>
#include <utility>

#include "native/engine/clock.h"
#include "native/engine/log.h"

namespace weft::message {
namespace {

constexpr std::size_t kTrialBytes = 4096;

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
  loan.back->on_taken(loan.turn, status);
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
  for (engine::TakenLoan loan; next(&loan);) loan.back->on_taken(loan.turn, Status::cancelled);
}

DeviceLoans::DeviceLoans(const gpu::Driver& driver, gpu::Copier* copier, int device, std::function<void()> wake)
    : driver_(driver),
      copier_(copier),
      device_(static_cast<std::uint32_t>(device)),
      names_(driver),
      mappings_(driver, &copier->shared()),
      host_(std::make_shared<HostLoans>(std::move(wake))) {}

DeviceLoans::~DeviceLoans() {
  host_->close();
  while (chunk_bytes_ != 0 && !copy_->ended()) std::this_thread::yield();
  if (current_.back != nullptr) end_current(Status::cancelled, "");
  if (bounce_ != nullptr) {
    bounce_->give(bounce_at_);
    copier_->shared().retire(std::move(bounce_));
  }
  if (trial_memory_ == 0) return;
  // If a stream waits, the memory stays taken until the process ends: freeing it would wait for that stream.
  copier_->shared().persistent_kernel().free_unless_waited([&] {
    const gpu::Current current(driver_, copier_->context());
    static_cast<void>(driver_.free(trial_memory_));
  });
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

// Makes memory of this device whose content peers know. False: there is none, or it cannot be shared.
bool DeviceLoans::make_trial() {
  if (std::exchange(tried_trial_, true)) return trial_memory_ != 0;
  gpu::NamedMemory memory;
  if (::getrandom(&memory.holds, sizeof memory.holds, 0) != static_cast<ssize_t>(sizeof memory.holds)) return false;
  const gpu::Current current(driver_, copier_->context());
  gpu::Result result = current.result();
  if (result != gpu::kSuccess || driver_.alloc(&trial_memory_, kTrialBytes) != gpu::kSuccess) return false;
  const gpu::Stream stream = copier_->shared().take_stream(&result);
  bool made = stream != nullptr &&
              driver_.copy_to_device(trial_memory_, &memory.holds, sizeof memory.holds, stream) == gpu::kSuccess;
  if (stream != nullptr) {
    made = driver_.stream_synchronize(stream) == gpu::kSuccess && made;
    copier_->shared().give_stream(stream);
  }
  gpu::MemoryNames once(driver_);
  made = made && once.name(trial_memory_, kTrialBytes, &memory);
  if (!made) {
    static_cast<void>(driver_.free(std::exchange(trial_memory_, 0)));
    return false;
  }
  std::memcpy(trial_.bytes.data(), &memory, sizeof memory);
  return true;
}

// While a stream waits, nothing of this is done: the driver may make the thread wait for it.
void DeviceLoans::introduce(Connection* connection) noexcept {
  engine::Loans* const loans = connection->loans();
  if (loans == nullptr) return;
  const bool offers = !loans->offers(device_) && (!tried_trial_ || trial_memory_ != 0);
  if (!offers && !loans->has_trial()) return;
  copier_->shared().persistent_kernel().free_unless_waited([&] {
    try {
      if (offers && make_trial()) loans->offer(device_, trial_);
      engine::Loan trial;
      for (std::uint32_t device = 0; loans->next_trial(&device, &trial);) {
        const bool passed = mappings_.passes(named(trial));
        if (passed) loans->accept(device, host_);
        engine::log(engine::LogLevel::info, connection->peer_address() + ": messages of GPU " + std::to_string(device) +
                                                " of this process's peer " +
                                                (passed ? "are copied from there" : "pass through host memory") +
                                                " (GPU " + std::to_string(device_) + " here)");
      }
    } catch (const std::bad_alloc&) {
      // Then messages are staged.
    }
  });
}

bool DeviceLoans::poll() noexcept {
  mappings_.tend(engine::now_ns());
  std::string error;
  if (current_.back == nullptr) {
    if (!host_->next(&current_)) return false;
    done_bytes_ = chunk_bytes_ = 0;
    try {
      mapping_ = mappings_.open(named(current_.loan), current_.bytes, &error);
    } catch (const std::bad_alloc&) {
      mapping_ = nullptr;
    }
    if (mapping_ == nullptr || !begin_chunk(&error)) end_current(Status::device_error, error);
    return true;
  }
  if (!copy_->ended()) return false;
  land_chunk(&error);
  return true;
}

// Launches the copy of the next bytes into pinned memory.
bool DeviceLoans::begin_chunk(std::string* error) noexcept {
  try {
    if (bounce_ == nullptr) {
      bounce_ = copier_->shared().pool(kBounceBytes, kBounceBytes, error);
      if (bounce_ == nullptr) return false;
      bounce_at_ = bounce_->take(kBounceBytes);
      copy_ = std::make_unique<gpu::SharedCopy>(copier_);
    }
  } catch (const std::bad_alloc&) {
    return false;
  }
  chunk_bytes_ = std::min<std::uint64_t>(current_.bytes - done_bytes_, kBounceBytes);
  const gpu::Address from = mapping_->address + named(current_.loan).offset_bytes + done_bytes_;
  if (copy_->begin(from, bounce_at_, chunk_bytes_)) return true;
  chunk_bytes_ = 0;
  *error = copy_->error();
  return false;
}

// Copies the bytes that have come into the memory of the receive.
void DeviceLoans::land_chunk(std::string* error) noexcept {
  if (copy_->failed()) return end_current(Status::device_error, copy_->error());
  bool wanted = false;
  {
    const std::lock_guard<std::mutex> lock(current_.target->mutex);
    wanted = current_.target->data != nullptr;
    if (wanted) std::memcpy(current_.target->data + done_bytes_, bounce_at_, chunk_bytes_);
  }
  done_bytes_ += std::exchange(chunk_bytes_, 0);
  if (!wanted) return end_current(Status::cancelled, "");
  if (done_bytes_ == current_.bytes) return end_current(Status::ok, "");
  if (!begin_chunk(error)) end_current(Status::device_error, *error);
}

void DeviceLoans::end_current(Status status, const std::string& error) noexcept {
  if (!error.empty()) {
    try {
      engine::log(engine::LogLevel::warn, "a message in a peer's GPU memory cannot be received: " + error);
    } catch (const std::bad_alloc&) {
      // The connection fails in any case.
    }
  }
  if (mapping_ != nullptr) gpu::Mappings::release(std::exchange(mapping_, nullptr), engine::now_ns());
  if (copy_ != nullptr && copy_->failed()) copy_.reset();
  if (copy_ == nullptr && bounce_ != nullptr) {
    bounce_->give(bounce_at_);
    copier_->shared().retire(std::move(bounce_));
  }
  chunk_bytes_ = 0;
  const engine::TakenLoan ended = std::exchange(current_, {});
  ended.back->on_taken(ended.turn, status);
}

}  // namespace weft::message
