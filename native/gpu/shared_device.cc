// The registry of shared devices, by driver and device number. There is one object per device at a time; it is
// destroyed with its last user.
#include "native/gpu/shared_device.h"

#include <sys/random.h>

#include <algorithm>
#include <map>
#include <new>
#include <utility>

namespace weft::gpu {
namespace {

struct Registry {
  std::mutex mutex;
  std::map<std::pair<const Driver*, int>, std::weak_ptr<SharedDevice>> devices;
};

// Never destroyed, because an endpoint may outlive static objects at exit.
Registry& registry() {
  static auto* const all = new Registry();
  return *all;
}

}  // namespace

std::shared_ptr<SharedDevice> SharedDevice::open(const Driver& driver, int device, const void* image,
                                                 std::string* error) {
  const std::lock_guard lock(registry().mutex);
  std::weak_ptr<SharedDevice>& known = registry().devices[{&driver, device}];
  if (auto found = known.lock()) return found;
  DeviceId id = 0;
  const Result result = driver.device_get(&id, device);
  if (result != kSuccess) {
    *error = driver.say("cuDeviceGet", result) + " (device " + std::to_string(device) + ")";
    return nullptr;
  }
  std::unique_ptr<SharedDevice> made(new SharedDevice(driver, id));
  if (!made->make(image, error)) return nullptr;
  // The lock makes a thread that opens the device again wait until this object is destroyed.
  const std::shared_ptr<SharedDevice> shared(made.release(), [](SharedDevice* last) {
    const std::lock_guard until_gone(registry().mutex);
    delete last;
  });
  known = shared;
  return shared;
}

bool SharedDevice::make(const void* image, std::string* error) {
  const Result result = driver_.primary_retain(&context_, device_);
  if (result != kSuccess) {
    context_ = nullptr;
    *error = driver_.say("cuDevicePrimaryCtxRetain", result);
    return false;
  }
  kernels_ = Kernels::load(driver_, context_, image, &kernels_missing_);
  persistent_kernel_ = PersistentKernel::open(driver_, context_, kernels_.get(), error);
  if (persistent_kernel_ == nullptr || !make_streams(error)) return false;
  make_trial();
  return true;
}

void SharedDevice::make_trial() {
  if (::getrandom(trial_holds_.data(), sizeof trial_holds_, 0) != static_cast<ssize_t>(sizeof trial_holds_)) {
    trial_missing_ = "getrandom fails";
    return;
  }
  const Current current(driver_, context_);
  const Stream stream = streams_[0][0];
  Result result = driver_.alloc(&trial_memory_, kTrialBytes);
  const char* called = "cuMemAlloc";
  if (result != kSuccess) trial_memory_ = 0;
  if (result == kSuccess) {
    result = driver_.copy_to_device(trial_memory_, trial_holds_.data(), sizeof trial_holds_, stream);
    called = "cuMemcpyHtoDAsync";
  }
  if (result == kSuccess) result = driver_.stream_synchronize(stream), called = "cuStreamSynchronize";
  if (result == kSuccess) return;
  trial_missing_ = driver_.say(called, result);
  if (trial_memory_ != 0) static_cast<void>(driver_.free(std::exchange(trial_memory_, 0)));
}

bool SharedDevice::make_streams(std::string* error) {
  const Current current(driver_, context_);
  Result result = current.result();
  const char* called = "cuCtxPushCurrent";
  // Copy streams have the highest priority: if kernels make the copies, their blocks should run before the caller's
  // blocks.
  int least = 0, greatest = 0;
  if (result == kSuccess) result = driver_.priorities(&least, &greatest), called = "cuCtxGetStreamPriorityRange";
  for (auto& direction : streams_) {
    for (Stream& stream : direction) {
      if (result != kSuccess) break;
      result = driver_.stream_create_with(&stream, kNonBlocking, greatest), called = "cuStreamCreateWithPriority";
      if (result != kSuccess) stream = nullptr;
    }
  }
  spare_.reserve(kSpare);
  while (result == kSuccess && spare_.size() != kSpare) {
    Stream made = nullptr;
    result = driver_.stream_create(&made, kNonBlocking), called = "cuStreamCreate";
    if (result == kSuccess) spare_.push_back(made);
  }
  if (result != kSuccess) *error = driver_.say(called, result);
  return result == kSuccess;
}

Stream SharedDevice::take_stream(Result* result) noexcept {
  {
    const std::lock_guard lock(mutex_);
    if (!spare_.empty()) {
      const Stream spare = spare_.back();
      spare_.pop_back();
      return spare;
    }
  }
  const Current current(driver_, context_);
  Stream made = nullptr;
  *result = current.result() != kSuccess ? current.result() : driver_.stream_create(&made, kNonBlocking);
  return *result == kSuccess ? made : nullptr;
}

void SharedDevice::give_stream(Stream stream) noexcept {
  {
    const std::lock_guard lock(mutex_);
    if (spare_.size() < spare_.capacity()) {
      spare_.push_back(stream);
      return;
    }
  }
  const Current current(driver_, context_);
  static_cast<void>(driver_.stream_destroy(stream));  // an error means that a destroyed context has freed it
}

SharedDevice::~SharedDevice() {
  if (context_ == nullptr) return;
  retired_.clear();
  persistent_kernel_.reset();
  kernels_.reset();
  {
    const Current current(driver_, context_);
    if (trial_memory_ != 0) static_cast<void>(driver_.free(trial_memory_));
    for (const Stream stream : spare_) static_cast<void>(driver_.stream_destroy(stream));
    for (const auto& direction : streams_) {
      for (const Stream stream : direction) {
        if (stream != nullptr) static_cast<void>(driver_.stream_destroy(stream));
      }
    }
  }
  static_cast<void>(driver_.primary_release(device_));
}

std::unique_ptr<PinnedPool> SharedDevice::pool(std::size_t bytes, std::size_t granule_bytes, std::string* error) {
  {
    const std::lock_guard lock(mutex_);
    const auto like = [&](const auto& each) {
      return each->bytes() == bytes && each->granule_bytes() == granule_bytes;
    };
    const auto found = std::find_if(retired_.begin(), retired_.end(), like);
    if (found != retired_.end()) {
      std::unique_ptr<PinnedPool> taken = std::move(*found);
      retired_.erase(found);
      return taken;
    }
  }
  return PinnedPool::open(driver_, context_, bytes, granule_bytes, error);
}

void SharedDevice::retire(std::unique_ptr<PinnedPool> pool) noexcept try {
  std::vector<std::unique_ptr<PinnedPool>> all;
  {
    const std::lock_guard lock(mutex_);
    retired_.push_back(std::move(pool));
    all.swap(retired_);
  }
  if (persistent_kernel_->free_unless_waited([&] { all.clear(); })) return;
  const std::lock_guard lock(mutex_);
  for (auto& each : all) retired_.push_back(std::move(each));
} catch (const std::bad_alloc&) {
  // Out of memory: the pool was freed immediately, which may wait for a stream.
}

}  // namespace weft::gpu
