// A fixture for tests of GPU workers: a fake device (fake_cuda.cc), its memory and failures, real engines on loopback,
// and helpers that post messages and retry.
#pragma once

#include <dlfcn.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "native/message/device_board.h"
#include "tests/native/check.h"
#include "tests/native/fake_cuda.h"
#include "tests/native/runtime_pair.h"

namespace weft::test {

using namespace weft::engine;
using namespace weft::control;
using namespace weft::message;

inline constexpr int kIllegalAddress = 700;
// Rings so small that messages wrap around; "any" selects the fake's kernels.
inline const DeviceLimits kTight{1 << 21, 1 << 18, "any"};

inline const gpu::Driver& driver() {
  std::string error;
  const gpu::Driver* found = gpu::load_driver(WEFT_FAKE_CUDA, &error);
  CHECK_EQUAL(error, "");
  CHECK(found != nullptr);
  return *found;
}

// A control function of the fake libcuda, which is loaded by its path as the driver is.
template <class Function>
Function* fake(const char* name) {
  static_cast<void>(driver());
  void* library = ::dlopen(WEFT_FAKE_CUDA, RTLD_NOW | RTLD_LOCAL);
  CHECK(library != nullptr);
  auto* const found = reinterpret_cast<Function*>(::dlsym(library, name));
  CHECK(found != nullptr);
  return found;
}
inline void fail_at(const char* symbol, int nth, bool stays = false) {
  fake<void(const char*, int, int, int)>("fake_cuda_fail")(symbol, nth, kIllegalAddress, stays ? 1 : 0);
}
// The number of contexts and other objects not freed. Also checks that no call would have blocked behind a waiting
// stream.
inline int live() {
  CHECK_EQUAL(fake<int()>("fake_cuda_held_up")(), 0);
  return fake<int()>("fake_cuda_live")();
}

// Memory of the fake device, followed by guard bytes that no message may overwrite.
class Memory {
 public:
  explicit Memory(const std::vector<std::uint8_t>& bytes, int device = 0, bool managed = false)
      : bytes_(bytes.size() + kGuard, 0xEE) {
    std::copy(bytes.begin(), bytes.end(), bytes_.begin());
    tell(bytes_.size(), device, managed);
  }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  ~Memory() { tell(0, 0, false); }
  std::size_t size() const { return bytes_.size() - kGuard; }
  std::uint8_t* data() { return bytes_.data(); }
  gpu::Address at() const { return reinterpret_cast<std::uintptr_t>(bytes_.data()); }
  std::shared_ptr<gpu::Layout> all() const { return std::make_shared<gpu::Layout>(at(), size()); }
  // Whether the first sent.size() bytes equal `sent` and the following bytes are unchanged.
  bool holds(const Memory& sent) const {
    if (std::memcmp(bytes_.data(), sent.bytes_.data(), sent.size()) != 0) return false;
    for (std::size_t i = sent.size(); i < bytes_.size(); ++i) {
      if (bytes_[i] != 0xEE) return false;
    }
    return true;
  }

 private:
  static constexpr std::size_t kGuard = 64;
  void tell(std::size_t bytes, int device, bool managed) const {
    fake<void(const void*, std::size_t, int, int)>("fake_cuda_memory")(bytes_.data(), bytes, device, managed ? 1 : 0);
  }
  std::vector<std::uint8_t> bytes_;
};
inline std::vector<std::uint8_t> untouched(std::size_t bytes) { return std::vector<std::uint8_t>(bytes, 0xEE); }

inline std::unique_ptr<DeviceWorker> worker(int device, const DeviceLimits& limits) {
  std::string error;
  auto made = DeviceWorker::open(driver(), device, limits, [] {}, &error);
  CHECK_EQUAL(error, "");
  return made;
}

inline gpu::Event mark_of(DeviceWorker& worker, gpu::Stream stream, std::string* error) {
  gpu::Event made = nullptr;
  error->clear();
  CHECK((worker.mark(stream, &made, error) == Status::ok) == error->empty());
  return made;
}

// Posts a message, and retries while that would block. Null if the connection has ended.
inline std::shared_ptr<DeviceRequest> post_unless_closed(DeviceWorker& worker,
                                                         const std::shared_ptr<Connection>& connection,
                                                         gpu::Direction direction,
                                                         const std::shared_ptr<const gpu::Layout>& layout,
                                                         gpu::Event after = nullptr) {
  const auto request = std::make_shared<DeviceRequest>();
  for (const std::int64_t until = now_ns() + kPatienceNs;;) {
    const Status status = worker.post(connection, direction, layout, {after, nullptr}, request);
    if (status == Status::ok) return request;
    if (status == Status::connection_closed) return nullptr;
    CHECK_EQUAL(status, Status::would_block);
    CHECK(now_ns() < until);
    std::this_thread::yield();
  }
}

inline std::shared_ptr<DeviceRequest> post(DeviceWorker& worker, const std::shared_ptr<Connection>& connection,
                                           gpu::Direction direction, const std::shared_ptr<const gpu::Layout>& layout,
                                           gpu::Event after = nullptr) {
  auto request = post_unless_closed(worker, connection, direction, layout, after);
  CHECK(request != nullptr);
  return request;
}

inline Status end_of(const std::shared_ptr<DeviceRequest>& request) {
  CHECK_EQUAL(request->wait(kPatienceNs), Status::ok);
  return request->status();
}

}  // namespace weft::test
