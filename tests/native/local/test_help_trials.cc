// Tests when helpers copy along, on copies that take a given time alone and with help.
#include <cstdint>

#include "native/local/help_trials.h"
#include "tests/native/check.h"

namespace {

using weft::local::HelpTrials;

constexpr std::uint64_t kMb = 1 << 20;

struct Copies {
  HelpTrials trials{};
  std::int64_t alone_ns = 0, helped_ns = 0;
  std::uint64_t message_bytes = kMb, helped_bytes = kMb / 2;

  // How many of `count` copies of 1 MiB are made with help.
  int run(int count) {
    int helped = 0;
    for (int i = 0; i < count; ++i) {
      const bool wants = trials.wants_help(message_bytes);
      trials.on_copied(message_bytes, wants, kMb, wants ? helped_bytes : 0, wants ? helped_ns : alone_ns);
      helped += wants ? 1 : 0;
    }
    return helped;
  }
};

}  // namespace

TEST(help_trials__help_that_halves_the_time_is_kept) {
  Copies copies{.alone_ns = 200'000, .helped_ns = 100'000};
  CHECK(copies.run(10'000) > 9'800);
}

TEST(help_trials__help_that_gains_nothing_is_given_up) {
  Copies copies{.alone_ns = 100'000, .helped_ns = 95'000};
  static_cast<void>(copies.run(100));
  CHECK(copies.run(10'000) < 200);
}

TEST(help_trials__what_changes_is_found_again) {
  Copies copies{.alone_ns = 100'000, .helped_ns = 100'000};
  static_cast<void>(copies.run(1'000));
  copies.alone_ns = 200'000;
  static_cast<void>(copies.run(1'000));
  CHECK(copies.run(1'000) > 950);
  copies.alone_ns = 110'000;
  static_cast<void>(copies.run(1'000));
  CHECK(copies.run(1'000) < 50);
}

TEST(help_trials__between_the_bounds_nothing_changes) {
  Copies kept{.alone_ns = 100'000, .helped_ns = 60'000};
  static_cast<void>(kept.run(1'000));
  kept.helped_ns = 80'000;
  CHECK(kept.run(1'000) > 900);
  Copies not_kept{.alone_ns = 100'000, .helped_ns = 90'000};
  static_cast<void>(not_kept.run(1'000));
  not_kept.helped_ns = 80'000;
  CHECK(not_kept.run(1'000) < 100);
}

TEST(help_trials__help_that_comes_too_late_measures_nothing) {
  Copies copies{.alone_ns = 50'000, .helped_ns = 100'000, .helped_bytes = 0};
  CHECK(copies.run(10'000) > 9'800);  // the crew asks for it less and less often
}

TEST(help_trials__sizes_are_measured_apart) {
  Copies copies{.alone_ns = 100'000, .helped_ns = 100'000};
  static_cast<void>(copies.run(1'000));
  copies.message_bytes = 16 * kMb;
  CHECK(copies.trials.wants_help(copies.message_bytes));
  copies.message_bytes = kMb;
  CHECK(!copies.trials.wants_help(copies.message_bytes));
}
