// Lends CUDA streams to producers of device memory, and takes them back.
#include "native/message/lent_streams.h"

#include <utility>

#include "native/gpu/shared_device.h"

namespace weft::message {

LentStreams::~LentStreams() {
  if (resting_.empty()) return;
  const gpu::Current current(driver_, copier_.context());
  for (const After& each : resting_) {  // if the context was destroyed, the calls below fail without harm
    const bool idle = each.event == nullptr || driver_.event_query(each.event) == gpu::kSuccess;
    if (each.event != nullptr) static_cast<void>(driver_.event_destroy(each.event));
    if (idle) {
      copier_.shared().give_stream(each.lent_stream);
    } else {
      static_cast<void>(driver_.stream_destroy(each.lent_stream));
    }
  }
}

gpu::Stream LentStreams::lend(std::string* error) {
  {
    const std::lock_guard lock(mutex_);
    const gpu::Current current(driver_, copier_.context());
    for (After& each : resting_) {
      if (each.event != nullptr && driver_.event_query(each.event) != gpu::kSuccess) continue;
      std::swap(each, resting_.back());
      const After lent = resting_.back();
      resting_.pop_back();
      if (lent.event != nullptr) static_cast<void>(driver_.event_destroy(lent.event));
      return lent.lent_stream;
    }
    resting_.reserve(made_ + 1);  // so that give_back() never allocates
    ++made_;
  }
  gpu::Result result = gpu::kSuccess;
  const gpu::Stream taken = copier_.shared().take_stream(&result);
  if (taken == nullptr) *error = driver_.say("cuStreamCreate", result);
  return taken;
}

void LentStreams::give_back(const After& after) noexcept {
  const std::lock_guard lock(mutex_);
  resting_.push_back(after);
}

}  // namespace weft::message
