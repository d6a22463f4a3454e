// One thread plays both the copier and the network: between polls of the copier it acknowledges all bytes that are in
// the ring of a send, and places bytes wherever the ring of a receive has room.
#include "bench/native/loops/staging_bench.h"

#include <chrono>
#include <memory>
#include <vector>

#include "native/gpu/copier.h"
#include "native/gpu/pinned_pool.h"
#include "native/gpu/ring_shape.h"

namespace weft::gpu {
namespace {

constexpr std::int64_t kPatienceNs = 60'000'000'000;

std::int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

// A message in one direction, in one repeat of the measurement.
class Lane final : public Transfer::Listener {
 public:
  Lane(const StagingPlan& plan, Direction direction, const RingShape& shape, std::uint8_t* ring)
      : direction_(direction),
        layout_(direction == Direction::to_host ? plan.source : plan.target, plan.bytes),
        released_(shape.ring_bytes / shape.piece_bytes) {
    stage_.ring = ring;
    stage_.ring_bytes = shape.ring_bytes;
    stage_.piece_bytes = shape.piece_bytes;
    stage_.released = released_.data();
    stage_.limit.store(direction == Direction::to_host ? 0 : shape.ring_bytes);
    stage_.set_size(0, plan.bytes);
  }
  void begin(Copier* copier) { transfer_ = copier->begin(direction_, layout_, &stage_, 1, {}); }
  bool on_staged(std::uint32_t) noexcept override { return true; }
  // Lets the copier work, and then does what a network would do: acknowledges all bytes in the ring of a send, or fills
  // all room in the ring of a receive.
  void poll() {
    transfer_->poll(this);
    const std::uint64_t limit = std::min<std::uint64_t>(stage_.limit.load(), layout_.bytes());
    if (limit == done_) return;
    stage_.release(done_, limit - done_);
    done_ = limit;
  }
  bool over() const { return transfer_->failed() || transfer_->arrived_bytes() == layout_.bytes(); }
  const Transfer& transfer() const { return *transfer_; }

 private:
  const Direction direction_;
  const Layout layout_;
  std::vector<std::atomic<std::uint32_t>> released_;
  core::Stage stage_;
  std::unique_ptr<Transfer> transfer_;
  std::uint64_t done_ = 0;
};

std::vector<Direction> directions_of(const StagingPlan& plan) {
  std::vector<Direction> directions;
  if (plan.source != 0) directions.push_back(Direction::to_host);
  if (plan.target != 0) directions.push_back(Direction::to_device);
  return directions;
}

bool check(const StagingPlan& plan, std::string* error) {
  const bool fits =
      plan.bytes != 0 && plan.ring_bytes_max >= 2 * kGranuleBytes && plan.repeats > 0 && !directions_of(plan).empty();
  if (!fits) *error = "the plan needs at least one byte, one address, one repeat, and rings of at least 128 KiB";
  return fits;
}

}  // namespace

std::int64_t time_staged(const Driver& driver, const StagingPlan& plan, std::string* error) {
  if (!check(plan, error)) return -1;
  auto copier = Copier::open(driver, plan.device, error);
  if (copier == nullptr) return -1;
  const std::vector<Direction> directions = directions_of(plan);
  const RingShape shape = ring_shape(plan.bytes, plan.ring_bytes_max);
  auto pool =
      PinnedPool::open(driver, copier->context(), directions.size() * shape.ring_bytes, shape.ring_bytes, error);
  if (pool == nullptr) return -1;
  std::vector<std::uint8_t*> rings;
  for (std::size_t i = 0; i < directions.size(); ++i) rings.push_back(pool->take(shape.ring_bytes));
  const std::int64_t begin_ns = now_ns();
  for (int repeat = 0; repeat < plan.repeats; ++repeat) {
    std::vector<std::unique_ptr<Lane>> lanes;
    for (std::size_t i = 0; i < directions.size(); ++i) {
      lanes.push_back(std::make_unique<Lane>(plan, directions[i], shape, rings[i]));
      lanes.back()->begin(copier.get());
    }
    for (bool over = false; !over;) {
      over = true;
      for (const auto& lane : lanes) {
        if (!lane->over()) lane->poll();
        over &= lane->over();
        if (lane->transfer().failed()) *error = lane->transfer().error();
      }
      if (now_ns() - begin_ns > kPatienceNs) *error = "the copies did not finish within 60 s";
      if (!error->empty()) return -1;
    }
  }
  return now_ns() - begin_ns;
}

std::int64_t time_copied(const Driver& driver, const StagingPlan& plan, std::string* error) {
  if (!check(plan, error)) return -1;
  auto copier = Copier::open(driver, plan.device, error);
  if (copier == nullptr) return -1;
  const std::vector<Direction> directions = directions_of(plan);
  auto pool = PinnedPool::open(driver, copier->context(), directions.size() * plan.bytes, plan.bytes, error);
  if (pool == nullptr) return -1;
  const Current current(driver, copier->context());
  std::vector<Stream> streams(directions.size());
  Result result = current.result();
  for (Stream& stream : streams) {
    if (result == kSuccess) result = driver.stream_create(&stream, kNonBlocking);
  }
  std::vector<std::uint8_t*> hosts;
  for (std::size_t i = 0; i < directions.size(); ++i) hosts.push_back(pool->take(plan.bytes));
  const std::int64_t begin_ns = now_ns();
  for (int repeat = 0; repeat < plan.repeats; ++repeat) {
    for (std::size_t i = 0; i < directions.size() && result == kSuccess; ++i) {
      result = directions[i] == Direction::to_host
                   ? driver.copy_to_host(hosts[i], plan.source, plan.bytes, streams[i])
                   : driver.copy_to_device(plan.target, hosts[i], plan.bytes, streams[i]);
    }
    for (const Stream stream : streams) {
      if (result == kSuccess) result = driver.stream_synchronize(stream);
    }
  }
  const std::int64_t spent_ns = now_ns() - begin_ns;
  for (const Stream stream : streams) {
    if (stream != nullptr) static_cast<void>(driver.stream_destroy(stream));
  }
  if (result == kSuccess) return spent_ns;
  *error = driver.say("a copy between host and device", result);
  return -1;
}

}  // namespace weft::gpu
