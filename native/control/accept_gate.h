// Accepting without descriptors or memory: when to accept again, when to turn peers away instead of letting them wait,
// and the spare descriptor that one peer at a time is turned away with.
#pragma once

#include <cstdint>
#include <string>

#include "native/core/status.h"

namespace weft::control {

class AcceptGate {
 public:
  AcceptGate() = default;
  AcceptGate(const AcceptGate&) = delete;
  AcceptGate& operator=(const AcceptGate&) = delete;
  ~AcceptGate() { close(); }

  void on_failed(std::int64_t now_ns, Status status, const std::string& text);
  void on_accepted() noexcept;
  // Whether accepting has failed for so long that peers are told instead of left waiting.
  bool turns_away(std::int64_t now_ns) const noexcept;
  // Why accepting failed in the last `within_ns`; ok: it did not, or has succeeded since.
  Status problem(std::int64_t now_ns, std::int64_t within_ns, std::string* text) const;

  // Pausing: false if it is paused already. resume_due() ends the pause, once, when it is over.
  bool pause(std::int64_t now_ns) noexcept;
  bool is_paused() const noexcept { return again_ns_ != 0; }
  bool resume_due(std::int64_t now_ns) noexcept;

  // The spare descriptor. take_spare() frees it for an accept; false if there is none.
  void open_spare() noexcept;
  bool take_spare() noexcept;
  void close() noexcept;

 private:
  std::int64_t again_ns_ = 0;          // 0: not paused
  std::int64_t failing_since_ns_ = 0;  // 0: the last accept succeeded
  Status status_ = Status::ok;
  std::int64_t failed_ns_ = 0;
  std::string text_;
  int spare_ = -1;
};

}  // namespace weft::control
