// Tests messages that two ends in one host lend each other in device memory. The device is a fake libcuda
// (fake_cuda.cc), whose handles name memory of one process; tests/device uses real devices and two processes.
#include <algorithm>
#include <cstring>
#include <thread>
#include <vector>

#include "native/gpu/shared_memory.h"
#include "tests/native/gpu_fixture.h"

namespace {

using namespace weft;
using namespace weft::engine;
using namespace weft::message;
using namespace weft::test;
using Bytes = std::vector<std::uint8_t>;

constexpr std::size_t kBytes = 1'000'003;

int mapped() { return fake<int()>("fake_cuda_mapped")(); }

// Two ends in one host, and a worker for each of two devices. Both have tried the other's memory.
struct Lenders {
  RuntimePair pair{{}, false, LocalMode::automatic};
  std::unique_ptr<DeviceWorker> a, b;
  explicit Lenders(const DeviceLimits& limits = kTight) : a(worker(0, limits)), b(worker(1, limits)) { meet(); }

  // Staged messages until both ends can lend.
  void meet() {
    const Memory sent(pattern(1'000, 1)), back(pattern(1'000, 2), 1);
    const std::int64_t until = now_ns() + kPatienceNs;
    while (!pair.here->loans()->can_lend(0) || !pair.there->loans()->can_lend(1)) {
      CHECK(now_ns() < until);
      move(sent, 0);
      const Memory received(untouched(1'000));
      const auto receive = post(*a, pair.here, gpu::Direction::to_device, received.all());
      CHECK_EQUAL(end_of(post(*b, pair.there, gpu::Direction::to_host, back.all())), Status::ok);
      CHECK_EQUAL(end_of(receive), Status::ok);
    }
  }
  // From the first device to the second; `more`: how much longer the receive is.
  void move(const Memory& sent, std::size_t more) {
    const Memory received(untouched(sent.size() + more), 1);
    const auto receive = post(*b, pair.there, gpu::Direction::to_device, received.all());
    const auto send = post(*a, pair.here, gpu::Direction::to_host, sent.all());
    CHECK_EQUAL(end_of(receive), Status::ok);
    CHECK_EQUAL(end_of(send), Status::ok);
    CHECK_EQUAL(receive->bytes(), sent.size());
    CHECK(received.holds(sent));
  }
};

// Posts a send of memory that the test names as it likes.
Status lend(Lenders& ends, LentSend* lent, std::size_t bytes, Request** out) {
  const Status status = ends.pair.here->post_lent_send(lent, bytes, out);
  lent->ready = true;
  if (status == Status::ok) CHECK(ends.pair.here->on_staged(*out, 0));
  return status;
}

gpu::NamedMemory name_of(const Memory& memory) {
  gpu::NamedMemory named;
  const gpu::Current current(driver(), fake<void*(int)>("fake_cuda_context")(0));
  CHECK(gpu::MemoryNames(driver()).name(memory.at(), memory.size(), &named));
  return named;
}

}  // namespace

TEST(device_loans__messages_of_all_sizes_arrive) {
  {
    Lenders ends;
    for (const std::size_t bytes : {1, 16'383, 16'384, 16'385, 262'145, 1'048'577, 9'000'000}) {
      ends.move(Memory(pattern(bytes, static_cast<std::uint32_t>(bytes))), 0);
      ends.move(Memory(pattern(bytes, 7)), 1'000);
    }
    CHECK(mapped() != 0);
    CHECK_EQUAL(ends.a->pinned_bytes_lent(), 0u);
    CHECK_EQUAL(ends.b->pinned_bytes_lent(), 0u);
  }
  CHECK_EQUAL(mapped(), 0);
  CHECK_EQUAL(live(), 0);
}

TEST(device_loans__many_messages_arrive_in_order) {
  {
    Lenders ends;
    std::vector<std::unique_ptr<Memory>> sent, received;
    std::vector<std::shared_ptr<DeviceRequest>> sends, receives;
    for (std::uint32_t i = 0; i < 40; ++i) {
      const std::size_t bytes = i % 3 == 0 ? 1'000 : 20'000 + 1'000 * i;
      sent.push_back(std::make_unique<Memory>(pattern(bytes, i)));
      received.push_back(std::make_unique<Memory>(untouched(bytes), 1));
    }
    std::thread other([&] {
      for (const auto& each : received)
        receives.push_back(post(*ends.b, ends.pair.there, gpu::Direction::to_device, each->all()));
    });
    for (const auto& each : sent) sends.push_back(post(*ends.a, ends.pair.here, gpu::Direction::to_host, each->all()));
    other.join();
    for (std::size_t i = 0; i < sends.size(); ++i) {
      CHECK_EQUAL(end_of(receives[i]), Status::ok);
      CHECK_EQUAL(end_of(sends[i]), Status::ok);
      CHECK(received[i]->holds(*sent[i]));
    }
  }
  CHECK_EQUAL(live(), 0);
}

TEST(device_loans__pieces_of_a_receive_are_filled) {
  {
    Lenders ends;
    const Memory sent(pattern(300'000, 5));
    Memory first(untouched(100'000), 1), second(untouched(7), 1), third(untouched(199'993), 1);
    auto places = std::make_shared<gpu::Layout>();
    for (const Memory* each : {&first, &second, &third}) places->add(each->at(), each->size());
    const auto receive = post(*ends.b, ends.pair.there, gpu::Direction::to_device, places);
    CHECK_EQUAL(end_of(post(*ends.a, ends.pair.here, gpu::Direction::to_host, sent.all())), Status::ok);
    CHECK_EQUAL(end_of(receive), Status::ok);
    Bytes whole(first.data(), first.data() + first.size());
    whole.insert(whole.end(), second.data(), second.data() + second.size());
    whole.insert(whole.end(), third.data(), third.data() + third.size());
    CHECK(whole == pattern(300'000, 5));
  }
  CHECK_EQUAL(live(), 0);
}

TEST(device_loans__host_memory_receives_them) {
  {
    Lenders ends;
    for (const std::size_t bytes : {20'000, 5'000'001, 9'000'000}) {
      Memory sent(pattern(bytes, 3));
      Bytes host(bytes + 1, 0xEE), small(8);
      Request *long_one = nullptr, *short_one = nullptr;
      CHECK_EQUAL(ends.pair.there->post_receive(host.data(), bytes, 0, &long_one), Status::ok);
      CHECK_EQUAL(ends.pair.there->post_receive(small.data(), 8, 0, &short_one), Status::ok);
      const auto send = post(*ends.a, ends.pair.here, gpu::Direction::to_host, sent.all());
      Request* after = nullptr;
      CHECK_EQUAL(ends.pair.here->post_send("12345678", 8, 0, &after), Status::ok);
      CHECK_EQUAL(finish(*ends.pair.there, short_one), Status::ok);
      CHECK_EQUAL(finish(*ends.pair.there, long_one), Status::ok);
      CHECK_EQUAL(end_of(send), Status::ok);
      CHECK_EQUAL(finish(*ends.pair.here, after), Status::ok);
      CHECK(std::memcmp(sent.data(), host.data(), bytes) == 0);
      CHECK_EQUAL(host.back(), 0xEE);
      CHECK(std::memcmp(small.data(), "12345678", 8) == 0);
    }
  }
  CHECK_EQUAL(live(), 0);
}

// Mappings are kept, as closing one may wait for work of others, but not more than a limit.
TEST(device_loans__mappings_are_bounded) {
  {
    Lenders ends;
    std::vector<std::unique_ptr<Memory>> sent;
    for (std::uint32_t i = 0; i < 80; ++i) {
      sent.push_back(std::make_unique<Memory>(pattern(20'000, i)));
      ends.move(*sent.back(), 0);
    }
    CHECK(mapped() > 60 && mapped() <= 2 * 64);
    ends.b.reset();
    CHECK(mapped() <= 64);
    ends.a.reset();
    CHECK_EQUAL(mapped(), 0);
  }
  CHECK_EQUAL(live(), 0);
}

// The sender closes while a loan is copied, and another message waits behind it: the receive ends, and takes no other
// message.
TEST(device_loans__a_loan_that_is_lost_ends_its_receive) {
  Lenders ends;
  const std::size_t bytes = 8'000'000;
  for (int round = 0; round < 40; ++round) {
    const Memory sent(pattern(bytes, 1)), behind(pattern(50'000, 2));
    Memory received(untouched(bytes), 1);
    Bytes host(bytes);
    const bool to_host = round % 2 != 0;
    Request* host_receive = nullptr;
    std::shared_ptr<DeviceRequest> receive;
    if (to_host) {
      CHECK_EQUAL(ends.pair.there->post_receive(host.data(), bytes, 0, &host_receive), Status::ok);
    } else {
      receive = post(*ends.b, ends.pair.there, gpu::Direction::to_device, received.all());
    }
    const auto first = post(*ends.a, ends.pair.here, gpu::Direction::to_host, sent.all());
    const auto second = post(*ends.a, ends.pair.here, gpu::Direction::to_host, behind.all());
    std::this_thread::sleep_for(std::chrono::microseconds(60 * round));
    ends.pair.here->close();
    const Status status = to_host ? finish(*ends.pair.there, host_receive) : end_of(receive);
    CHECK(status == Status::ok || status == Status::connection_closed);
    if (status == Status::ok && to_host) CHECK(host == pattern(bytes, 1));
    if (status == Status::ok && !to_host) CHECK(received.holds(sent));
    static_cast<void>(end_of(first));
    static_cast<void>(end_of(second));
    ends.pair.connect();
    ends.meet();
  }
}

// A receiver that always has two receives for which streams wait still gets to try the sender's memory.
TEST(device_loans__are_tried_while_streams_wait) {
  RuntimePair pair{{}, false, LocalMode::automatic};
  const auto a = worker(0, kTight), b = worker(1, kTight);
  gpu::Stream streams[2] = {};
  const gpu::Current current(driver(), fake<void*(int)>("fake_cuda_context")(1));
  for (gpu::Stream& stream : streams) CHECK_EQUAL(driver().stream_create(&stream, gpu::kNonBlocking), gpu::kSuccess);
  std::vector<std::unique_ptr<Memory>> sent, received;
  std::vector<std::shared_ptr<DeviceRequest>> receives;
  std::string error;
  const std::int64_t until = now_ns() + kPatienceNs;
  for (std::uint32_t i = 0; !pair.here->loans()->can_lend(0) || i < 4; ++i) {
    CHECK(now_ns() < until);
    received.push_back(std::make_unique<Memory>(untouched(30'000), 1));
    receives.push_back(post(*b, pair.there, gpu::Direction::to_device, received.back()->all()));
    CHECK_EQUAL(b->wait_on(receives.back(), streams[i % 2], &error), Status::ok);
    if (i < 1) continue;
    sent.push_back(std::make_unique<Memory>(pattern(30'000, i)));
    CHECK_EQUAL(end_of(post(*a, pair.here, gpu::Direction::to_host, sent.back()->all())), Status::ok);
    CHECK_EQUAL(end_of(receives[i - 1]), Status::ok);
    CHECK(received[i - 1]->holds(*sent.back()));
  }
  const Memory last(pattern(30'000, 99));
  CHECK_EQUAL(end_of(post(*a, pair.here, gpu::Direction::to_host, last.all())), Status::ok);
  CHECK_EQUAL(end_of(receives.back()), Status::ok);
  for (gpu::Stream stream : streams) {
    CHECK_EQUAL(driver().stream_synchronize(stream), gpu::kSuccess);
    CHECK_EQUAL(driver().stream_destroy(stream), gpu::kSuccess);
  }
}

TEST(device_loans__memory_that_cannot_be_shared_is_staged) {
  const auto share = fake<void(int)>("fake_cuda_share");
  {
    Lenders ends;
    share(0);
    const int before = mapped();
    ends.move(Memory(pattern(kBytes, 1)), 0);
    CHECK_EQUAL(mapped(), before);
    share(1);
  }
  {
    share(0);
    RuntimePair pair{{}, false, LocalMode::automatic};
    const auto device = worker(0, kTight);
    for (std::uint32_t i = 0; i < 5; ++i) {
      const Memory sent(pattern(kBytes, i)), received(untouched(kBytes));
      const auto receive = post(*device, pair.there, gpu::Direction::to_device, received.all());
      CHECK_EQUAL(end_of(post(*device, pair.here, gpu::Direction::to_host, sent.all())), Status::ok);
      CHECK_EQUAL(end_of(receive), Status::ok);
      CHECK(received.holds(sent));
    }
    CHECK(!pair.here->loans()->can_lend(0) && !pair.there->loans()->can_lend(0));
    share(1);
  }
  CHECK_EQUAL(live(), 0);
}

// A message of memory that a stream still writes is read afterwards, and written after the work of the receive's
// stream.
TEST(device_loans__streams_come_first) {
  Lenders ends;
  gpu::Stream stream = nullptr;
  Memory sent(untouched(kBytes)), received(untouched(kBytes), 1);
  const Bytes content = pattern(kBytes, 9);
  std::string error;
  {
    const gpu::Current current(driver(), fake<void*(int)>("fake_cuda_context")(0));
    CHECK_EQUAL(driver().stream_create(&stream, gpu::kNonBlocking), gpu::kSuccess);
    CHECK_EQUAL(driver().copy_to_device(sent.at(), content.data(), kBytes, stream), gpu::kSuccess);
  }
  const gpu::Event after = mark_of(*ends.a, stream, &error);
  const auto receive = post(*ends.b, ends.pair.there, gpu::Direction::to_device, received.all());
  const auto send = post(*ends.a, ends.pair.here, gpu::Direction::to_host, sent.all(), after);
  CHECK_EQUAL(end_of(receive), Status::ok);
  CHECK_EQUAL(end_of(send), Status::ok);
  CHECK(std::memcmp(received.data(), content.data(), kBytes) == 0);
  const gpu::Current current(driver(), fake<void*(int)>("fake_cuda_context")(0));
  CHECK_EQUAL(driver().stream_destroy(stream), gpu::kSuccess);
}

// While a stream of the receiver waits, its persistent kernel copies.
TEST(device_loans__arrive_while_a_stream_waits) {
  {
    Lenders ends;
    gpu::Stream stream = nullptr;
    {
      const gpu::Current current(driver(), fake<void*(int)>("fake_cuda_context")(1));
      CHECK_EQUAL(driver().stream_create(&stream, gpu::kNonBlocking), gpu::kSuccess);
    }
    const Memory sent(pattern(kBytes, 4)), received(untouched(kBytes), 1);
    std::string error;
    const auto receive = post(*ends.b, ends.pair.there, gpu::Direction::to_device, received.all());
    CHECK_EQUAL(ends.b->wait_on(receive, stream, &error), Status::ok);
    CHECK_EQUAL(end_of(post(*ends.a, ends.pair.here, gpu::Direction::to_host, sent.all())), Status::ok);
    CHECK_EQUAL(end_of(receive), Status::ok);
    CHECK(received.holds(sent));
    const gpu::Current current(driver(), fake<void*(int)>("fake_cuda_context")(1));
    CHECK_EQUAL(driver().stream_synchronize(stream), gpu::kSuccess);
    CHECK_EQUAL(driver().stream_destroy(stream), gpu::kSuccess);
  }
  CHECK_EQUAL(live(), 0);
}

// Whichever end closes, nothing is written to a buffer after its message has ended, and the next connection works.
TEST(device_loans__a_close_in_the_middle) {
  Lenders ends;
  for (int round = 0; round < 12; ++round) {
    const Memory sent(pattern(kBytes, 1));
    Memory received(untouched(kBytes), 1);
    Bytes host(kBytes, 0xEE);
    Request* host_receive = nullptr;
    const auto receive = post(*ends.b, ends.pair.there, gpu::Direction::to_device, received.all());
    CHECK_EQUAL(ends.pair.there->post_receive(host.data(), kBytes, 0, &host_receive), Status::ok);
    const auto first = post(*ends.a, ends.pair.here, gpu::Direction::to_host, sent.all());
    const auto second = post_unless_closed(*ends.a, ends.pair.here, gpu::Direction::to_host, sent.all());
    if (round % 3 != 0) std::this_thread::sleep_for(std::chrono::microseconds(100 * round));
    (round % 2 == 0 ? ends.pair.here : ends.pair.there)->close();
    if (end_of(receive) == Status::ok) CHECK(received.holds(sent));
    const bool whole = finish(*ends.pair.there, host_receive) == Status::ok;
    const Bytes then(received.data(), received.data() + kBytes), host_then = host;
    if (whole) CHECK(host == pattern(kBytes, 1));
    static_cast<void>(end_of(first));
    if (second != nullptr) static_cast<void>(end_of(second));
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    CHECK(std::memcmp(then.data(), received.data(), kBytes) == 0);
    CHECK(host == host_then);
    ends.pair.connect();
    ends.meet();
  }
}

TEST(device_loans__a_failing_driver_ends_the_connection_alone) {
  const std::size_t bytes = kBytes;
  for (const char* symbol : {"cuIpcOpenMemHandle_v2", "cuMemcpyDtoDAsync_v2"}) {
    Lenders ends;
    const Memory sent(pattern(bytes, 1)), received(untouched(bytes), 1);
    fail_at(symbol, 1);
    const auto receive = post(*ends.b, ends.pair.there, gpu::Direction::to_device, received.all());
    const auto send = post(*ends.a, ends.pair.here, gpu::Direction::to_host, sent.all());
    CHECK_EQUAL(end_of(receive), Status::device_error);
    CHECK(end_of(send) != Status::ok);
    fail_at(nullptr, 0);
    CHECK(receive->error().find("CUDA_ERROR_ILLEGAL_ADDRESS") != std::string::npos);
    ends.pair.connect();
    ends.move(sent, 0);
  }
  CHECK_EQUAL(live(), 0);
}

// A peer that names memory beyond an allocation, or none, ends its connection; the GPU reads nothing there.
TEST(device_loans__what_a_hostile_peer_names_is_checked) {
  const Memory sent(pattern(kBytes, 1));
  const gpu::NamedMemory right = name_of(sent);
  std::vector<gpu::NamedMemory> wrong(5, right);
  wrong[0].offset_bytes = kBytes;
  wrong[1].offset_bytes = ~std::uint64_t{0} - 8;
  std::fill(std::begin(wrong[2].handle.bytes), std::end(wrong[2].handle.bytes), std::uint8_t{0xA5});
  wrong[3].handle.bytes[8] ^= 1;
  wrong[4].offset_bytes = 65;  // past the guard bytes of Memory
  wrong[4].allocation_bytes = ~std::uint64_t{0};
  for (const gpu::NamedMemory& each : wrong) {
    for (const bool to_host : {false, true}) {
      Lenders ends;
      Memory received(untouched(kBytes), 1);
      Bytes host(kBytes, 0xEE);
      Request *receive = nullptr, *send = nullptr;
      std::shared_ptr<DeviceRequest> device_receive;
      if (to_host) {
        CHECK_EQUAL(ends.pair.there->post_receive(host.data(), kBytes, 0, &receive), Status::ok);
      } else {
        device_receive = post(*ends.b, ends.pair.there, gpu::Direction::to_device, received.all());
      }
      LentSend lent;
      std::memcpy(lent.loan.bytes.data(), &each, sizeof each);
      CHECK_EQUAL(lend(ends, &lent, kBytes, &send), Status::ok);
      CHECK_EQUAL(to_host ? finish(*ends.pair.there, receive) : end_of(device_receive), Status::device_error);
      CHECK(finish(*ends.pair.here, send) != Status::ok);
      CHECK(received.holds(Memory({})));
      CHECK(host == Bytes(kBytes, 0xEE));
      ends.pair.connect();
      ends.move(sent, 0);
    }
  }
  CHECK_EQUAL(live(), 0);
}

// A loan that this process has not accepted, and one of no bytes.
TEST(device_loans__a_loan_out_of_place_ends_the_connection) {
  RuntimePair pair{{}, false, LocalMode::automatic};
  Bytes host(kBytes);
  Request *receive = nullptr, *send = nullptr;
  LentSend lent;
  lent.ready = true;
  CHECK_EQUAL(pair.there->post_receive(host.data(), kBytes, 0, &receive), Status::ok);
  CHECK_EQUAL(pair.here->post_lent_send(&lent, kBytes, &send), Status::ok);
  CHECK_EQUAL(finish(*pair.there, receive), Status::connection_closed);
  CHECK(finish(*pair.here, send) != Status::ok);
}

TEST(device_loans__a_worker_that_ends_gives_its_loans_back) {
  {
    Lenders ends;
    const Memory sent(pattern(kBytes, 1)), received(untouched(kBytes), 1);
    const auto receive = post(*ends.b, ends.pair.there, gpu::Direction::to_device, received.all());
    const auto send = post(*ends.a, ends.pair.here, gpu::Direction::to_host, sent.all());
    ends.b.reset();
    CHECK(receive->done());
    static_cast<void>(end_of(send));
    // A loan for host memory that nobody takes any more.
    ends.b = worker(1, kTight);
    ends.pair.connect();
    ends.meet();
    Bytes host(kBytes);
    Request* request = nullptr;
    CHECK_EQUAL(ends.pair.there->post_receive(host.data(), kBytes, 0, &request), Status::ok);
    ends.b.reset();
    const auto late = post(*ends.a, ends.pair.here, gpu::Direction::to_host, sent.all());
    CHECK_EQUAL(finish(*ends.pair.there, request), Status::device_unavailable);
    CHECK(end_of(late) != Status::ok);
  }
  CHECK_EQUAL(live(), 0);
}
