// Which long messages are lent, and which pass through the ring: what is faster depends on the host and on whether the
// messages are in its caches, so the receiver measures both in its own traffic and advises the sender.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

namespace weft::local {

// Messages from this size on may be lent: shorter ones cost more CPU that way (bench local).
inline constexpr std::uint64_t kLendBytes = 128 * 1024;
inline constexpr std::size_t kSizeClasses = 8;  // from 128 KB, 256 KB and so on; the last one has no end
inline std::size_t size_class(std::uint64_t bytes) noexcept {
  const auto width = static_cast<std::size_t>(std::bit_width(bytes / kLendBytes));
  return std::min(std::max<std::size_t>(width, 1) - 1, kSizeClasses - 1);
}

// The sender's part: follows the advice, and now and then sends a few messages the other way, for the receiver to
// measure.
class LendingTrials {
 public:
  static constexpr std::uint32_t kMessages = 4;  // of a trial; the receiver leaves out the first one
  // Whether the next message of `bytes`, which may be lent, is to be. `advice`: as the receiver wrote it, any bits.
  bool lends(std::uint64_t bytes, std::uint32_t advice) noexcept {
    const std::size_t index = size_class(bytes);
    const bool ring = (advice >> index & 1) != 0;
    State& state = states_[index];
    if (ring != state.ring) state = {ring, kPauseMin, kPauseMin, 0};
    if (state.trial == 0 && --state.left != 0) return !ring;
    if (state.trial == 0) {
      state.trial = kMessages;
      state.left = state.pause = std::min(state.pause * 2, kPauseMax);
    }
    --state.trial;
    return ring;
  }

 private:
  // Messages between trials. With the longest pause, a trial that is twice as slow costs 3 % of the time.
  static constexpr std::uint32_t kPauseMin = 16, kPauseMax = 128;
  struct State {
    bool ring = false;
    std::uint32_t left = kPauseMin, pause = kPauseMin;
    std::uint32_t trial = 0;  // messages that are left of the trial
  };
  std::array<State, kSizeClasses> states_;
};

// The receiver's part: how long messages take that follow each other without a pause.
class LendingRates {
 public:
  // A long message begins to move.
  void on_begin(std::int64_t now_ns) noexcept { follows_ = waited_ || now_ns - end_ns_ < kPauseNs; }
  // It has moved. `next_waits`: the next one has arrived, and has a receive. True: advice() is another one now.
  bool on_end(bool lent, std::uint64_t bytes, std::int64_t now_ns, bool next_waits) noexcept {
    const std::int64_t taken_ns = now_ns - end_ns_;
    const bool counts = follows_ && lent == lent_ && size_class(bytes) == class_;
    class_ = size_class(bytes);
    lent_ = lent;
    end_ns_ = now_ns;
    waited_ = next_waits;
    return counts && on_sample(bytes, taken_ns);
  }
  // After a message that is not measured.
  void on_other() noexcept { class_ = kSizeClasses; }
  // A bit for each class: the ring is better.
  std::uint32_t advice() const noexcept { return advice_; }

 private:
  static constexpr std::int64_t kPauseNs = 10'000;
  static constexpr std::size_t kSamples = LendingTrials::kMessages - 1;
  // The ring costs two copies, by two threads, where a lent message costs one. So these bounds, in percent of the time
  // of lent messages, allow it a quarter more CPU time, or half, where it is the faster one by far.
  static constexpr std::int64_t kTakeUpPercent = 62, kGiveUpPercent = 75;

  struct Samples {
    std::array<std::int64_t, kSamples> ps_per_kb{};  // a kilobyte of 1,024 bytes
    std::size_t count = 0;
    void add(std::int64_t sample) noexcept { ps_per_kb[count++ % kSamples] = sample; }
    // The least one: other programs only make it longer.
    std::int64_t best() const noexcept { return *std::min_element(ps_per_kb.begin(), ps_per_kb.end()); }
  };

  bool on_sample(std::uint64_t bytes, std::int64_t taken_ns) noexcept {
    auto& [ring, lent] = classes_[class_];
    (lent_ ? lent : ring).add(taken_ns * 1'000 / static_cast<std::int64_t>(bytes / 1'024));
    const std::uint32_t bit = 1u << class_;
    const bool by_ring = (advice_ & bit) != 0;
    // Only after a trial: samples of the way that is not in use may be old.
    if (lent_ != by_ring || (lent_ ? lent : ring).count % kSamples != 0) return false;
    if (ring.count < kSamples || lent.count < kSamples) return false;
    const bool better = ring.best() * 100 < lent.best() * (by_ring ? kGiveUpPercent : kTakeUpPercent);
    advice_ = better ? advice_ | bit : advice_ & ~bit;
    return better != by_ring;
  }

  struct Class {
    Samples ring, lent;
  };
  std::array<Class, kSizeClasses> classes_;
  std::size_t class_ = kSizeClasses;  // of the last message; kSizeClasses: it was not measured
  bool lent_ = false;
  bool follows_ = false, waited_ = false;
  std::int64_t end_ns_ = 0;
  std::uint32_t advice_ = 0;
};

}  // namespace weft::local
