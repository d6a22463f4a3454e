// Tests that callers that poll their requests, as NCCL does, run the loops of engines for short messages, and that
// everything continues when they stop. Every loop has a time limit.
#include <algorithm>
#include <chrono>
#include <thread>
#include <vector>

#include "native/message/runtime.h"
#include "tests/native/check.h"
#include "tests/native/runtime_pair.h"

namespace {

using namespace weft;
using namespace weft::engine;
using namespace weft::message;

using Pair = weft::test::RuntimePair;
using weft::test::kPatienceNs;
using weft::test::pattern;

// Messages of one direction, of which some are outstanding at a time.
class Stream {
 public:
  Stream(Connection* connection, bool sends, std::size_t capacity, std::vector<std::size_t> sizes)
      : connection_(connection), sends_(sends), capacity_(capacity), sizes_(std::move(sizes)) {}

  bool done() const { return completed_ == sizes_.size(); }
  std::size_t wrong() const { return wrong_; }

  // Posts what there is room for, and polls each outstanding request once.
  void step() {
    while (posted_ < sizes_.size() && posted_ - completed_ < kOutstanding) {
      Slot& slot = slots_[posted_ % kOutstanding];
      const std::size_t bytes = sizes_[posted_];
      slot.bytes = sends_ ? pattern(bytes, seed(posted_)) : std::vector<std::uint8_t>(std::max(bytes, capacity_), 0xEE);
      const Status status = sends_ ? connection_->post_send(slot.bytes.data(), bytes, 0, &slot.request)
                                   : connection_->post_receive(slot.bytes.data(), slot.bytes.size(), 0, &slot.request);
      if (status == Status::would_block) break;
      CHECK_EQUAL(status, Status::ok);
      ++posted_;
    }
    for (std::size_t i = completed_; i < posted_; ++i) {
      Request* const request = slots_[i % kOutstanding].request;
      if (!request->done()) connection_->progress(*request);
    }
    while (completed_ < posted_ && slots_[completed_ % kOutstanding].request->done()) take();
  }

 private:
  static constexpr std::size_t kOutstanding = 8;
  struct Slot {
    std::vector<std::uint8_t> bytes;
    Request* request = nullptr;
  };
  static std::uint32_t seed(std::size_t number) { return static_cast<std::uint32_t>(number * 31); }
  void take() {
    Slot& slot = slots_[completed_ % kOutstanding];
    const std::size_t bytes = sizes_[completed_];
    if (slot.request->status() != Status::ok || slot.request->bytes() != bytes) ++wrong_;
    slot.bytes.resize(bytes);
    if (slot.bytes != pattern(bytes, seed(completed_))) ++wrong_;
    connection_->release(slot.request);
    ++completed_;
  }

  Connection* const connection_;
  const bool sends_;
  const std::size_t capacity_;
  const std::vector<std::size_t> sizes_;
  std::size_t posted_ = 0, completed_ = 0, wrong_ = 0;
  Slot slots_[kOutstanding];
};

std::vector<std::size_t> mixed(std::size_t count, const std::vector<std::size_t>& sizes) {
  std::vector<std::size_t> made(count);
  for (std::size_t i = 0; i < count; ++i) made[i] = sizes[i % sizes.size()];
  return made;
}

// Polls a direction there and one back, one thread for both ends.
void exchange(Connection& here, Connection& there, const std::vector<std::size_t>& sizes, std::size_t capacity) {
  Stream streams[] = {{&here, true, 0, sizes},
                      {&there, false, capacity, sizes},
                      {&there, true, 0, sizes},
                      {&here, false, capacity, sizes}};
  bool more = true;
  for (const std::int64_t until = now_ns() + kPatienceNs; more;) {
    more = false;
    for (Stream& stream : streams) {
      stream.step();
      more |= !stream.done();
    }
    CHECK(now_ns() < until);
  }
  for (const Stream& stream : streams) CHECK_EQUAL(stream.wrong(), 0u);
}

Knobs engines(int count) {
  Knobs knobs;
  knobs.engines = count;
  return knobs;
}

}  // namespace

TEST(polling_callers__move_short_messages) {
  Pair pair(engines(2));
  exchange(*pair.here, *pair.there, mixed(4'000, {8, 0, 1, 4096, 8193, 65'536}), 0);
}

// Receives whose capacity is that of long messages, as NCCL posts them, and long messages among short ones.
TEST(polling_callers__move_short_and_long_messages) {
  Pair pair(engines(4));
  exchange(*pair.here, *pair.there, mixed(80, {8, 8, 300'000, 8, 65'536, 65'537, 8, 1'000'000}), 1 << 20);
  exchange(*pair.here, *pair.there, mixed(200, {8, 300'000}), 0);
}

TEST(polling_callers__with_faults) {
  Knobs knobs = engines(2);
  knobs.fault_loss = 0.02;
  knobs.fault_reorder = 0.02;
  knobs.fault_duplicate = 0.02;
  Pair pair(knobs);
  exchange(*pair.here, *pair.there, mixed(500, {8, 4096, 100'000}), 0);
}

TEST(polling_callers__that_never_run_engines) {
  Knobs knobs = engines(2);
  knobs.poll_ns = 0;
  Pair pair(knobs);
  exchange(*pair.here, *pair.there, mixed(500, {8, 100'000}), 0);
}

// Several threads poll requests of connections that share an engine.
TEST(polling_callers__share_an_engine) {
  Pair pair(engines(1));
  CHECK(weft::test::on_connections(
      &pair, 3, [](Connection& here, Connection& there) { exchange(here, there, mixed(500, {8, 4096, 100'000}), 0); }));
}

// Nobody polls for what was posted last: the engine's thread sees to it.
TEST(polling_callers__that_go_away_leave_the_loop_to_its_thread) {
  Pair pair(engines(2));
  for (const std::size_t bytes : {8, 4096, 65'536, 1'000'000}) {
    exchange(*pair.here, *pair.there, mixed(50, {8}), 0);
    auto sent = pattern(bytes, 7);
    std::vector<std::uint8_t> received(bytes, 0xEE);
    Request *send = nullptr, *receive = nullptr;
    CHECK_EQUAL(pair.there->post_receive(received.data(), bytes, 0, &receive), Status::ok);
    CHECK_EQUAL(pair.here->post_send(sent.data(), bytes, 0, &send), Status::ok);
    for (const std::int64_t until = now_ns() + kPatienceNs; !send->done() || !receive->done();) {
      std::this_thread::sleep_for(std::chrono::microseconds(50));
      CHECK(now_ns() < until);
    }
    CHECK(sent == received);
    pair.here->release(send);
    pair.there->release(receive);
  }
}

TEST(polling_callers__see_that_the_connection_was_closed) {
  Pair pair(engines(2));
  exchange(*pair.here, *pair.there, mixed(100, {8}), 0);
  std::vector<std::uint8_t> received(8);
  Request* receive = nullptr;
  CHECK_EQUAL(pair.here->post_receive(received.data(), received.size(), 0, &receive), Status::ok);
  std::thread closer([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));  // so that it polls; an earlier close is seen as well
    pair.there->close();
  });
  const std::int64_t until = now_ns() + kPatienceNs;
  while (!receive->done() && now_ns() < until) pair.here->progress(*receive);
  closer.join();
  CHECK(receive->done());
  CHECK(receive->status() != Status::ok);
  pair.here->release(receive);
  pair.connect();
  exchange(*pair.here, *pair.there, mixed(20, {8, 100'000}), 0);
}
