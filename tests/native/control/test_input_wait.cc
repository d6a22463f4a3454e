// Tests that a wait for input ends with input, and after its pause, whether it spins or sleeps.
#include <sys/eventfd.h>
#include <unistd.h>

#include <thread>

#include "native/control/input_wait.h"
#include "tests/native/asleep.h"
#include "tests/native/check.h"

using weft::control::InputWait;
using weft::engine::now_ns;

namespace {

constexpr std::int64_t kMs = 1'000'000, kSpinNs = 1'000'000'000, kPatienceNs = 60'000'000'000;
constexpr int kPatienceMs = 60'000;

// An eventfd, to be watched for input.
class Bell {
 public:
  Bell() { watched_.fd = ::eventfd(0, EFD_NONBLOCK); }
  ~Bell() { ::close(watched_.fd); }
  Bell(const Bell&) = delete;
  Bell& operator=(const Bell&) = delete;

  void ring() {
    const std::uint64_t one = 1;
    CHECK(::write(watched_.fd, &one, sizeof one) == sizeof one);
  }
  pollfd* watched() { return &watched_; }
  bool rang() const { return (watched_.revents & POLLIN) != 0; }

 private:
  pollfd watched_{-1, POLLIN, 0};
};

// Waits while another thread rings after some time. Returns whether the wait saw it.
bool hears(InputWait* wait, int pause_ms) {
  Bell bell;
  std::thread ringer([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));  // so that it waits; an earlier ring ends it as well
    bell.ring();
  });
  wait->wait(bell.watched(), 1, pause_ms, now_ns());
  ringer.join();
  return bell.rang();
}

}  // namespace

TEST(input_wait__input_ends_it_while_it_spins) {
  InputWait wait(kSpinNs);
  CHECK(hears(&wait, -1));
  CHECK(hears(&wait, kPatienceMs));
}

TEST(input_wait__input_ends_it_while_it_sleeps) {
  InputWait wait(0);
  CHECK(hears(&wait, -1));
  CHECK(hears(&wait, kPatienceMs));
}

TEST(input_wait__input_that_is_there_ends_it_at_once) {
  for (const std::int64_t spin_ns : {std::int64_t{0}, kSpinNs}) {
    InputWait wait(spin_ns);
    Bell bell;
    bell.ring();
    for (const int pause_ms : {-1, 0, kPatienceMs}) {
      bell.watched()->revents = 0;
      wait.wait(bell.watched(), 1, pause_ms, now_ns());
      CHECK(bell.rang());
    }
  }
}

TEST(input_wait__spinning_ends_with_the_pause) {
  InputWait wait(kPatienceNs);
  Bell bell;
  const std::int64_t begun_ns = now_ns();
  wait.wait(bell.watched(), 1, 5, begun_ns);
  CHECK(!bell.rang());
  CHECK(now_ns() >= begun_ns + 5 * kMs);
}

TEST(input_wait__a_pause_without_spinning_is_slept) {
  InputWait wait(0);
  Bell bell;
  const std::int64_t begun_ns = now_ns();
  wait.wait(bell.watched(), 1, 1, begun_ns);
  CHECK(now_ns() >= begun_ns + kMs);
}

TEST(input_wait__an_event_long_ago_lets_it_sleep_at_once) {
  InputWait wait(kPatienceNs);
  Bell bell;
  bool slept = false;
  std::thread watcher([&, waiting = weft::test::this_thread()] {
    slept = weft::test::falls_asleep(waiting);
    bell.ring();
  });
  wait.wait(bell.watched(), 1, kPatienceMs, now_ns() - 2 * kPatienceNs);
  watcher.join();
  CHECK(slept);
}

TEST(input_wait__between_two_looks_it_does_other_work_only_while_it_spins) {
  Bell bell;
  int turns = 0;
  // It stops to spin if another thread needs the core: then once more.
  for (const std::int64_t until_ns = now_ns() + kPatienceNs; !bell.rang();) {
    CHECK(now_ns() < until_ns);
    InputWait spins(kSpinNs);
    spins.wait(bell.watched(), 1, 20, now_ns(), [&] {
      if (++turns == 3) bell.ring();
    });
  }
  CHECK_EQUAL(turns, 3);
  InputWait sleeps(0);
  sleeps.wait(bell.watched(), 1, kPatienceMs, now_ns(), [&] { ++turns; });
  CHECK_EQUAL(turns, 3);
}
