// Tests the closing of a flow: a close packet is repeated until confirmed or given up, and a closed flow stays closed.
#include "native/core/closer.h"
#include "tests/native/check.h"

using namespace weft::core;
using weft::Status;
using State = Closer::State;

TEST(closer__says_it_again_with_growing_pauses_up_to_the_bound) {
  Closer closer;
  CHECK(!closer.poll(0, 1000, 8000));
  CHECK_EQUAL(closer.poll_timeout(), kNever);
  closer.close(Status::cancelled, 100, 1'000'000);
  i64 now_ns = 100;
  for (const i64 pause_ns : {1000, 2000, 4000, 8000, 8000, 8000}) {
    CHECK_EQUAL(closer.poll_timeout(), now_ns);
    CHECK(closer.poll(now_ns, 1000, 8000));
    CHECK(!closer.poll(now_ns + pause_ns - 1, 1000, 8000));
    now_ns += pause_ns;
  }
  CHECK(closer.state() == State::closing);
}

TEST(closer__gives_up_after_its_patience) {
  Closer closer;
  closer.close(Status::cancelled, 0, 50'000);
  int said = 0;
  for (i64 now_ns = 0; closer.state() == State::closing; now_ns = closer.poll_timeout()) {
    said += closer.poll(now_ns, 1000, 8000) ? 1 : 0;
    CHECK(now_ns < 60'000);
  }
  CHECK(said > 5);
  CHECK_EQUAL(closer.poll_timeout(), kNever);
}

TEST(closer__the_first_reason_stands) {
  Closer closer;
  closer.close(Status::cancelled, 0, 1000);
  closer.close(Status::peer_dead, 10, 1000);
  CHECK(closer.reason() == Status::cancelled);
}

TEST(closer__confirmed_or_closed_by_the_peer_is_the_end) {
  Closer confirmed;
  confirmed.on_confirm();  // a stray packet: no close was sent
  CHECK(confirmed.state() == State::open);
  confirmed.close(Status::cancelled, 0, 1000);
  confirmed.on_confirm();
  CHECK(confirmed.state() == State::closed);
  CHECK(!confirmed.poll(10'000, 1, 1));
  Closer passive;
  passive.on_peer_close();
  CHECK(passive.state() == State::closed);
  passive.close(Status::cancelled, 0, 1000);
  CHECK(passive.state() == State::closed);
  CHECK_EQUAL(passive.poll_timeout(), kNever);
}
