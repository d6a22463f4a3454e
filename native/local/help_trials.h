// Decides whether other threads share the copying of a message. Where a message is in memory, one core copies fewer
// bytes a second than memory delivers, and help makes it faster; where it is in the caches of the core that copies,
// help makes it slower. So the receiver measures both in its own traffic.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "native/local/lending.h"

namespace weft::local {

class HelpTrials {
 public:
  // Whether to ask for help with the next copy of a message of `message_bytes`. Now and then the answer is the other
  // one for a few copies, to measure them.
  bool wants_help(std::uint64_t message_bytes) noexcept {
    Class& kind = classes_[size_class(message_bytes)];
    if (kind.trial == 0 && --kind.left == 0) {
      kind.trial = kCopies;
      kind.left = kind.pause = std::min(kind.pause * 2, kPauseMax);
    }
    return kind.helped_is_better == (kind.trial == 0);
  }
  // A copy for which wants_help() was asked, and its answer. `helped_bytes`: what helpers have copied of `bytes`.
  void on_copied(std::uint64_t message_bytes, bool wanted, std::uint64_t bytes, std::uint64_t helped_bytes,
                 std::int64_t taken_ns) noexcept {
    Class& kind = classes_[size_class(message_bytes)];
    const bool trial = kind.trial != 0;
    // The first copy of a trial is left out, as it finds other caches than those after it. Help that came too late, as
    // no core was idle, measures nothing.
    const bool counts =
        bytes >= kLendBytes && !(trial && kind.trial == kCopies) && (!wanted || helped_bytes > bytes / 8);
    if (counts) (wanted ? kind.helped : kind.alone).add(taken_ns * 1'000 / static_cast<std::int64_t>(bytes / 1'024));
    if (trial && --kind.trial == 0) decide(&kind);
  }

 private:
  static constexpr std::uint32_t kCopies = 4;  // of a trial
  static constexpr std::uint32_t kPauseMin = 16, kPauseMax = 256;
  // Help is taken up if it shortens the time to this part, and given up above the second bound: three threads that take
  // three quarters of the time take more than twice the CPU time.
  static constexpr std::int64_t kTakeUpPercent = 75, kGiveUpPercent = 85;

  struct Samples {
    static constexpr std::size_t kCount = kCopies - 1;
    std::array<std::int64_t, kCount> ps_per_kb{};  // a kilobyte of 1,024 bytes
    std::size_t count = 0;
    void add(std::int64_t sample) noexcept { ps_per_kb[count++ % kCount] = sample; }
    bool enough() const noexcept { return count >= kCount; }
    // The least one: other programs only make it longer.
    std::int64_t best() const noexcept { return *std::min_element(ps_per_kb.begin(), ps_per_kb.end()); }
  };
  struct Class {
    Samples alone, helped;
    bool helped_is_better = true;
    std::uint32_t left = kPauseMin, pause = kPauseMin;  // copies until the next trial
    std::uint32_t trial = 0;                            // copies that are left of the trial
  };

  static void decide(Class* kind) noexcept {
    if (!kind->alone.enough() || !kind->helped.enough()) return;
    const std::int64_t percent = kind->helped_is_better ? kGiveUpPercent : kTakeUpPercent;
    const bool better = kind->helped.best() * 100 < kind->alone.best() * percent;
    if (better == kind->helped_is_better) return;
    kind->helped_is_better = better;
    kind->left = kind->pause = kPauseMin;
  }

  std::array<Class, kSizeClasses> classes_;
};

}  // namespace weft::local
