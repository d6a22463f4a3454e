// Tells a listener what to do when accept() fails for lack of descriptors or memory: when to try again, and when to
// refuse peers instead of letting them wait. Keeps a spare descriptor, with which one peer at a time is accepted in
// order to refuse it.
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
  // Whether accepting has failed for so long that waiting peers should be refused with the reason, instead of being
  // left in the backlog.
  bool turns_away(std::int64_t now_ns) const noexcept;
  // The error of an accept that failed in the last `within_ns`; ok if none failed, or if one has succeeded since.
  Status problem(std::int64_t now_ns, std::int64_t within_ns, std::string* text) const;

  // pause() stops accepting for a while; it returns false if accepting is paused already. resume_due() returns true
  // once, when the pause is over.
  bool pause(std::int64_t now_ns) noexcept;
  bool is_paused() const noexcept { return again_ns_ != 0; }
  bool resume_due(std::int64_t now_ns) noexcept;

  // open_spare() reserves the spare descriptor. take_spare() closes it, so that an accept can use its number; it
  // returns false if there is no spare descriptor.
  void open_spare() noexcept;
  bool take_spare() noexcept;
  void close() noexcept;

 private:
  std::int64_t again_ns_ = 0;          // when accepting starts again; 0: it is not paused
  std::int64_t failing_since_ns_ = 0;  // since when accept() has failed; 0: the last call succeeded
  Status status_ = Status::ok;
  std::int64_t failed_ns_ = 0;
  std::string text_;
  int spare_ = -1;
};

}  // namespace weft::control
