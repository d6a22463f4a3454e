// Tests what a process that has no free descriptors does with peers that connect.
#include <dirent.h>

#include "native/control/accept_gate.h"
#include "tests/native/check.h"

using weft::Status;
using weft::control::AcceptGate;

namespace {

constexpr std::int64_t kMs = 1'000'000, kNow = 1'000'000'000;

int descriptors() {
  int count = 0;
  DIR* directory = ::opendir("/proc/self/fd");
  while (::readdir(directory) != nullptr) ++count;
  ::closedir(directory);
  return count;
}

}  // namespace

TEST(accept_gate__peers_wait_for_a_second_before_they_are_turned_away) {
  AcceptGate gate;
  CHECK(!gate.turns_away(kNow));
  gate.on_failed(kNow, Status::out_of_descriptors, "full");
  CHECK(!gate.turns_away(kNow + 999 * kMs));
  gate.on_failed(kNow + 999 * kMs, Status::out_of_descriptors, "full");
  CHECK(gate.turns_away(kNow + 1000 * kMs));
  gate.on_accepted();
  CHECK(!gate.turns_away(kNow + 2000 * kMs));
  gate.on_failed(kNow + 2000 * kMs, Status::out_of_descriptors, "full");
  CHECK(!gate.turns_away(kNow + 2001 * kMs));  // the first failure after a success is less than a second old
}

TEST(accept_gate__says_why_until_an_accept_succeeds_or_it_is_long_ago) {
  AcceptGate gate;
  std::string text;
  CHECK_EQUAL(gate.problem(kNow, 100 * kMs, &text), Status::ok);
  gate.on_failed(kNow, Status::out_of_memory, "no memory");
  CHECK_EQUAL(gate.problem(kNow + 100 * kMs, 100 * kMs, &text), Status::out_of_memory);
  CHECK_EQUAL(text, "no memory");
  CHECK_EQUAL(gate.problem(kNow + 101 * kMs, 100 * kMs, &text), Status::ok);
  gate.on_accepted();
  CHECK_EQUAL(gate.problem(kNow, 100 * kMs, &text), Status::ok);
}

TEST(accept_gate__a_pause_ends_once) {
  AcceptGate gate;
  CHECK(!gate.resume_due(kNow));
  CHECK(gate.pause(kNow));
  CHECK(!gate.pause(kNow + kMs));  // false: the gate is paused already
  CHECK(gate.is_paused());
  CHECK(!gate.resume_due(kNow + 99 * kMs));
  CHECK(gate.resume_due(kNow + 100 * kMs));
  CHECK(!gate.is_paused());
  CHECK(!gate.resume_due(kNow + 200 * kMs));
}

TEST(accept_gate__the_spare_descriptor_is_taken_once_and_never_leaks) {
  const int before = descriptors();
  {
    AcceptGate gate;
    CHECK(!gate.take_spare());
    gate.open_spare();
    gate.open_spare();
    CHECK_EQUAL(descriptors(), before + 1);
    CHECK(gate.take_spare());
    CHECK_EQUAL(descriptors(), before);
    CHECK(!gate.take_spare());
    gate.open_spare();
  }
  CHECK_EQUAL(descriptors(), before);
}
