// The last refusal of a peer, for a caller that waits for one in vain. Any thread may call it.
#pragma once

#include <cstdint>
#include <mutex>
#include <string>

namespace weft::control {

class LastRefusal {
 public:
  void set(std::int64_t now_ns, const std::string& text) {
    const std::lock_guard<std::mutex> lock(mutex_);
    text_ = text;
    at_ns_ = now_ns;
  }
  // The text of a refusal in the last `within_ns`; empty if there was none.
  std::string text(std::int64_t now_ns, std::int64_t within_ns) const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return now_ns - at_ns_ <= within_ns ? text_ : std::string();
  }

 private:
  mutable std::mutex mutex_;
  std::string text_;  // empty: no peer was refused
  std::int64_t at_ns_ = 0;
};

}  // namespace weft::control
