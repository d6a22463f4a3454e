// Limits the rate of log lines that other hosts can cause, and states how many lines were left out.
#pragma once

#include <cstdint>
#include <string>

#include "native/engine/log.h"

namespace weft::engine {

class LogLimit {
 public:
  static constexpr std::int64_t kIntervalNs = 10'000'000'000;

  // `lines`: maximum number of lines per kIntervalNs.
  explicit LogLimit(std::int64_t lines = 1) noexcept : lines_(lines) {}

  // When the next line may be written: `now_ns`, or the end of the interval if its lines are used up.
  std::int64_t open_ns(std::int64_t now_ns) const noexcept {
    return written_ == lines_ && now_ns < next_ns_ ? next_ns_ : now_ns;
  }

  void log(std::int64_t now_ns, LogLevel level, const std::string& text) {
    if (now_ns >= next_ns_) {
      next_ns_ = now_ns + kIntervalNs;
      written_ = 0;
    }
    if (written_ == lines_) {
      ++left_out_;
      return;
    }
    ++written_;
    engine::log(level, left_out_ == 0 ? text : text + " (" + std::to_string(left_out_) + " similar lines left out)");
    left_out_ = 0;
  }

 private:
  std::int64_t lines_, written_ = 0;
  std::int64_t next_ns_ = 0;
  std::int64_t left_out_ = 0;
};

}  // namespace weft::engine
