// Tests transfers of device memory through pinned rings, over real engines on loopback. The device is a fake libcuda
// (fake_cuda.cc): copies end late, and any call can fail. tests/device uses real devices.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <tuple>
#include <vector>

#include "bench/native/loops/kernels_bench.h"
#include "bench/native/loops/staging_bench.h"
#include "native/gpu/inspect.h"
#include "native/gpu/pinned_pool.h"
#include "tests/native/gpu_fixture.h"

namespace {

using namespace weft;
using namespace weft::engine;
using namespace weft::control;
using namespace weft::message;
using namespace weft::test;
using Pair = weft::test::RuntimePair;

void exchange_sizes(const Knobs& knobs, const DeviceLimits& limits) {
  {
    Pair pair(knobs);
    auto device = worker(0, limits);
    for (const std::size_t bytes : {0, 1, 8192, 8193, 65'536, 262'144, 262'145, 1'048'577, 9'000'000}) {
      const Memory sent(pattern(bytes, static_cast<std::uint32_t>(bytes))), received(untouched(bytes + 1000));
      const auto receive = post(*device, pair.there, gpu::Direction::to_device, received.all());
      const auto send = post(*device, pair.here, gpu::Direction::to_host, sent.all());
      CHECK_EQUAL(end_of(send), Status::ok);
      CHECK_EQUAL(end_of(receive), Status::ok);
      CHECK_EQUAL(receive->bytes(), bytes);
      CHECK(received.holds(sent));
    }
    CHECK_EQUAL(device->pinned_bytes_lent(), 0u);
  }
  CHECK_EQUAL(live(), 0);
}

}  // namespace

TEST(gpu__device_to_device) { exchange_sizes({}, kTight); }

TEST(gpu__over_several_flows_under_faults) {
  Knobs knobs;
  knobs.engines = 2;
  knobs.stripes = 3;
  knobs.fault_loss = 0.01;
  knobs.fault_reorder = 0.02;
  knobs.fault_duplicate = 0.01;
  exchange_sizes(knobs, {});
}

// Whichever call to the driver fails, both ends end with an error text, and everything is freed.
TEST(gpu__an_error_at_each_call_ends_the_transfer) {
  const Memory sent(pattern(1'000'000, 1)), received(untouched(1'000'000));
  for (const char* symbol : {"cuCtxPushCurrent_v2", "cuMemcpyDtoHAsync_v2", "cuMemcpyHtoDAsync_v2", "cuEventCreate",
                             "cuEventRecord", "cuEventQuery"}) {
    for (const int nth : {1, 2, 3, -1, -3}) {  // negative: later calls fail, too, as with a broken context
      // Events are reused, so timing decides how many are created; only the first creation can be made to fail.
      if (std::strcmp(symbol, "cuEventCreate") == 0 && std::abs(nth) != 1) continue;
      {
        Pair pair({});
        auto device = worker(0, kTight);
        fail_at(symbol, std::abs(nth), nth < 0);
        const auto receive = post(*device, pair.there, gpu::Direction::to_device, received.all());
        // The receive may have failed and closed the connection by now.
        const auto send = post_unless_closed(*device, pair.here, gpu::Direction::to_host, sent.all());
        const Status received_with = end_of(receive);
        const Status sent_with = send != nullptr ? end_of(send) : Status::connection_closed;
        fail_at(nullptr, 0);
        if (received_with == Status::ok) {
          weft::test::fail(__FILE__, __LINE__, std::string(symbol) + " failed, and nobody noticed");
        }
        const auto& failed = received_with == Status::device_error ? receive : send;
        CHECK(received_with == Status::device_error || sent_with == Status::device_error);
        CHECK(failed->error().find("CUDA_ERROR_ILLEGAL_ADDRESS, an illegal memory access") != std::string::npos);
        CHECK_EQUAL(device->pinned_bytes_lent(), 0u);
      }
      CHECK_EQUAL(live(), 0);
    }
  }
}

// Two devices transfer in both directions at once, with more messages than fit into pinned memory.
TEST(gpu__workers_carry_many_messages_through_little_memory) {
  Knobs knobs;
  knobs.stripes = 2;
  knobs.fault_loss = 0.005;
  {
    Pair pair(knobs);
    const DeviceLimits limits{1 << 20, 1 << 18};
    auto one = worker(0, limits), two = worker(1, limits);
    std::vector<std::unique_ptr<Memory>> sent, received;
    for (std::uint32_t i = 0; i < 40; ++i) {
      const std::size_t bytes = i % 7 == 0 ? 0 : (i * 77'777) % 1'300'000;
      sent.push_back(std::make_unique<Memory>(pattern(bytes, i)));
      received.push_back(std::make_unique<Memory>(untouched(bytes + i % 3 * 5'000), 1));
    }
    const auto lane = [&](const std::shared_ptr<Connection>& from, const std::shared_ptr<Connection>& to,
                          std::size_t first) {
      std::vector<std::shared_ptr<DeviceRequest>> sends, receives;
      std::thread receiver([&] {
        for (std::size_t i = first; i < sent.size(); i += 2)
          receives.push_back(post(*two, to, gpu::Direction::to_device, received[i]->all()));
      });
      for (std::size_t i = first; i < sent.size(); i += 2)
        sends.push_back(post(*one, from, gpu::Direction::to_host, sent[i]->all()));
      receiver.join();
      for (std::size_t k = 0; k < sends.size(); ++k) {
        CHECK_EQUAL(end_of(sends[k]), Status::ok);
        CHECK_EQUAL(end_of(receives[k]), Status::ok);
        CHECK_EQUAL(receives[k]->bytes(), sent[first + 2 * k]->size());
      }
    };
    std::thread back([&] { lane(pair.there, pair.here, 1); });
    lane(pair.here, pair.there, 0);
    back.join();
    for (std::size_t i = 0; i < sent.size(); ++i) CHECK(received[i]->holds(*sent[i]));
    CHECK_EQUAL(one->pinned_bytes_lent() + two->pinned_bytes_lent(), 0u);
    CHECK(one->pinned_bytes() <= (1 << 20) + 4 * (2 << 20));
  }
  CHECK_EQUAL(live(), 0);
}

// One end sends from or receives into host memory, so segments may cross the end of the other end's ring.
TEST(gpu__a_worker_and_a_host) {
  for (const std::size_t ring : {std::size_t{1}, std::size_t{1} << 18, std::size_t{32} << 20}) {
    Pair pair({});
    auto device = worker(0, {1 << 21, ring});
    for (const std::size_t bytes : {1, 100'000, 5'000'001}) {
      Memory sent(pattern(bytes, 3)), received(untouched(bytes));
      std::vector<std::uint8_t> host(bytes);
      Request* request = nullptr;
      CHECK_EQUAL(pair.there->post_receive(host.data(), bytes, 0, &request), Status::ok);
      const auto send = post(*device, pair.here, gpu::Direction::to_host, sent.all());
      CHECK_EQUAL(end_of(send), Status::ok);
      CHECK_EQUAL(weft::test::finish(*pair.there, request), Status::ok);
      CHECK(std::memcmp(sent.data(), host.data(), bytes) == 0);
      const auto receive = post(*device, pair.here, gpu::Direction::to_device, received.all());
      CHECK_EQUAL(pair.there->post_send(host.data(), bytes, 0, &request), Status::ok);
      CHECK_EQUAL(end_of(receive), Status::ok);
      CHECK_EQUAL(weft::test::finish(*pair.there, request), Status::ok);
      CHECK(received.holds(sent));
    }
  }
  CHECK_EQUAL(live(), 0);
}

// The receive's buffer is larger than the message, so that the message has fewer and longer stripes than the buffer's
// size suggests.
TEST(gpu__a_shorter_message_than_the_place_for_it) {
  for (const int flows : {2, 3, 4, 8}) {
    Knobs knobs;
    knobs.engines = flows;
    knobs.stripes = flows;
    Pair pair(knobs);
    auto device = worker(0, {});
    for (const std::size_t place : {256 << 10, 300 << 10, 450'000, 512 << 10, 1 << 20, 3 << 19}) {
      for (const std::size_t bytes : {190'000, 200'000, 255 << 10, 262'143, 393'215}) {
        if (bytes > place) continue;
        const Memory sent(pattern(bytes, 7)), received(untouched(place));
        const auto receive = post(*device, pair.there, gpu::Direction::to_device, received.all());
        CHECK_EQUAL(end_of(post(*device, pair.here, gpu::Direction::to_host, sent.all())), Status::ok);
        CHECK_EQUAL(end_of(receive), Status::ok);
        CHECK_EQUAL(receive->bytes(), bytes);
        CHECK(received.holds(sent));
      }
    }
  }
  CHECK_EQUAL(live(), 0);
}

// A message of many pieces of any size is one message to the peer, which may use other pieces.
TEST(gpu__pieces_are_one_message) {
  {
    Pair pair({});
    auto device = worker(0, kTight);
    Memory sent(pattern(3'000'000, 9)), received(untouched(3'000'000));
    const auto cut = [](const Memory& memory, std::size_t step) {
      auto layout = std::make_shared<gpu::Layout>();
      for (std::size_t at = 0, i = 0; at < memory.size(); ++i) {
        const std::size_t bytes = std::min(memory.size() - at, i % 5 == 0 ? 0 : 1 + i * step % 30'011);
        layout->add(memory.at() + at, bytes);
        at += bytes;
      }
      return layout;
    };
    const auto receive = post(*device, pair.there, gpu::Direction::to_device, cut(received, 7'919));
    const auto send = post(*device, pair.here, gpu::Direction::to_host, cut(sent, 104'729));
    CHECK_EQUAL(end_of(send), Status::ok);
    CHECK_EQUAL(end_of(receive), Status::ok);
    CHECK(received.holds(sent));
    if (device->has_kernels()) {
      Pair other({});
      fail_at("cuLaunchKernel", 2);
      const auto launched = post(*device, other.here, gpu::Direction::to_host, cut(sent, 104'729));
      CHECK_EQUAL(end_of(launched), Status::device_error);
      CHECK(launched->error().find("cuLaunchKernel: CUDA_ERROR_ILLEGAL_ADDRESS") == 0);
      fail_at(nullptr, 0);
    }
    auto layout = std::make_shared<gpu::Layout>();
    layout->add(sent.at(), 10);
    layout->add(4096, 5);  // no memory at this address, so the driver refuses it
    const auto wrong = post(*device, pair.here, gpu::Direction::to_host, layout);
    CHECK_EQUAL(end_of(wrong), Status::device_error);
    CHECK(wrong->error().find("cuMemcpyDtoHAsync") == 0);
  }
  CHECK_EQUAL(live(), 0);
}

TEST(gpu__a_worker_says_what_ended_a_message) {
  const Memory sent(pattern(2'000'000, 1)), received(untouched(2'000'000));
  {
    Pair pair({});
    auto device = worker(0, {});
    const auto receive = post(*device, pair.there, gpu::Direction::to_device, received.all());
    pair.here->close();
    CHECK_EQUAL(end_of(receive), Status::connection_closed);
    const auto request = std::make_shared<DeviceRequest>();
    CHECK_EQUAL(device->post(pair.here, gpu::Direction::to_host, sent.all(), {}, request), Status::cancelled);
    CHECK_EQUAL(device->pinned_bytes_lent(), 0u);
  }
  {
    Pair pair({});
    auto device = worker(0, kTight);  // rings smaller than the message, so that the peer can't have received all of it
    const auto receive = post(*device, pair.there, gpu::Direction::to_device, received.all());
    fail_at("cuMemcpyHtoDAsync_v2", 2);
    const auto send = post(*device, pair.here, gpu::Direction::to_host, sent.all());
    CHECK_EQUAL(end_of(receive), Status::device_error);
    fail_at(nullptr, 0);
    CHECK(receive->error().find("cuMemcpyHtoDAsync: CUDA_ERROR_ILLEGAL_ADDRESS") == 0);
    CHECK(end_of(send) != Status::ok);
  }
  {
    Pair pair({});
    auto device = worker(0, {});
    const auto receive = post(*device, pair.there, gpu::Direction::to_device, received.all());
    device.reset();
    CHECK(receive->done());
    CHECK_EQUAL(receive->status(), Status::cancelled);
  }
  CHECK_EQUAL(live(), 0);
}

TEST(gpu__a_board_finds_the_device_of_a_buffer) {
  const Memory first(pattern(100, 1)), second(pattern(100, 2), 1), managed(pattern(100, 3), 0, true);
  std::vector<std::uint8_t> host(100);
  std::string error;
  {
    DeviceBoard board(WEFT_FAKE_CUDA, kTight, [] {});
    DeviceWorker *worker = nullptr, *again = nullptr, *other = nullptr;
    CHECK_EQUAL(board.worker_of(*first.all(), &worker, &error), Status::ok);
    CHECK_EQUAL(board.worker_of(gpu::Layout(first.at() + 40, 60), &again, &error), Status::ok);
    CHECK_EQUAL(board.worker_of(*second.all(), &other, &error), Status::ok);
    CHECK(worker == again && worker != other);
    const auto refused = [&](const gpu::Layout& layout, const char* words) {
      CHECK_EQUAL(board.worker_of(layout, &worker, &error), Status::invalid_argument);
      CHECK(worker == nullptr && error.find(words) != std::string::npos);
    };
    refused(gpu::Layout(reinterpret_cast<std::uintptr_t>(host.data()), 100), "no device memory at 0x");
    refused(gpu::Layout(first.at(), std::uint64_t{1} << 44), "shorter than the array says");
    refused(*managed.all(), "managed memory");
    gpu::Layout both;
    both.add(first.at(), 100);
    both.add(second.at(), 5);
    refused(both, "on device 0 and on device 1");
    fail_at("cuPointerGetAttributes", 1);
    refused(*first.all(), "cuPointerGetAttributes: CUDA_ERROR_ILLEGAL_ADDRESS");
    fail_at(nullptr, 0);
  }
  CHECK_EQUAL(live(), 0);
  {
    DeviceBoard board(WEFT_FAKE_CUDA, kTight, [] {});
    DeviceWorker* worker = nullptr;
    fail_at("cuMemHostAlloc", 1);
    CHECK_EQUAL(board.worker_of(*first.all(), &worker, &error), Status::device_unavailable);
    CHECK(error.find("cuMemHostAlloc") == 0);
    fail_at(nullptr, 0);
    CHECK_EQUAL(board.worker_of(*first.all(), &worker, &error), Status::ok);  // now pinned memory is available
    DeviceBoard nowhere("libcuda-of-nobody.so", kTight, [] {});
    CHECK_EQUAL(nowhere.worker_of(*first.all(), &worker, &error), Status::device_unavailable);
    CHECK(error.find("needs the NVIDIA driver") != std::string::npos);
  }
  CHECK_EQUAL(live(), 0);
}

TEST(gpu__staging_is_timed_each_way_and_both) {
  std::string error;
  const Memory source(pattern(3'000'001, 1)), target(untouched(3'000'001));
  for (const auto& [from, to] :
       {std::pair{source.at(), gpu::Address{0}}, {gpu::Address{0}, target.at()}, {source.at(), target.at()}}) {
    const gpu::StagingPlan plan{0, from, to, source.size(), 1 << 18, 3};
    CHECK(gpu::time_staged(driver(), plan, &error) > 0);
    CHECK(gpu::time_copied(driver(), plan, &error) > 0);
    CHECK_EQUAL(error, "");
  }
  CHECK(gpu::time_staged(driver(), {0, source.at(), 0, 100, 1 << 16, 1}, &error) < 0);
  CHECK(error.find("rings of at least 128 KiB") != std::string::npos);
  for (const auto& time : {gpu::time_staged, gpu::time_copied}) {
    error.clear();
    fail_at("cuMemcpyDtoHAsync_v2", 2);
    CHECK(time(driver(), {0, source.at(), 0, source.size(), 1 << 18, 2}, &error) < 0);
    CHECK(error.find("CUDA_ERROR_ILLEGAL_ADDRESS") != std::string::npos);
    fail_at(nullptr, 0);
  }
  CHECK_EQUAL(live(), 0);
}

TEST(gpu__kernels_are_timed) {
  std::string error;
  const Memory source(pattern(100'000, 1)), target(untouched(100'000));
  for (const auto work : {gpu::KernelWork::gather, gpu::KernelWork::scatter, gpu::KernelWork::reduce}) {
    const gpu::KernelTimes times =
        gpu::time_kernel(driver(), {0, work, source.at(), target.at(), source.size(), 1'400, 3}, &error);
    if (gpu::kernel_image() == nullptr) {
      CHECK(error.find("built without nvcc") == 0);
      continue;
    }
    CHECK_EQUAL(error, "");
    CHECK(times.kernel_ns > 0 && times.copy_ns > 0);
    CHECK_EQUAL(times.bytes, work == gpu::KernelWork::reduce ? 50'000u : 100'000u / 1'416 * 1'400);
  }
  CHECK(gpu::time_kernel(driver(), {0, gpu::KernelWork::gather, source.at(), target.at(), 2'000, 1'400, 3}, &error)
            .copy_ns < 0);
  CHECK(error.find("pieces of at most half") != std::string::npos);
  CHECK_EQUAL(live(), 0);
}

TEST(gpu__what_cannot_be_opened_says_why) {
  std::string error;
  CHECK(gpu::Copier::open(driver(), 7, &error) == nullptr);
  CHECK(error.find("device 7") != std::string::npos);
  // With kernels ("any"), the persistent kernel is opened first, so the first failing calls are the persistent
  // kernel's.
  for (const auto& [symbol, nth, image] :
       std::initializer_list<std::tuple<const char*, int, const char*>>{{"cuDeviceGet", 1, nullptr},
                                                                        {"cuDevicePrimaryCtxRetain", 1, nullptr},
                                                                        {"cuCtxPushCurrent_v2", 1, nullptr},
                                                                        {"cuCtxGetStreamPriorityRange", 1, nullptr},
                                                                        {"cuStreamCreateWithPriority", 1, nullptr},
                                                                        {"cuStreamCreateWithPriority", 5, nullptr},
                                                                        {"cuCtxPushCurrent_v2", 2, "any"},
                                                                        {"cuMemHostAlloc", 1, "any"},
                                                                        {"cuCtxGetStreamPriorityRange", 1, "any"},
                                                                        {"cuStreamCreateWithPriority", 1, "any"},
                                                                        {"cuEventCreate", 1, "any"}}) {
    fail_at(symbol, nth);
    CHECK(gpu::Copier::open(driver(), 0, &error, image) == nullptr);
    CHECK(error.find("CUDA_ERROR_ILLEGAL_ADDRESS") != std::string::npos);
    fail_at(nullptr, 0);
    CHECK_EQUAL(live(), 0);
  }
  auto copier = gpu::Copier::open(driver(), 0, &error);
  fail_at("cuMemHostAlloc", 1);
  CHECK(gpu::PinnedPool::open(driver(), copier->context(), 1 << 21, 1 << 16, &error) == nullptr);
  fail_at(nullptr, 0);
  CHECK(error.find("2097152 bytes of pinned memory") != std::string::npos);
  CHECK(gpu::PinnedPool::open(driver(), copier->context(), (1 << 21) + 1, 1 << 16, &error) == nullptr);
}

TEST(gpu__a_pool_lends_runs_and_takes_them_back) {
  constexpr std::size_t kGranule = 1 << 16;
  std::string error;
  auto copier = gpu::Copier::open(driver(), 0, &error);
  auto pool = gpu::PinnedPool::open(driver(), copier->context(), 8 * kGranule, kGranule, &error);
  std::uint8_t *a = pool->take(3 * kGranule), *b = pool->take(1), *c = pool->take(4 * kGranule);
  CHECK(a != nullptr && b == a + 3 * kGranule && c == b + kGranule);
  CHECK(pool->take(1) == nullptr);
  CHECK_EQUAL(pool->lent_bytes(), 8 * kGranule);
  pool->give(b);
  CHECK(pool->take(2 * kGranule) == nullptr);  // null: no two free granules are adjacent
  pool->give(a);
  CHECK(pool->take(4 * kGranule) == a);  // the free granules were merged again
  pool->give(c);
  CHECK(pool->take(9 * kGranule) == nullptr);
  CHECK_EQUAL(pool->lent_bytes(), 4 * kGranule);
}
