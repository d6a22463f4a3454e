// Measures repeated kernel launches in one stream, and then the same number of copies. The time of the GPU's work is
// included; where that work takes longer than launching, the launch cost is hidden.
#include "bench/native/loops/kernels_bench.h"

#include <chrono>
#include <memory>
#include <utility>

#include "native/gpu/pinned_pool.h"
#include "native/gpu/shared_device.h"

namespace weft::gpu {
namespace {

constexpr std::uint64_t kApartBytes = 16;

// The time that the device needs for `count` calls, after a warm-up call; below 0 on error, with `result` set.
template <class Launch>
std::int64_t time_of(const Driver& driver, Stream stream, int count, Launch launch, Result* result) {
  std::chrono::steady_clock::time_point begin;
  for (int i = -1; i < count && *result == kSuccess; ++i) {
    *result = launch();
    if (i >= 0 || *result != kSuccess) continue;
    *result = driver.stream_synchronize(stream);
    begin = std::chrono::steady_clock::now();
  }
  if (*result == kSuccess) *result = driver.stream_synchronize(stream);
  const auto spent = std::chrono::steady_clock::now() - begin;
  return *result == kSuccess ? std::chrono::duration_cast<std::chrono::nanoseconds>(spent).count() : -1;
}

// Fills the table with all pieces, in an order that no prefetcher can predict. Returns their total size.
std::uint64_t lay_pieces(Piece* table, std::uint64_t count, Address memory, std::uint64_t piece_bytes) {
  const std::uint64_t slot_bytes = (piece_bytes + kApartBytes - 1) / kApartBytes * kApartBytes;
  for (std::uint64_t i = 0; i < count; ++i) table[i] = {memory + i * slot_bytes, piece_bytes, 0};
  std::uint64_t chance = 1;
  for (std::uint64_t i = count; i > 1; --i) {
    chance = chance * 6'364'136'223'846'793'005u + 1'442'695'040'888'963'407u;
    std::swap(table[i - 1], table[(chance >> 33) % i]);
  }
  return lay_out(table, count);
}

}  // namespace

KernelTimes time_kernel(const Driver& driver, const KernelPlan& plan, std::string* error) {
  KernelTimes times;
  const bool pieces = plan.work != KernelWork::reduce;
  if (plan.bytes < 1024 || plan.repeats < 1 || plan.source == 0 || plan.target == 0 ||
      (pieces && (plan.piece_bytes == 0 || plan.piece_bytes > plan.bytes / 2))) {
    *error =
        "cannot time a kernel: give a source and a target address, at least one repeat, at least 1,024 bytes, and "
        "pieces of at most half of the bytes";
    return times;
  }
  const auto shared = SharedDevice::open(driver, plan.device, kernel_image(), error);
  if (shared == nullptr) return times;
  if (shared->kernels() == nullptr) {
    *error = shared->kernels_missing();
    return times;
  }
  const Kernels& kernels = *shared->kernels();
  const std::uint64_t count = pieces ? plan.bytes / (plan.piece_bytes + kApartBytes) : 1;
  const auto table = PinnedPool::open(driver, shared->context(), count * sizeof(Piece), count * sizeof(Piece), error);
  if (table == nullptr) return times;
  Result result = kSuccess;
  const Stream stream = shared->take_stream(&result);
  if (stream == nullptr) {
    *error = driver.say("cuStreamCreate", result);
    return times;
  }
  const Current current(driver, shared->context());
  auto* const laid = reinterpret_cast<Piece*>(table->take(1));
  const Address scattered = plan.work == KernelWork::scatter ? plan.target : plan.source;
  times.bytes =
      pieces ? lay_pieces(laid, count, scattered, plan.piece_bytes) : plan.bytes / 2 / kApartBytes * kApartBytes;
  const PieceTable listed{reinterpret_cast<std::uintptr_t>(laid), count};
  const auto launch = [&] {
    switch (plan.work) {
      case KernelWork::gather:
        return kernels.gather(listed, 0, times.bytes, plan.target, stream);
      case KernelWork::scatter:
        return kernels.scatter(plan.source, listed, 0, times.bytes, stream);
      default:
        return kernels.reduce(ElementType::f32, Operation::sum,
                              {plan.source, plan.source + times.bytes, plan.target, 0, times.bytes / 4}, stream);
    }
  };
  times.kernel_ns = time_of(driver, stream, plan.repeats, launch, &result);
  const auto copy = [&] { return driver.copy_on_device(plan.target, plan.source, times.bytes, stream); };
  times.copy_ns = time_of(driver, stream, plan.repeats, copy, &result);
  if (result != kSuccess) *error = driver.say("a kernel launch or device copy", result);
  shared->give_stream(stream);
  return times;
}

}  // namespace weft::gpu
