// A wait is two things in the caller's stream: a wait for the word, and an event behind it that tells when it is over.
// Never waits itself.
#include "native/engine/stream_waits.h"

#include <algorithm>

namespace weft::engine {
namespace {

constexpr std::size_t kWordsMax = 1024;
constexpr std::size_t kApartBytes = 64;  // a cache line for each word: the device polls it

}  // namespace

StreamWaits::~StreamWaits() {
  const gpu::Current current(driver_, context_);
  for (const Wait& wait : waits_) {
    let_go(wait.word);
    static_cast<void>(driver_.event_destroy(wait.passed));  // a context that is gone has freed it
  }
}

std::unique_ptr<StreamWaits> StreamWaits::open(const gpu::Driver& driver, gpu::Context context, std::string* error) {
  std::unique_ptr<StreamWaits> made(new StreamWaits(driver, context));
  constexpr std::size_t kBytes = kWordsMax * kApartBytes;
  made->words_ = gpu::PinnedPool::open(driver, context, kBytes, kBytes, error);
  if (made->words_ == nullptr) return nullptr;
  std::uint8_t* const memory = made->words_->take(kBytes);
  made->free_.reserve(kWordsMax);
  made->waits_.reserve(kWordsMax);
  for (std::size_t i = 0; i < kWordsMax; ++i) {
    made->free_.push_back(reinterpret_cast<std::uint32_t*>(memory + i * kApartBytes));
  }
  return made;
}

std::uint32_t* StreamWaits::add(gpu::Stream stream, std::string* error) {
  collect();
  if (free_.empty()) {
    *error = std::to_string(kWordsMax) + " waits of streams are under way on this device: no more at once";
    return nullptr;
  }
  const gpu::Current current(driver_, context_);
  if (current.result() != gpu::kSuccess) {
    *error = driver_.say("cuCtxPushCurrent", current.result());
    return nullptr;
  }
  gpu::Event passed = nullptr;
  gpu::Result result = driver_.event_create(&passed, gpu::kDisableTiming);
  if (result != gpu::kSuccess) {
    *error = driver_.say("cuEventCreate", result);
    return nullptr;
  }
  std::uint32_t* const word = free_.back();
  __atomic_store_n(word, 0u, __ATOMIC_RELEASE);
  // Pinned memory has one address for the host and for every device.
  result = driver_.stream_wait_value(stream, reinterpret_cast<std::uintptr_t>(word), 1, gpu::kWaitAtLeast);
  if (result != gpu::kSuccess) {
    *error = driver_.say("cuStreamWaitValue32", result);
    static_cast<void>(driver_.event_destroy(passed));
    return nullptr;
  }
  free_.pop_back();
  result = driver_.event_record(passed, stream);
  if (result != gpu::kSuccess) {
    *error = driver_.say("cuEventRecord", result);
    static_cast<void>(driver_.event_destroy(passed));
    let_go(word);  // the stream goes on; nobody will know when, so that the word is not used again
    return nullptr;
  }
  waits_.push_back({word, passed});
  return word;
}

void StreamWaits::collect() noexcept {
  if (waits_.empty()) return;
  const gpu::Current current(driver_, context_);
  const auto over = [&](const Wait& wait) {
    if (__atomic_load_n(wait.word, __ATOMIC_ACQUIRE) == 0 || driver_.event_query(wait.passed) == gpu::kNotReady) {
      return false;
    }
    static_cast<void>(driver_.event_destroy(wait.passed));
    free_.push_back(wait.word);  // has room: the words came from there
    return true;
  };
  waits_.erase(std::remove_if(waits_.begin(), waits_.end(), over), waits_.end());
}

}  // namespace weft::engine
