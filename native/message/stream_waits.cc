// Makes streams wait for words in pinned memory. Each wait queues two operations on the stream: the wait, and an event
// that shows when it is over.
#include "native/message/stream_waits.h"

#include <algorithm>

namespace weft::message {
namespace {

constexpr std::size_t kWordsMax = 1024;
constexpr std::size_t kApartBytes = 64;  // each word has its own cache line, because the device polls it

}  // namespace

StreamWaits::~StreamWaits() {
  const gpu::Current current(driver_, context_);
  bool passed = true;
  for (const Wait& wait : waits_) {
    release(wait.word);
    passed = passed && driver_.event_query(wait.passed) != gpu::kNotReady;
    static_cast<void>(driver_.event_destroy(wait.passed));  // fails without harm if the context was destroyed
  }
  // Leaks the memory of all words if a stream has not reached its wait yet, because the stream will still read its
  // word.
  if (!passed) static_cast<void>(words_.release());
  if (words_ != nullptr) shared_.retire(std::move(words_));
}

std::unique_ptr<StreamWaits> StreamWaits::open(const gpu::Driver& driver, gpu::SharedDevice* shared,
                                               std::string* error) {
  std::unique_ptr<StreamWaits> made(new StreamWaits(driver, shared));
  constexpr std::size_t kBytes = kWordsMax * kApartBytes;
  made->words_ = gpu::PinnedPool::open(driver, shared->context(), kBytes, kBytes, error);
  if (made->words_ == nullptr) return nullptr;
  std::uint8_t* const memory = made->words_->take(kBytes);
  made->free_.reserve(kWordsMax);
  made->waits_.reserve(kWordsMax);
  for (std::size_t i = 0; i < kWordsMax; ++i) {
    made->free_.push_back(reinterpret_cast<std::uint32_t*>(memory + i * kApartBytes));
  }
  return made;
}

std::uint32_t* StreamWaits::take() noexcept {
  collect();
  if (free_.empty()) return nullptr;
  std::uint32_t* const word = free_.back();
  free_.pop_back();
  __atomic_store_n(word, 0u, __ATOMIC_RELEASE);
  return word;
}

gpu::Event StreamWaits::wait(std::uint32_t* word, gpu::Stream stream, std::string* error) {
  const gpu::Current current(driver_, context_);
  gpu::Event passed = nullptr;
  const char* called = "cuCtxPushCurrent";
  gpu::Result result = current.result();
  if (result == gpu::kSuccess) result = driver_.event_create(&passed, gpu::kDisableTiming), called = "cuEventCreate";
  // Pinned memory has the same address on the host and on all devices.
  const auto address = reinterpret_cast<std::uintptr_t>(word);
  if (result == gpu::kSuccess) {
    result = driver_.stream_wait_value(stream, address, 1, gpu::kWaitAtLeast), called = "cuStreamWaitValue32";
  }
  const bool waits = result == gpu::kSuccess;
  if (waits) result = driver_.event_record(passed, stream), called = "cuEventRecord";
  if (result == gpu::kSuccess) return passed;
  *error = driver_.say(called, result);
  release(word);
  // No event was recorded, so waits for the stream itself; this returns at once if its context was destroyed.
  if (waits) static_cast<void>(driver_.stream_synchronize(stream));
  if (passed != nullptr) static_cast<void>(driver_.event_destroy(passed));
  return nullptr;
}

void StreamWaits::add(std::uint32_t* word, gpu::Event passed) noexcept {
  if (passed != nullptr) {
    waits_.push_back({word, passed});  // cannot fail: the vector has room for all words
  } else {
    free_.push_back(word);
  }
}

void StreamWaits::collect() noexcept {
  if (waits_.empty()) return;
  const gpu::Current current(driver_, context_);
  const auto over = [&](const Wait& wait) {
    if (__atomic_load_n(wait.word, __ATOMIC_ACQUIRE) == 0 || driver_.event_query(wait.passed) != gpu::kSuccess) {
      return false;
    }
    static_cast<void>(driver_.event_destroy(wait.passed));
    free_.push_back(wait.word);  // cannot fail: the vector has room for all words
    return true;
  };
  waits_.erase(std::remove_if(waits_.begin(), waits_.end(), over), waits_.end());
}

}  // namespace weft::message
