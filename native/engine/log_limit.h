// At most one log line an interval for what strangers can cause, with the number of those that were left out.
// A flood of them costs counters and no disk.
#pragma once

#include <cstdint>
#include <string>

#include "native/engine/log.h"

namespace weft::engine {

class LogLimit {
 public:
  void log(std::int64_t now_ns, LogLevel level, const std::string& text) {
    if (now_ns < next_ns_) {
      ++left_out_;
      return;
    }
    next_ns_ = now_ns + kIntervalNs;
    engine::log(level, left_out_ == 0 ? text : text + " (and " + std::to_string(left_out_) + " more like it before)");
    left_out_ = 0;
  }

 private:
  static constexpr std::int64_t kIntervalNs = 10'000'000'000;
  std::int64_t next_ns_ = 0;
  std::int64_t left_out_ = 0;
};

}  // namespace weft::engine
