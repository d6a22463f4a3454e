// Decides whether device memory passes through pinned rings as native/gpu promises, over real engines on loopback.
// The device is a fake libcuda (fake_cuda.cc): copies end late, and any call can fail. Real ones are for tests/device.
#include <dlfcn.h>

#include <cstdlib>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include "native/engine/clock.h"
#include "native/engine/device_worker.h"
#include "native/engine/runtime.h"
#include "native/gpu/copier.h"
#include "native/gpu/pinned_pool.h"
#include "tests/native/check.h"
#include "tests/native/fake_cuda.h"

namespace {

using namespace weft;
using namespace weft::engine;

constexpr std::int64_t kPatienceNs = 20'000'000'000;
constexpr std::size_t kRing = 1 << 18, kPiece = 1 << 15;
constexpr int kIllegalAddress = 700;

const gpu::Driver& driver() {
  std::string error;
  const gpu::Driver* found = gpu::load_driver(WEFT_FAKE_CUDA, &error);
  CHECK_EQUAL(error, "");
  CHECK(found != nullptr);
  return *found;
}

// The fake's own switches; it is loaded by path, as the driver is.
template <class Function>
Function* fake(const char* name) {
  static_cast<void>(driver());
  void* library = ::dlopen(WEFT_FAKE_CUDA, RTLD_NOW | RTLD_LOCAL);
  CHECK(library != nullptr);
  auto* const found = reinterpret_cast<Function*>(::dlsym(library, name));
  CHECK(found != nullptr);
  return found;
}
void fail_at(const char* symbol, int nth, bool stays = false) {
  fake<void(const char*, int, int, int)>("fake_cuda_fail")(symbol, nth, kIllegalAddress, stays ? 1 : 0);
}
int live() { return fake<int()>("fake_cuda_live")(); }

struct Pair {
  std::shared_ptr<Runtime> a, b;
  std::unique_ptr<Listener> listener;
  std::shared_ptr<Connection> here, there;

  explicit Pair(Knobs knobs) {
    knobs.interfaces = "lo";
    std::string error;
    CHECK_EQUAL(Runtime::open(knobs, &a, &error), Status::ok);
    CHECK_EQUAL(Runtime::open(knobs, &b, &error), Status::ok);
    CHECK_EQUAL(a->listen(0, 0, "", &listener, &error), Status::ok);
    std::unique_ptr<Dial> dial;
    CHECK_EQUAL(b->connect(0, listener->handle(), "", &dial, &error), Status::ok);
    for (const std::int64_t until = now_ns() + kPatienceNs; here == nullptr || there == nullptr;) {
      if (here == nullptr) CHECK(dial->poll(&here) == Status::would_block || here != nullptr);
      if (there == nullptr) static_cast<void>(listener->accept(&there));
      CHECK(now_ns() < until);
    }
  }
};

// One end of a message: its stages, with rings of the pool, and the copier at work on them.
class End final : public gpu::Transfer::Listener {
 public:
  End(gpu::Copier* copier, gpu::PinnedPool* pool, Connection* connection, gpu::Way way,
      std::vector<std::uint8_t>* device, std::size_t bytes)
      : pool_(pool),
        connection_(connection),
        flows_(connection->flows()),
        stages_(std::make_unique<core::Stage[]>(flows_)),
        settled_(std::make_unique<std::atomic<std::uint32_t>[]>(flows_ * kRing / kPiece)) {
    const bool send = way == gpu::Way::to_host;
    for (std::uint32_t i = 0; i < flows_; ++i) {
      core::Stage& stage = stages_[i];
      stage.ring = pool_->take(kRing);
      CHECK(stage.ring != nullptr);
      stage.ring_bytes = kRing;
      stage.piece_bytes = kPiece;
      stage.settled = &settled_[i * kRing / kPiece];
      stage.limit.store(send ? 0 : kRing);
    }
    std::string error;
    transfer_ =
        copier->begin(way, reinterpret_cast<std::uintptr_t>(device->data()), stages_.get(), flows_, nullptr, &error);
    CHECK_EQUAL(error, "");
    CHECK_EQUAL(send ? connection->post_staged_send(stages_.get(), bytes, &request_)
                     : connection->post_staged_receive(stages_.get(), device->size(), &request_),
                Status::ok);
  }
  ~End() {
    for (std::uint32_t i = 0; i < flows_; ++i) pool_->give(stages_[i].ring);
  }
  bool on_staged(std::uint32_t stage) noexcept override { return connection_->on_staged(request_, stage); }

  bool poll() { return transfer_->poll(this); }
  bool over() const {
    if (!request_->done()) return false;
    return transfer_->quiet() &&
           (transfer_->failed() || request_->status() != Status::ok || transfer_->arrived_bytes() == request_->bytes());
  }
  // After an error of the device: nobody waits for bytes that do not come.
  void give_up() { connection_->quiesce(stages_.get(), sizeof(core::Stage) * flows_); }
  const gpu::Transfer& transfer() const { return *transfer_; }
  Status finish() {
    const Status status = request_->status();
    connection_->release(request_);
    return status;
  }

 private:
  gpu::PinnedPool* pool_;
  Connection* connection_;
  std::uint32_t flows_;
  std::unique_ptr<core::Stage[]> stages_;
  std::unique_ptr<std::atomic<std::uint32_t>[]> settled_;
  std::unique_ptr<gpu::Transfer> transfer_;
  Request* request_ = nullptr;
};

struct Bench {
  explicit Bench(const Knobs& knobs) : pair(knobs) {
    std::string error;
    copier = gpu::Copier::open(driver(), 0, &error);
    CHECK_EQUAL(error, "");
    pool = gpu::PinnedPool::open(driver(), copier->context(), 8 * kRing, kPiece, &error);
    CHECK_EQUAL(error, "");
  }
  // True: all arrived. False: a call to the device failed, and both ends ended.
  bool exchange(std::size_t bytes) {
    std::vector<std::uint8_t> sent(bytes + 1), received(bytes + 1000, 0xEE);
    for (std::size_t i = 0; i < bytes; ++i) sent[i] = static_cast<std::uint8_t>((i + bytes) * 2654435761u >> 11);
    End in(copier.get(), pool.get(), pair.there.get(), gpu::Way::to_device, &received, bytes);
    End out(copier.get(), pool.get(), pair.here.get(), gpu::Way::to_host, &sent, bytes);
    bool failed = false;
    for (const std::int64_t until = now_ns() + kPatienceNs; !in.over() || !out.over();) {
      in.poll();
      out.poll();
      if (!failed && (in.transfer().failed() || out.transfer().failed())) {
        failed = true;
        in.give_up();
        out.give_up();
      }
      CHECK(now_ns() < until);
    }
    const Status sent_with = out.finish(), received_with = in.finish();
    if (failed) {
      const std::string said = in.transfer().failed() ? in.transfer().error() : out.transfer().error();
      CHECK(said.find("CUDA_ERROR_ILLEGAL_ADDRESS, an illegal memory access") != std::string::npos);
      return false;
    }
    CHECK_EQUAL(sent_with, Status::ok);
    CHECK_EQUAL(received_with, Status::ok);
    CHECK(bytes == 0 || std::memcmp(sent.data(), received.data(), bytes) == 0);
    for (std::size_t i = bytes; i < received.size(); ++i) CHECK_EQUAL(received[i], 0xEE);
    return true;
  }
  Pair pair;
  std::unique_ptr<gpu::Copier> copier;
  std::unique_ptr<gpu::PinnedPool> pool;
};

void exchange_sizes(const Knobs& knobs) {
  {
    Bench bench(knobs);
    for (const std::size_t bytes : {0, 1, 8192, 8193, 32'768, 262'144, 262'145, 1'048'577, 5'000'000}) {
      CHECK(bench.exchange(bytes));
    }
    CHECK_EQUAL(bench.pool->lent_bytes(), 0u);
  }
  CHECK_EQUAL(live(), 0);
}

}  // namespace

TEST(gpu__device_to_device) { exchange_sizes({}); }

TEST(gpu__over_several_flows_under_faults) {
  Knobs knobs;
  knobs.engines = 2;
  knobs.stripes = 3;
  knobs.fault_loss = 0.01;
  knobs.fault_reorder = 0.02;
  knobs.fault_duplicate = 0.01;
  exchange_sizes(knobs);
}

// No result is passed over: whichever call fails, both ends end, in words, and nothing is kept.
TEST(gpu__an_error_at_each_call_ends_the_transfer) {
  for (const char* symbol : {"cuCtxPushCurrent_v2", "cuMemcpyDtoHAsync_v2", "cuMemcpyHtoDAsync_v2", "cuEventCreate",
                             "cuEventRecord", "cuEventQuery"}) {
    for (const int nth : {1, 2, 3, -3}) {  // below zero: and ever after, as a context that is broken does
      {
        Bench bench({});
        fail_at(symbol, std::abs(nth), nth < 0);
        const bool arrived = bench.exchange(1'000'000);
        fail_at(nullptr, 0);
        if (arrived) weft::test::fail(__FILE__, __LINE__, std::string(symbol) + " failed, and nobody noticed");
      }
      CHECK_EQUAL(live(), 0);
    }
  }
}

namespace {

std::vector<std::uint8_t> pattern(std::size_t bytes, std::size_t seed) {
  std::vector<std::uint8_t> made(bytes + 1);  // an address, also where there is no byte
  for (std::size_t i = 0; i < bytes; ++i) made[i] = static_cast<std::uint8_t>((i + seed) * 2654435761u >> 11);
  return made;
}

std::uint64_t at(const std::vector<std::uint8_t>& memory) { return reinterpret_cast<std::uintptr_t>(memory.data()); }

std::unique_ptr<DeviceWorker> worker(int device, const DeviceLimits& limits) {
  std::string error;
  auto made = DeviceWorker::open(driver(), device, limits, [] {}, &error);
  CHECK_EQUAL(error, "");
  return made;
}

// As a caller with patience does.
std::shared_ptr<DeviceRequest> post(DeviceWorker& worker, const std::shared_ptr<Connection>& connection, gpu::Way way,
                                    std::uint64_t address, std::size_t bytes) {
  std::shared_ptr<DeviceRequest> request;
  for (const std::int64_t until = now_ns() + kPatienceNs;;) {
    const Status status = worker.post(connection, way, address, bytes, nullptr, &request);
    if (status == Status::ok) return request;
    CHECK_EQUAL(status, Status::would_block);
    CHECK(now_ns() < until);
    std::this_thread::yield();
  }
}

}  // namespace

// Two devices, both ways at once, more messages than there is pinned memory for: the first of each queue go on.
TEST(gpu__workers_carry_many_messages_through_little_memory) {
  Knobs knobs;
  knobs.stripes = 2;
  knobs.fault_loss = 0.005;
  {
    Pair pair(knobs);
    const DeviceLimits limits{1 << 20, 1 << 18};
    auto one = worker(0, limits), two = worker(1, limits);
    std::vector<std::vector<std::uint8_t>> sent, received;
    for (std::size_t i = 0; i < 40; ++i) {
      const std::size_t bytes = i % 7 == 0 ? 0 : (i * 77'777) % 1'300'000;
      sent.push_back(pattern(bytes, i));
      received.emplace_back(bytes + 1 + i % 3 * 5'000, 0xEE);
    }
    const auto lane = [&](const std::shared_ptr<Connection>& from, const std::shared_ptr<Connection>& to,
                          std::size_t first) {
      std::vector<std::shared_ptr<DeviceRequest>> sends, receives;
      std::thread receiver([&] {
        for (std::size_t i = first; i < sent.size(); i += 2)
          receives.push_back(post(*two, to, gpu::Way::to_device, at(received[i]), received[i].size()));
      });
      for (std::size_t i = first; i < sent.size(); i += 2)
        sends.push_back(post(*one, from, gpu::Way::to_host, at(sent[i]), sent[i].size() - 1));
      receiver.join();
      for (std::size_t k = 0; k < sends.size(); ++k) {
        CHECK_EQUAL(sends[k]->wait(kPatienceNs), Status::ok);
        CHECK_EQUAL(receives[k]->wait(kPatienceNs), Status::ok);
        CHECK_EQUAL(sends[k]->status(), Status::ok);
        CHECK_EQUAL(receives[k]->status(), Status::ok);
        CHECK_EQUAL(receives[k]->bytes(), sent[first + 2 * k].size() - 1);
      }
    };
    std::thread back([&] { lane(pair.there, pair.here, 1); });
    lane(pair.here, pair.there, 0);
    back.join();
    for (std::size_t i = 0; i < sent.size(); ++i) {
      const std::size_t bytes = sent[i].size() - 1;
      CHECK(bytes == 0 || std::memcmp(sent[i].data(), received[i].data(), bytes) == 0);
      for (std::size_t k = bytes; k < received[i].size(); ++k) CHECK_EQUAL(received[i][k], 0xEE);
    }
    CHECK_EQUAL(one->pinned_bytes_lent() + two->pinned_bytes_lent(), 0u);
    CHECK(one->pinned_bytes() <= (1 << 20) + 4 * (2 << 20));
  }
  CHECK_EQUAL(live(), 0);
}

// The other end holds host memory, and knows nothing of devices.
TEST(gpu__a_worker_and_a_host) {
  Pair pair({});
  auto device = worker(0, {});
  for (const std::size_t bytes : {1, 100'000, 3'000'001}) {
    const auto sent = pattern(bytes, 3);
    std::vector<std::uint8_t> received(bytes);
    Request* request = nullptr;
    CHECK_EQUAL(pair.there->post_receive(received.data(), bytes, 0, &request), Status::ok);
    const auto send = post(*device, pair.here, gpu::Way::to_host, at(sent), bytes);
    CHECK_EQUAL(send->wait(kPatienceNs), Status::ok);
    CHECK_EQUAL(pair.there->wait(request, kPatienceNs), Status::ok);
    CHECK_EQUAL(request->status(), Status::ok);
    pair.there->release(request);
    CHECK(std::memcmp(sent.data(), received.data(), bytes) == 0);
    const auto receive = post(*device, pair.here, gpu::Way::to_device, at(received), bytes);
    std::fill(received.begin(), received.end(), 0);
    CHECK_EQUAL(pair.there->post_send(sent.data(), bytes, 0, &request), Status::ok);
    CHECK_EQUAL(receive->wait(kPatienceNs), Status::ok);
    CHECK_EQUAL(receive->status(), Status::ok);
    CHECK_EQUAL(pair.there->wait(request, kPatienceNs), Status::ok);
    pair.there->release(request);
    CHECK(std::memcmp(sent.data(), received.data(), bytes) == 0);
  }
}

// Segments of a host do not end where a ring does.
TEST(gpu__a_ring_much_shorter_than_what_a_host_sends) {
  for (const std::size_t ring : {std::size_t{1}, std::size_t{1} << 16, std::size_t{1} << 18, std::size_t{1} << 20}) {
    Pair pair({});
    auto device = worker(0, {1 << 21, ring});
    const std::size_t bytes = 9'000'000;
    const auto sent = pattern(bytes, ring);
    std::vector<std::uint8_t> received(bytes);
    const auto receive = post(*device, pair.here, gpu::Way::to_device, at(received), bytes);
    Request* request = nullptr;
    CHECK_EQUAL(pair.there->post_send(sent.data(), bytes, 0, &request), Status::ok);
    CHECK_EQUAL(receive->wait(kPatienceNs), Status::ok);
    CHECK_EQUAL(receive->status(), Status::ok);
    CHECK_EQUAL(pair.there->wait(request, kPatienceNs), Status::ok);
    pair.there->release(request);
    CHECK(std::memcmp(sent.data(), received.data(), bytes) == 0);
  }
  CHECK_EQUAL(live(), 0);
}

TEST(gpu__a_worker_says_what_ended_a_message) {
  const auto sent = pattern(2'000'000, 1);
  std::vector<std::uint8_t> received(2'000'000);
  {
    Pair pair({});
    auto device = worker(0, {});
    const auto receive = post(*device, pair.there, gpu::Way::to_device, at(received), received.size());
    pair.here->close();
    CHECK_EQUAL(receive->wait(kPatienceNs), Status::ok);
    CHECK_EQUAL(receive->status(), Status::connection_closed);
    std::shared_ptr<DeviceRequest> request;
    CHECK_EQUAL(device->post(pair.here, gpu::Way::to_host, 0, 1, nullptr, &request), Status::invalid_argument);
    CHECK_EQUAL(device->post(pair.here, gpu::Way::to_host, at(sent), 1, nullptr, &request), Status::cancelled);
    CHECK_EQUAL(device->pinned_bytes_lent(), 0u);
  }
  {
    Pair pair({});
    auto device = worker(0, {1 << 20, 1 << 18});  // rings of less than the message: it cannot be with the peer whole
    const auto receive = post(*device, pair.there, gpu::Way::to_device, at(received), received.size());
    fail_at("cuMemcpyHtoDAsync_v2", 2);
    const auto send = post(*device, pair.here, gpu::Way::to_host, at(sent), received.size());
    CHECK_EQUAL(receive->wait(kPatienceNs), Status::ok);
    fail_at(nullptr, 0);
    CHECK_EQUAL(receive->status(), Status::system_error);
    CHECK(receive->error().find("cuMemcpyHtoDAsync: CUDA_ERROR_ILLEGAL_ADDRESS") == 0);
    CHECK_EQUAL(send->wait(kPatienceNs), Status::ok);
    CHECK(send->status() != Status::ok);
  }
  {
    Pair pair({});
    auto device = worker(0, {});
    const auto receive = post(*device, pair.there, gpu::Way::to_device, at(received), received.size());
    device.reset();
    CHECK(receive->done());
    CHECK_EQUAL(receive->status(), Status::system_error);
    CHECK_EQUAL(receive->error(), "device closed");
  }
  CHECK_EQUAL(live(), 0);
}

TEST(gpu__what_cannot_be_opened_says_why) {
  std::string error;
  CHECK(gpu::load_driver("libcuda-of-nobody.so", &error) == nullptr);
  CHECK(error.find("needs the NVIDIA driver") != std::string::npos);
  CHECK(gpu::Copier::open(driver(), 7, &error) == nullptr);
  CHECK(error.find("device 7") != std::string::npos);
  for (const char* symbol : {"cuDeviceGet", "cuDevicePrimaryCtxRetain", "cuCtxPushCurrent_v2", "cuStreamCreate"}) {
    fail_at(symbol, 1);
    CHECK(gpu::Copier::open(driver(), 0, &error) == nullptr);
    CHECK(error.find("CUDA_ERROR_ILLEGAL_ADDRESS") != std::string::npos);
    fail_at(nullptr, 0);
    CHECK_EQUAL(live(), 0);
  }
  auto copier = gpu::Copier::open(driver(), 0, &error);
  fail_at("cuMemHostAlloc", 1);
  CHECK(gpu::PinnedPool::open(driver(), copier->context(), 8 * kRing, kPiece, &error) == nullptr);
  fail_at(nullptr, 0);
  CHECK(error.find("2097152 bytes of pinned memory") != std::string::npos);
  CHECK(gpu::PinnedPool::open(driver(), copier->context(), kRing + 1, kPiece, &error) == nullptr);
}

TEST(gpu__a_pool_lends_runs_and_takes_them_back) {
  std::string error;
  auto copier = gpu::Copier::open(driver(), 0, &error);
  auto pool = gpu::PinnedPool::open(driver(), copier->context(), 8 * kPiece, kPiece, &error);
  std::uint8_t *a = pool->take(3 * kPiece), *b = pool->take(1), *c = pool->take(4 * kPiece);
  CHECK(a != nullptr && b == a + 3 * kPiece && c == b + kPiece);
  CHECK(pool->take(1) == nullptr);
  CHECK_EQUAL(pool->lent_bytes(), 8 * kPiece);
  pool->give(b);
  CHECK(pool->take(2 * kPiece) == nullptr);  // two there are not
  pool->give(a);
  CHECK(pool->take(4 * kPiece) == a);  // together again
  pool->give(c);
  CHECK(pool->take(9 * kPiece) == nullptr);
  CHECK_EQUAL(pool->lent_bytes(), 4 * kPiece);
}

// Work that the caller's stream does first is done first.
TEST(gpu__waits_for_the_callers_stream) {
  std::string error;
  auto copier = gpu::Copier::open(driver(), 0, &error);
  fail_at("cuStreamWaitEvent", 1);
  core::Stage stage;
  gpu::Event event = nullptr;
  {
    const gpu::Current current(driver(), copier->context());
    CHECK_EQUAL(driver().event_create(&event, gpu::kDisableTiming), gpu::kSuccess);
  }
  CHECK(copier->begin(gpu::Way::to_host, 1, &stage, 1, event, &error) == nullptr);
  CHECK(error.find("cuStreamWaitEvent") != std::string::npos);
  fail_at(nullptr, 0);

  // The stream that has to do something first, and does it when asked.
  gpu::Stream first = nullptr;
  std::vector<std::uint8_t> source(kPiece, 7), device(kPiece, 0), ring(kRing, 0);
  std::atomic<std::uint32_t> settled[kRing / kPiece]{};
  {
    const gpu::Current current(driver(), copier->context());
    CHECK_EQUAL(driver().stream_create(&first, gpu::kNonBlocking), gpu::kSuccess);
    CHECK_EQUAL(driver().copy_to_device(reinterpret_cast<std::uintptr_t>(device.data()), source.data(), kPiece, first),
                gpu::kSuccess);
    CHECK_EQUAL(driver().event_record(event, first), gpu::kSuccess);
  }
  stage.ring = ring.data();
  stage.ring_bytes = kRing;
  stage.piece_bytes = kPiece;
  stage.settled = settled;
  stage.settle_size(0, kPiece);
  struct Deaf final : gpu::Transfer::Listener {
    bool on_staged(std::uint32_t) noexcept override { return true; }
  } deaf;
  auto transfer =
      copier->begin(gpu::Way::to_host, reinterpret_cast<std::uintptr_t>(device.data()), &stage, 1, event, &error);
  CHECK(transfer != nullptr);
  for (int i = 0; i < 1'000; ++i) transfer->poll(&deaf);
  CHECK_EQUAL(transfer->arrived_bytes(), 0u);
  CHECK_EQUAL(driver().stream_synchronize(first), gpu::kSuccess);
  for (int i = 0; i < 1'000 && transfer->arrived_bytes() == 0; ++i) transfer->poll(&deaf);
  CHECK_EQUAL(transfer->arrived_bytes(), kPiece);
  CHECK(std::memcmp(ring.data(), source.data(), kPiece) == 0);
  transfer.reset();
  static_cast<void>(driver().event_destroy(event));
  static_cast<void>(driver().stream_destroy(first));
  copier.reset();
  CHECK_EQUAL(live(), 0);
}
