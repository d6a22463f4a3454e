// Tests that messages keep the order of their callers' streams, and proceed whatever those streams wait for. The device
// is a fake libcuda (fake_cuda.cc), which counts calls that the real one would have blocked.
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include "tests/native/gpu_fixture.h"

namespace {

using namespace weft;
using namespace weft::engine;
using namespace weft::control;
using namespace weft::message;
using namespace weft::test;
using Pair = weft::test::RuntimePair;

// A stream of a caller on a device of the fake.
struct CallersStream {
  explicit CallersStream(int device) : context(fake<void*(int)>("fake_cuda_context")(device)) {
    const gpu::Current current(driver(), context);
    CHECK_EQUAL(driver().stream_create(&stream, gpu::kNonBlocking), gpu::kSuccess);
  }
  ~CallersStream() { static_cast<void>(driver().stream_destroy(stream)); }
  // copy(), read() and wait_for() submit work that need not be done before finish() returns.
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

// A send includes the results of work submitted to its stream earlier; work submitted after a receive sees the received
// bytes.
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
    const auto receive = post(*device, pair.there, gpu::Direction::to_device, received.all());
    CHECK_EQUAL(device->wait_on(receive, after.stream, &error), Status::ok);
    std::vector<std::uint8_t> seen(content.size());
    after.read(&seen, received);
    const auto send = post(*device, pair.here, gpu::Direction::to_host, sent.all(), mark);
    __atomic_store_n(&word, 1u, __ATOMIC_RELEASE);
    CHECK_EQUAL(end_of(send), Status::ok);
    CHECK_EQUAL(end_of(receive), Status::ok);
    after.finish();
    CHECK(seen == content);
    CHECK_EQUAL(device->wait_on(receive, after.stream, &error), Status::ok);  // already finished, so nothing waits

    CHECK_EQUAL(device->wait_on(receive, elsewhere.stream, &error), Status::invalid_argument);
    CHECK(error.find("another device or context") != std::string::npos);
    CHECK(mark_of(*device, elsewhere.stream, &error) == nullptr);
    before.finish();
    CHECK(mark_of(*device, before.stream, &error) == nullptr);  // null: the stream has no unfinished work
    __atomic_store_n(&word, 0u, __ATOMIC_RELEASE);
    before.wait_for(&word);
    for (const char* symbol : {"cuStreamGetCtx", "cuStreamQuery", "cuEventCreate", "cuEventRecord"}) {
      fail_at(symbol, 1);
      CHECK(mark_of(*device, before.stream, &error) == nullptr);
      CHECK(error.find("CUDA_ERROR_ILLEGAL_ADDRESS") != std::string::npos);
    }
    __atomic_store_n(&word, 1u, __ATOMIC_RELEASE);
    before.finish();
    const auto waiting = post(*device, pair.there, gpu::Direction::to_device, received.all());
    // Each of these calls of wait_on() fails; the worker's thread makes none of them while a message waits. The first
    // event is recorded by the persistent kernel, so the failing record is the second.
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
    // A stream that waits proceeds when the message fails.
    CHECK_EQUAL(device->wait_on(waiting, after.stream, &error), Status::ok);
    pair.there->close();
    CHECK_EQUAL(end_of(waiting), Status::cancelled);
    after.finish();
  }
  CHECK_EQUAL(live(), 0);
}

// Each message depends on work that waits for the previous message; no message may block another.
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
      receives.push_back(post(*device, pair.there, gpu::Direction::to_device, received.back()->all(), mark));
      CHECK_EQUAL(device->wait_on(receives.back(), stream.stream, &error), Status::ok);
    }
    for (const auto& one : sent)
      CHECK_EQUAL(end_of(post(*device, pair.here, gpu::Direction::to_host, one->all())), Status::ok);
    for (std::size_t i = 0; i < receives.size(); ++i) {
      CHECK_EQUAL(end_of(receives[i]), Status::ok);
      CHECK(received[i]->holds(*sent[i]));
    }
    // All bytes of the second message have arrived, but must not be written to its target before the first message.
    {
      const Memory early(pattern(1'000, 77)), place(untouched(1'000));
      CallersStream busy(0);
      const auto first = post(*device, pair.here, gpu::Direction::to_device, place.all());
      CHECK_EQUAL(device->wait_on(first, busy.stream, &error), Status::ok);
      const Memory target(untouched(1'000));
      const gpu::Event mark = mark_of(*device, busy.stream, &error);
      const auto second = post(*device, pair.there, gpu::Direction::to_device, target.all(), mark);
      CHECK_EQUAL(end_of(post(*device, pair.here, gpu::Direction::to_host, early.all())), Status::ok);
      CHECK_EQUAL(second->wait(50'000'000), Status::timed_out);
      CHECK(target.holds(Memory({})));
      CHECK_EQUAL(end_of(post(*device, pair.there, gpu::Direction::to_host, early.all())), Status::ok);
      CHECK_EQUAL(end_of(first), Status::ok);
      CHECK_EQUAL(end_of(second), Status::ok);
      CHECK(target.holds(early) && place.holds(early));
    }
    // Messages behind a stream that never proceeds are cancelled at once, and close() does not wait for them.
    CallersStream stuck(0);
    const auto before = post(*device, pair.there, gpu::Direction::to_device, received[0]->all());
    CHECK_EQUAL(device->wait_on(before, stuck.stream, &error), Status::ok);
    const auto behind = post(*device, pair.there, gpu::Direction::to_device, received[1]->all(),
                             mark_of(*device, stuck.stream, &error));
    pair.there->close();
    CHECK_EQUAL(end_of(behind), Status::cancelled);
    CHECK_EQUAL(end_of(before), Status::cancelled);
    stuck.finish();
    const gpu::Stream lent = device->lend_stream(&error);
    CHECK(lent != nullptr);
    device->drop({nullptr, lent});
    CHECK(device->lend_stream(&error) == lent);
    device->drop({nullptr, lent});
    fail_at("cuStreamCreate", 1);
    // Streams created in advance are lent first.
    std::vector<gpu::Stream> all;
    while (const gpu::Stream one = device->lend_stream(&error)) all.push_back(one);
    CHECK(all.size() == 32 && all.front() == lent);
    CHECK(error.find("cuStreamCreate") == 0);
    fail_at(nullptr, 0);
    for (const gpu::Stream one : all) device->drop({nullptr, one});
  }
  CHECK_EQUAL(live(), 0);
}

// The driver queue of a waiting stream may also hold any other stream, so no stream may copy meanwhile.
TEST(gpu__no_stream_copies_while_a_stream_waits) {
  {
    Pair pair({}), second({});
    auto device = worker(0, kTight);
    CallersStream stream(0);
    std::string error;
    const Memory place(untouched(10)), last(pattern(10, 9));
    const auto awaited = post(*device, pair.there, gpu::Direction::to_device, place.all());
    for (const char* attends : {"cuMemcpyDtoHAsync_v2", "cuMemcpyHtoDAsync_v2"}) {
      CHECK_EQUAL(device->wait_on(awaited, stream.stream, &error), Status::ok);
      fail_at(attends, 1);
      // Messages of one ring piece, of three, and of more pieces than the ring has, which wrap around.
      for (const std::size_t bytes : {1, 70'000, 3'000'001}) {
        for (const std::size_t step : {std::size_t{0}, bytes / 3 + 1, std::size_t{1'001}}) {
          const Memory sent(pattern(bytes, static_cast<std::uint32_t>(bytes))), received(untouched(bytes));
          const auto cut = [&](const Memory& memory) {
            if (step == 0) return memory.all();
            auto layout = std::make_shared<gpu::Layout>();
            for (std::size_t at = 0; at < bytes; at += step) layout->add(memory.at() + at, std::min(step, bytes - at));
            return layout;
          };
          const auto receive = post(*device, second.there, gpu::Direction::to_device, cut(received));
          CHECK_EQUAL(end_of(post(*device, second.here, gpu::Direction::to_host, cut(sent))), Status::ok);
          CHECK_EQUAL(end_of(receive), Status::ok);
          CHECK(received.holds(sent));
        }
      }
      fail_at(nullptr, 0);
    }
    // Opening and closing another worker must not make blocking calls either.
    {
      auto other = worker(0, kTight);
      const Memory sent(pattern(300'000, 4)), received(untouched(300'000));
      const auto receive = post(*other, second.there, gpu::Direction::to_device, received.all());
      CHECK_EQUAL(end_of(post(*other, second.here, gpu::Direction::to_host, sent.all())), Status::ok);
      CHECK_EQUAL(end_of(receive), Status::ok);
    }
    CHECK_EQUAL(end_of(post(*device, pair.here, gpu::Direction::to_host, last.all())), Status::ok);
    CHECK_EQUAL(end_of(awaited), Status::ok);
    stream.finish();
    CHECK(place.holds(last));
  }
  CHECK_EQUAL(live(), 0);
}

// If the device runs launches of the persistent kernel late, each still does its own jobs once and then ends, even if a
// later launch was already told to end.
TEST(gpu__persistent_kernels_that_start_late) {
  std::string error;
  const Memory from(pattern(300, 1)), to(untouched(300));
  {
    const auto shared = gpu::SharedDevice::open(driver(), 0, "any", &error);
    CHECK_EQUAL(error, "");
    gpu::PersistentKernel& kernel = shared->persistent_kernel();
    std::vector<std::uint8_t> ring(300);
    gpu::PersistentKernel::Ticket last = 0;
    for (int round = 0; round < 3; ++round) {
      kernel.wait_begins();
      if (round != 1) {
        const std::lock_guard lock(kernel.mutex());
        CHECK(kernel.takes_copies());
        for (std::size_t i = 0; i < 3; ++i) {
          const auto here = reinterpret_cast<std::uintptr_t>(ring.data()) + 100 * i;
          CHECK_EQUAL(kernel.submit(true, from.at() + 100 * i, 100, here, &last), gpu::kSuccess);
        }
      }
      kernel.wait_ends();
    }
    for (int asked = 0; kernel.query(last) == gpu::kNotReady; ++asked) CHECK(asked < 10'000);
    CHECK_EQUAL(kernel.query(last), gpu::kSuccess);
    CHECK(std::memcmp(ring.data(), pattern(300, 1).data(), 300) == 0);
    // All launches have ended, so that unfinished jobs will never be done.
    for (int asked = 0; kernel.query(last + 1) == gpu::kNotReady; ++asked) CHECK(asked < 10'000);
    CHECK_EQUAL(kernel.query(last + 1), gpu::kLaunchFailed);
  }
  for (const bool blocks : {false, true}) {
    if (blocks) ::setenv("CUDA_LAUNCH_BLOCKING", "1", 1);
    const auto shared = gpu::SharedDevice::open(driver(), 0, "any", &error);
    ::unsetenv("CUDA_LAUNCH_BLOCKING");
    if (!blocks) fail_at("cuLaunchKernel", 1);
    shared->persistent_kernel().wait_begins();
    fail_at(nullptr, 0);
    CHECK(!shared->persistent_kernel().takes_copies());
    shared->persistent_kernel().wait_ends();
  }
  CHECK_EQUAL(live(), 0);
}

// While a stream waits, workers are opened and closed; all of them must reuse the same pinned memory.
TEST(gpu__endpoints_that_come_and_go_while_a_stream_waits) {
  {
    Pair pair({});
    auto device = worker(0, kTight);
    CallersStream stream(0);
    std::string error;
    const Memory place(untouched(10)), last(pattern(10, 9));
    const auto awaited = post(*device, pair.there, gpu::Direction::to_device, place.all());
    CHECK_EQUAL(device->wait_on(awaited, stream.stream, &error), Status::ok);
    static_cast<void>(worker(0, kTight));
    const int once = live();
    for (int i = 0; i < 5; ++i) static_cast<void>(worker(0, kTight));
    CHECK(live() <= once + 5);  // no pinned pool was leaked, only words that streams waited for
    CHECK_EQUAL(end_of(post(*device, pair.here, gpu::Direction::to_host, last.all())), Status::ok);
    CHECK_EQUAL(end_of(awaited), Status::ok);
    stream.finish();
  }
  CHECK_EQUAL(live(), 0);
}

// If the context is destroyed while the persistent kernel has jobs, they end with an error text.
TEST(gpu__a_persistent_kernel_whose_context_goes) {
  {
    Pair pair({}), second({});
    auto device = worker(0, kTight);
    CallersStream stream(0);
    std::string error;
    const Memory sent(pattern(2'000'000, 1)), place(untouched(10));
    std::vector<std::uint8_t> host(sent.size());
    Request* receive = nullptr;
    CHECK_EQUAL(second.there->post_receive(host.data(), host.size(), 0, &receive), Status::ok);
    const auto awaited = post(*device, pair.there, gpu::Direction::to_device, place.all());
    CHECK_EQUAL(device->wait_on(awaited, stream.stream, &error), Status::ok);
    fail_at("cuEventQuery", 4, true);
    const auto send = post(*device, second.here, gpu::Direction::to_host, sent.all());
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
    const auto receive = post(*device, pair.there, gpu::Direction::to_device, received.all());
    int waits = 0;
    while (device->wait_on(receive, stream.stream, &error) == Status::ok) ++waits;
    CHECK_EQUAL(waits, 1024);
    CHECK(error.find("this device has 1,024 waiting streams") == 0);
    CHECK_EQUAL(end_of(post(*device, pair.here, gpu::Direction::to_host, sent.all())), Status::ok);
    CHECK_EQUAL(end_of(receive), Status::ok);
    stream.finish();
  }
}
