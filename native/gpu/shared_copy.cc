// The copies go into a stream, or to the persistent kernel while a stream waits for a message, as Transfer's do.
#include "native/gpu/shared_copy.h"

#include <mutex>
#include <new>
#include <utility>

namespace weft::gpu {

SharedCopy::~SharedCopy() { copier_->give_event(done_); }

void SharedCopy::fail(const char* symbol, Result result) noexcept {
  if (!error_.empty()) return;
  try {
    error_ = copier_->driver_.say(symbol, result);
  } catch (const std::bad_alloc&) {
    error_ = "out of memory";  // short enough for std::string to store it without an allocation
  }
}

// submit() gives the copy to the persistent kernel, launch() puts it into a stream.
template <class Submit, class Launch>
bool SharedCopy::start(const Submit& submit, const Launch& launch) noexcept {
  const Driver& driver = copier_->driver_;
  const Current current(driver, copier_->context_);
  begun_ = false;
  if (current.result() != kSuccess) {
    fail("cuCtxPushCurrent", current.result());
    return false;
  }
  PersistentKernel& kernel = copier_->shared().persistent_kernel();
  std::unique_lock lock(kernel.mutex());
  if (kernel.takes_copies()) {
    const Result result = submit(kernel);
    if (result != kSuccess) fail("cuEventQuery", result);
    begun_ = result == kSuccess;
    return begun_;
  }
  Result result = kSuccess;
  if (done_ == nullptr) done_ = copier_->take_event(&result);
  if (done_ == nullptr) {
    fail("cuEventCreate", result);
    return false;
  }
  const Stream stream = copier_->shared().next_stream(1);
  ticket_ = 0;
  result = launch(driver, stream);
  if (result != kSuccess) fail("cuMemcpyDtoDAsync", result);
  if (result == kSuccess && (result = driver.event_record(done_, stream)) != kSuccess) fail("cuEventRecord", result);
  begun_ = result == kSuccess;
  if (begun_) return true;
  lock.unlock();                                         // the wait below may depend on a thread that needs the lock
  static_cast<void>(driver.stream_synchronize(stream));  // no event covers the copies before the one that failed
  return false;
}

bool SharedCopy::begin(Address from, const Layout& to, std::uint64_t bytes, const PieceTable& table) noexcept {
  const auto submit = [&](PersistentKernel& kernel) {
    if (table.count != 0) return kernel.submit(false, table, 0, bytes, from, &ticket_);
    Result result = kSuccess;
    to.each_run(0, bytes, [&](Address there, std::uint64_t offset, std::uint64_t length) {
      result = kernel.submit(false, there, length, from + offset, &ticket_);
      return result == kSuccess;
    });
    return result;
  };
  const auto launch = [&](const Driver& driver, Stream stream) {
    const Kernels* const kernels = copier_->shared().kernels();
    if (table.count != 0 && kernels != nullptr && to.scattered(0, bytes))
      return kernels->scatter(from, table, 0, bytes, stream);
    Result result = kSuccess;
    to.each_run(0, bytes, [&](Address there, std::uint64_t offset, std::uint64_t length) {
      result = driver.copy_on_device(there, from + offset, length, stream);
      return result == kSuccess;
    });
    return result;
  };
  return start(submit, launch);
}

bool SharedCopy::begin(Address from, std::uint8_t* pinned, std::uint64_t bytes) noexcept {
  const auto here = reinterpret_cast<std::uintptr_t>(pinned);  // the GPU sees pinned memory at the same address
  return start([&](PersistentKernel& kernel) { return kernel.submit(true, from, bytes, here, &ticket_); },
               [&](const Driver& driver, Stream stream) { return driver.copy_to_host(pinned, from, bytes, stream); });
}

bool SharedCopy::ended() noexcept {
  if (!begun_) return true;
  const Current current(copier_->driver_, copier_->context_);
  Result result = current.result();
  if (result == kSuccess)
    result = ticket_ != 0 ? copier_->shared().persistent_kernel().query(ticket_) : copier_->driver_.event_query(done_);
  if (result == kNotReady) {
    refused_ = 0;
    return false;
  }
  if (result == kSuccess) return true;
  fail("cuEventQuery", result);
  // The driver may refuse for a short time; after many refusals in a row the context counts as destroyed, and then no
  // copy is in progress.
  return ++refused_ >= kRefusedMax;
}

}  // namespace weft::gpu
