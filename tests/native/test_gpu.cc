// Decides whether device memory passes through pinned rings as native/gpu promises, over real engines on loopback.
// The device is a fake libcuda (fake_cuda.cc): copies end late, and any call can fail. Real ones are for tests/device.
#include <dlfcn.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <thread>
#include <tuple>
#include <vector>

#include "native/engine/device_board.h"
#include "native/gpu/inspect.h"
#include "native/gpu/pinned_pool.h"
#include "native/gpu/staging_bench.h"
#include "tests/native/check.h"
#include "tests/native/fake_cuda.h"
#include "tests/native/runtime_pair.h"

namespace {

using namespace weft;
using namespace weft::engine;
using Pair = weft::test::RuntimePair;
using weft::test::kPatienceNs;
using weft::test::pattern;

constexpr int kIllegalAddress = 700;
const DeviceLimits kTight{1 << 21, 1 << 18, "any"};  // messages go around their rings; kernels are the fake's

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
// Contexts and so on that are left. No call was made that would wait for a stream which waits for a message.
int live() {
  CHECK_EQUAL(fake<int()>("fake_cuda_held_up")(), 0);
  return fake<int()>("fake_cuda_live")();
}

// Memory of a device, with a guard behind it that no message may reach.
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
  // The first `sent.size()` bytes are those, and nothing behind them was touched.
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
std::vector<std::uint8_t> untouched(std::size_t bytes) { return std::vector<std::uint8_t>(bytes, 0xEE); }

std::unique_ptr<DeviceWorker> worker(int device, const DeviceLimits& limits) {
  std::string error;
  auto made = DeviceWorker::open(driver(), device, limits, [] {}, &error);
  CHECK_EQUAL(error, "");
  return made;
}

gpu::Event mark_of(DeviceWorker& worker, gpu::Stream stream, std::string* error) {
  gpu::Event made = nullptr;
  error->clear();
  CHECK((worker.mark(stream, &made, error) == Status::ok) == error->empty());
  return made;
}

// As a caller with patience does. Null where the connection has ended.
std::shared_ptr<DeviceRequest> post_unless_closed(DeviceWorker& worker, const std::shared_ptr<Connection>& connection,
                                                  gpu::Way way, const std::shared_ptr<const gpu::Layout>& layout,
                                                  gpu::Event after = nullptr) {
  std::shared_ptr<DeviceRequest> request;
  for (const std::int64_t until = now_ns() + kPatienceNs;;) {
    const Status status = worker.post(connection, way, layout, {after, nullptr}, &request);
    if (status == Status::ok) return request;
    if (status == Status::connection_closed) return nullptr;
    CHECK_EQUAL(status, Status::would_block);
    CHECK(now_ns() < until);
    std::this_thread::yield();
  }
}

std::shared_ptr<DeviceRequest> post(DeviceWorker& worker, const std::shared_ptr<Connection>& connection, gpu::Way way,
                                    const std::shared_ptr<const gpu::Layout>& layout, gpu::Event after = nullptr) {
  auto request = post_unless_closed(worker, connection, way, layout, after);
  CHECK(request != nullptr);
  return request;
}

Status end_of(const std::shared_ptr<DeviceRequest>& request) {
  CHECK_EQUAL(request->wait(kPatienceNs), Status::ok);
  return request->status();
}

void exchange_sizes(const Knobs& knobs, const DeviceLimits& limits) {
  {
    Pair pair(knobs);
    auto device = worker(0, limits);
    for (const std::size_t bytes : {0, 1, 8192, 8193, 65'536, 262'144, 262'145, 1'048'577, 9'000'000}) {
      const Memory sent(pattern(bytes, static_cast<std::uint32_t>(bytes))), received(untouched(bytes + 1000));
      const auto receive = post(*device, pair.there, gpu::Way::to_device, received.all());
      const auto send = post(*device, pair.here, gpu::Way::to_host, sent.all());
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

// No result is passed over: whichever call fails, both ends end, in words, and nothing is kept.
TEST(gpu__an_error_at_each_call_ends_the_transfer) {
  const Memory sent(pattern(1'000'000, 1)), received(untouched(1'000'000));
  for (const char* symbol : {"cuCtxPushCurrent_v2", "cuMemcpyDtoHAsync_v2", "cuMemcpyHtoDAsync_v2", "cuEventCreate",
                             "cuEventRecord", "cuEventQuery"}) {
    for (const int nth : {1, 2, 3, -3}) {  // below zero: and ever after, as a context that is broken does
      {
        Pair pair({});
        auto device = worker(0, kTight);
        fail_at(symbol, std::abs(nth), nth < 0);
        const auto receive = post(*device, pair.there, gpu::Way::to_device, received.all());
        // The receive may have failed by now, and have closed the connection.
        const auto send = post_unless_closed(*device, pair.here, gpu::Way::to_host, sent.all());
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

// Two devices, both ways at once, more messages than there is pinned memory for: the first of each queue go on.
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
          receives.push_back(post(*two, to, gpu::Way::to_device, received[i]->all()));
      });
      for (std::size_t i = first; i < sent.size(); i += 2)
        sends.push_back(post(*one, from, gpu::Way::to_host, sent[i]->all()));
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

// The other end holds host memory, knows nothing of devices, and its segments do not end where a ring does.
TEST(gpu__a_worker_and_a_host) {
  for (const std::size_t ring : {std::size_t{1}, std::size_t{1} << 18, std::size_t{32} << 20}) {
    Pair pair({});
    auto device = worker(0, {1 << 21, ring});
    for (const std::size_t bytes : {1, 100'000, 5'000'001}) {
      Memory sent(pattern(bytes, 3)), received(untouched(bytes));
      std::vector<std::uint8_t> host(bytes);
      Request* request = nullptr;
      CHECK_EQUAL(pair.there->post_receive(host.data(), bytes, 0, &request), Status::ok);
      const auto send = post(*device, pair.here, gpu::Way::to_host, sent.all());
      CHECK_EQUAL(end_of(send), Status::ok);
      CHECK_EQUAL(weft::test::finish(*pair.there, request), Status::ok);
      CHECK(std::memcmp(sent.data(), host.data(), bytes) == 0);
      const auto receive = post(*device, pair.here, gpu::Way::to_device, received.all());
      CHECK_EQUAL(pair.there->post_send(host.data(), bytes, 0, &request), Status::ok);
      CHECK_EQUAL(end_of(receive), Status::ok);
      CHECK_EQUAL(weft::test::finish(*pair.there, request), Status::ok);
      CHECK(received.holds(sent));
    }
  }
  CHECK_EQUAL(live(), 0);
}

// A message of many pieces of any size is one message to the peer, which has other pieces, or none.
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
    const auto receive = post(*device, pair.there, gpu::Way::to_device, cut(received, 7'919));
    const auto send = post(*device, pair.here, gpu::Way::to_host, cut(sent, 104'729));
    CHECK_EQUAL(end_of(send), Status::ok);
    CHECK_EQUAL(end_of(receive), Status::ok);
    CHECK(received.holds(sent));
    if (device->has_kernels()) {
      Pair other({});
      fail_at("cuLaunchKernel", 2);
      const auto launched = post(*device, other.here, gpu::Way::to_host, cut(sent, 104'729));
      CHECK_EQUAL(end_of(launched), Status::device_error);
      CHECK(launched->error().find("cuLaunchKernel: CUDA_ERROR_ILLEGAL_ADDRESS") == 0);
      fail_at(nullptr, 0);
    }
    auto layout = std::make_shared<gpu::Layout>();
    layout->add(sent.at(), 10);
    layout->add(4096, 5);  // nothing is there: the driver refuses it
    const auto wrong = post(*device, pair.here, gpu::Way::to_host, layout);
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
    const auto receive = post(*device, pair.there, gpu::Way::to_device, received.all());
    pair.here->close();
    CHECK_EQUAL(end_of(receive), Status::connection_closed);
    std::shared_ptr<DeviceRequest> request;
    CHECK_EQUAL(device->post(pair.here, gpu::Way::to_host, sent.all(), {}, &request), Status::cancelled);
    CHECK_EQUAL(device->pinned_bytes_lent(), 0u);
  }
  {
    Pair pair({});
    auto device = worker(0, kTight);  // rings of less than the message: it cannot be with the peer whole
    const auto receive = post(*device, pair.there, gpu::Way::to_device, received.all());
    fail_at("cuMemcpyHtoDAsync_v2", 2);
    const auto send = post(*device, pair.here, gpu::Way::to_host, sent.all());
    CHECK_EQUAL(end_of(receive), Status::device_error);
    fail_at(nullptr, 0);
    CHECK(receive->error().find("cuMemcpyHtoDAsync: CUDA_ERROR_ILLEGAL_ADDRESS") == 0);
    CHECK(end_of(send) != Status::ok);
  }
  {
    Pair pair({});
    auto device = worker(0, {});
    const auto receive = post(*device, pair.there, gpu::Way::to_device, received.all());
    device.reset();
    CHECK(receive->done());
    CHECK_EQUAL(receive->status(), Status::cancelled);
  }
  CHECK_EQUAL(live(), 0);
}

namespace {

// A stream of the caller's, on a device.
struct CallersStream {
  explicit CallersStream(int device) : context(fake<void*(int)>("fake_cuda_context")(device)) {
    const gpu::Current current(driver(), context);
    CHECK_EQUAL(driver().stream_create(&stream, gpu::kNonBlocking), gpu::kSuccess);
  }
  ~CallersStream() { static_cast<void>(driver().stream_destroy(stream)); }
  // Work that takes until finish() is called.
  void copy(const Memory& to, const std::vector<std::uint8_t>& from) {
    const gpu::Current current(driver(), context);
    CHECK_EQUAL(driver().copy_to_device(to.at(), from.data(), from.size(), stream), gpu::kSuccess);
  }
  void read(std::vector<std::uint8_t>* to, const Memory& from) {
    const gpu::Current current(driver(), context);
    CHECK_EQUAL(driver().copy_to_host(to->data(), from.at(), to->size(), stream), gpu::kSuccess);
  }
  void wait_for(const std::uint32_t* word) {
    const gpu::Current current(driver(), context);
    const auto at = reinterpret_cast<std::uintptr_t>(word);
    CHECK_EQUAL(driver().stream_wait_value(stream, at, 1, gpu::kWaitAtLeast), gpu::kSuccess);
  }
  void finish() const { CHECK_EQUAL(driver().stream_synchronize(stream), gpu::kSuccess); }
  gpu::Context context;
  gpu::Stream stream = nullptr;
};

}  // namespace

// What the caller's stream does first is in what the peer gets; what it does afterwards sees what came.
TEST(gpu__order_with_the_callers_streams) {
  {
    Pair pair({});
    auto device = worker(0, kTight);
    const auto content = pattern(1'000'000, 5);
    const Memory sent(untouched(content.size())), received(untouched(content.size()));
    CallersStream before(0), after(0), elsewhere(1);
    std::string error;
    std::uint32_t word = 0;
    before.wait_for(&word);
    before.copy(sent, content);
    const gpu::Event mark = mark_of(*device, before.stream, &error);
    CHECK(mark != nullptr);
    const auto receive = post(*device, pair.there, gpu::Way::to_device, received.all());
    CHECK_EQUAL(device->wait_on(receive, after.stream, &error), Status::ok);
    std::vector<std::uint8_t> seen(content.size());
    after.read(&seen, received);
    const auto send = post(*device, pair.here, gpu::Way::to_host, sent.all(), mark);
    __atomic_store_n(&word, 1u, __ATOMIC_RELEASE);
    CHECK_EQUAL(end_of(send), Status::ok);
    CHECK_EQUAL(end_of(receive), Status::ok);
    after.finish();
    CHECK(seen == content);
    CHECK_EQUAL(device->wait_on(receive, after.stream, &error), Status::ok);  // it is over: nothing to wait for

    CHECK_EQUAL(device->wait_on(receive, elsewhere.stream, &error), Status::invalid_argument);
    CHECK(error.find("another device or context") != std::string::npos);
    CHECK(mark_of(*device, elsewhere.stream, &error) == nullptr);
    before.finish();
    CHECK(mark_of(*device, before.stream, &error) == nullptr);  // nothing is left to wait for
    __atomic_store_n(&word, 0u, __ATOMIC_RELEASE);
    before.wait_for(&word);
    for (const char* symbol : {"cuStreamGetCtx", "cuStreamQuery", "cuEventCreate", "cuEventRecord"}) {
      fail_at(symbol, 1);
      CHECK(mark_of(*device, before.stream, &error) == nullptr);
      CHECK(error.find("CUDA_ERROR_ILLEGAL_ADDRESS") != std::string::npos);
    }
    __atomic_store_n(&word, 1u, __ATOMIC_RELEASE);
    before.finish();
    const auto waiting = post(*device, pair.there, gpu::Way::to_device, received.all());
    // The worker is about: only what it does not call itself while a message waits.
    // The first event recorded is the attendant's, and without it streams copy.
    for (const auto& [symbol, nth] :
         {std::pair{"cuEventCreate", 1}, {"cuStreamWaitValue32_v2", 1}, {"cuEventRecord", 2}}) {
      fail_at(symbol, nth);
      CHECK(device->wait_on(waiting, after.stream, &error) != Status::ok);
      CHECK(error.find("CUDA_ERROR_ILLEGAL_ADDRESS") != std::string::npos);
    }
    fail_at(nullptr, 0);
    fake<void(void*)>("fake_cuda_capture")(after.stream);
    CHECK(mark_of(*device, after.stream, &error) == nullptr);
    CHECK(error.find("being captured into a graph") != std::string::npos);
    CHECK_EQUAL(device->wait_on(waiting, after.stream, &error), Status::invalid_argument);
    fake<void(void*)>("fake_cuda_capture")(nullptr);
    // A stream that waits goes on when the message fails.
    CHECK_EQUAL(device->wait_on(waiting, after.stream, &error), Status::ok);
    pair.there->close();
    CHECK_EQUAL(end_of(waiting), Status::cancelled);
    after.finish();
  }
  CHECK_EQUAL(live(), 0);
}

// Each message comes after work that waits for the message before it: none may hold up another.
TEST(gpu__messages_that_wait_for_each_other_by_a_stream) {
  {
    Pair pair({});
    auto device = worker(0, kTight);
    CallersStream stream(0);
    std::string error;
    std::vector<std::unique_ptr<Memory>> sent, received;
    std::vector<std::shared_ptr<DeviceRequest>> receives;
    for (std::uint32_t i = 0; i < 12; ++i) {
      sent.push_back(std::make_unique<Memory>(pattern(100'000, i)));
      received.push_back(std::make_unique<Memory>(untouched(100'000)));
      const gpu::Event mark = mark_of(*device, stream.stream, &error);
      receives.push_back(post(*device, pair.there, gpu::Way::to_device, received.back()->all(), mark));
      CHECK_EQUAL(device->wait_on(receives.back(), stream.stream, &error), Status::ok);
    }
    for (const auto& one : sent)
      CHECK_EQUAL(end_of(post(*device, pair.here, gpu::Way::to_host, one->all())), Status::ok);
    for (std::size_t i = 0; i < receives.size(); ++i) {
      CHECK_EQUAL(end_of(receives[i]), Status::ok);
      CHECK(received[i]->holds(*sent[i]));
    }
    // All of it is here, and may not be written yet.
    {
      const Memory early(pattern(1'000, 77)), place(untouched(1'000));
      CallersStream busy(0);
      const auto first = post(*device, pair.here, gpu::Way::to_device, place.all());
      CHECK_EQUAL(device->wait_on(first, busy.stream, &error), Status::ok);
      const Memory target(untouched(1'000));
      const gpu::Event mark = mark_of(*device, busy.stream, &error);
      const auto second = post(*device, pair.there, gpu::Way::to_device, target.all(), mark);
      CHECK_EQUAL(end_of(post(*device, pair.here, gpu::Way::to_host, early.all())), Status::ok);
      CHECK_EQUAL(second->wait(50'000'000), Status::timed_out);
      CHECK(target.holds(Memory({})));
      CHECK_EQUAL(end_of(post(*device, pair.there, gpu::Way::to_host, early.all())), Status::ok);
      CHECK_EQUAL(end_of(first), Status::ok);
      CHECK_EQUAL(end_of(second), Status::ok);
      CHECK(target.holds(early) && place.holds(early));
    }
    // What never gets its turn is given up at once, and closing waits for nothing.
    CallersStream stuck(0);
    const auto before = post(*device, pair.there, gpu::Way::to_device, received[0]->all());
    CHECK_EQUAL(device->wait_on(before, stuck.stream, &error), Status::ok);
    const auto behind =
        post(*device, pair.there, gpu::Way::to_device, received[1]->all(), mark_of(*device, stuck.stream, &error));
    pair.there->close();
    CHECK_EQUAL(end_of(behind), Status::cancelled);
    CHECK_EQUAL(end_of(before), Status::cancelled);
    stuck.finish();
    const gpu::Stream lent = device->lend_intake(&error);
    CHECK(lent != nullptr);
    device->drop({nullptr, lent});
    CHECK(device->lend_intake(&error) == lent);
    device->drop({nullptr, lent});
    fail_at("cuStreamCreate", 1);
    // Those made ahead are lent first.
    std::vector<gpu::Stream> all;
    while (const gpu::Stream one = device->lend_intake(&error)) all.push_back(one);
    CHECK(all.size() == 32 && all.front() == lent);
    CHECK(error.find("cuStreamCreate") == 0);
    fail_at(nullptr, 0);
    for (const gpu::Stream one : all) device->drop({nullptr, one});
  }
  CHECK_EQUAL(live(), 0);
}

// A queue that a waiting stream lies in may be that of any other stream: none of ours copies meanwhile.
TEST(gpu__no_stream_copies_while_a_stream_waits) {
  {
    Pair pair({}), second({});
    auto device = worker(0, kTight);
    CallersStream stream(0);
    std::string error;
    const Memory place(untouched(10)), last(pattern(10, 9));
    const auto awaited = post(*device, pair.there, gpu::Way::to_device, place.all());
    for (const char* attends : {"cuMemcpyDtoHAsync_v2", "cuMemcpyHtoDAsync_v2", "cuLaunchKernel"}) {
      if (std::strcmp(attends, "cuLaunchKernel") == 0) fail_at(attends, 1);  // there is no attendant then
      CHECK_EQUAL(device->wait_on(awaited, stream.stream, &error), Status::ok);
      if (std::strcmp(attends, "cuLaunchKernel") == 0) continue;
      fail_at(attends, 1);
      // Of one piece, of three, of too many for its slots, and around the ring.
      for (const std::size_t bytes : {1, 70'000, 3'000'001}) {
        for (const std::size_t step : {std::size_t{0}, bytes / 3 + 1, std::size_t{1'001}}) {
          const Memory sent(pattern(bytes, static_cast<std::uint32_t>(bytes))), received(untouched(bytes));
          const auto cut = [&](const Memory& memory) {
            if (step == 0) return memory.all();
            auto layout = std::make_shared<gpu::Layout>();
            for (std::size_t at = 0; at < bytes; at += step) layout->add(memory.at() + at, std::min(step, bytes - at));
            return layout;
          };
          const auto receive = post(*device, second.there, gpu::Way::to_device, cut(received));
          CHECK_EQUAL(end_of(post(*device, second.here, gpu::Way::to_host, cut(sent))), Status::ok);
          CHECK_EQUAL(end_of(receive), Status::ok);
          CHECK(received.holds(sent));
        }
      }
      fail_at(nullptr, 0);
    }
    // Nothing that the driver holds up is called for others either, who come and go.
    {
      auto other = worker(0, kTight);
      const Memory sent(pattern(300'000, 4)), received(untouched(300'000));
      const auto receive = post(*other, second.there, gpu::Way::to_device, received.all());
      CHECK_EQUAL(end_of(post(*other, second.here, gpu::Way::to_host, sent.all())), Status::ok);
      CHECK_EQUAL(end_of(receive), Status::ok);
    }
    CHECK_EQUAL(end_of(post(*device, pair.here, gpu::Way::to_host, last.all())), Status::ok);
    CHECK_EQUAL(end_of(awaited), Status::ok);
    stream.finish();
    CHECK(place.holds(last));
  }
  CHECK_EQUAL(live(), 0);
}

// The context goes while the attendant has jobs: they end, in words.
TEST(gpu__an_attendant_whose_context_goes) {
  {
    Pair pair({}), second({});
    auto device = worker(0, kTight);
    CallersStream stream(0);
    std::string error;
    const Memory sent(pattern(2'000'000, 1)), place(untouched(10));
    std::vector<std::uint8_t> host(sent.size());
    Request* receive = nullptr;
    CHECK_EQUAL(second.there->post_receive(host.data(), host.size(), 0, &receive), Status::ok);
    const auto awaited = post(*device, pair.there, gpu::Way::to_device, place.all());
    CHECK_EQUAL(device->wait_on(awaited, stream.stream, &error), Status::ok);
    fail_at("cuEventQuery", 4, true);
    const auto send = post(*device, second.here, gpu::Way::to_host, sent.all());
    CHECK_EQUAL(end_of(send), Status::device_error);
    CHECK(send->error().find("CUDA_ERROR_ILLEGAL_ADDRESS") != std::string::npos);
    CHECK(weft::test::finish(*second.there, receive) != Status::ok);
    pair.there->close();
    CHECK(end_of(awaited) != Status::ok);
  }
  fail_at(nullptr, 0);
  CHECK_EQUAL(live(), 0);
}

TEST(gpu__waits_are_bounded_and_used_again) {
  std::string error;
  Pair pair({});
  auto device = worker(0, kTight);
  CallersStream stream(0);
  const Memory sent(pattern(10, 1)), received(untouched(10));
  for (int round = 0; round < 3; ++round) {
    const auto receive = post(*device, pair.there, gpu::Way::to_device, received.all());
    int waits = 0;
    while (device->wait_on(receive, stream.stream, &error) == Status::ok) ++waits;
    CHECK_EQUAL(waits, 1024);
    CHECK(error.find("1,024 waits of streams") == 0);
    CHECK_EQUAL(end_of(post(*device, pair.here, gpu::Way::to_host, sent.all())), Status::ok);
    CHECK_EQUAL(end_of(receive), Status::ok);
    stream.finish();
  }
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
    refused(gpu::Layout(reinterpret_cast<std::uintptr_t>(host.data()), 100), "no memory of a device at 0x");
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
    CHECK_EQUAL(board.worker_of(*first.all(), &worker, &error), Status::ok);  // there is memory now
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
  CHECK(error.find("rings of 128 KiB at least") != std::string::npos);
  for (const auto& time : {gpu::time_staged, gpu::time_copied}) {
    error.clear();
    fail_at("cuMemcpyDtoHAsync_v2", 2);
    CHECK(time(driver(), {0, source.at(), 0, source.size(), 1 << 18, 2}, &error) < 0);
    CHECK(error.find("CUDA_ERROR_ILLEGAL_ADDRESS") != std::string::npos);
    fail_at(nullptr, 0);
  }
  CHECK_EQUAL(live(), 0);
}

TEST(gpu__what_cannot_be_opened_says_why) {
  std::string error;
  CHECK(gpu::Copier::open(driver(), 7, &error) == nullptr);
  CHECK(error.find("device 7") != std::string::npos);
  // Without kernels, and, where the attendant of the kernels comes first, with them: all but its context are its own.
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
  CHECK(pool->take(2 * kGranule) == nullptr);  // two there are not
  pool->give(a);
  CHECK(pool->take(4 * kGranule) == a);  // together again
  pool->give(c);
  CHECK(pool->take(9 * kGranule) == nullptr);
  CHECK_EQUAL(pool->lent_bytes(), 4 * kGranule);
}
