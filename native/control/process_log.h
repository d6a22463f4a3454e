// Logs events of peer processes, limited in rate.
#pragma once

#include <string>

#include "native/core/trace.h"
#include "native/engine/log_limit.h"

namespace weft::control {

// Writes log lines about peer processes (connected, lost, stalled). Called by the control loop. If memory runs out, the
// line is lost and nothing else happens.
class ProcessLog final : public core::TraceSink {
 public:
  // `stall_limit_ns`: the value of WEFT_PEER_TIMEOUT=stall, for the line about a stalled process.
  explicit ProcessLog(std::int64_t stall_limit_ns) noexcept : stall_limit_ns_(stall_limit_ns) {}
  void on_process(std::int64_t now_ns, const core::ProcessEvent& event) noexcept override;

 private:
  static constexpr std::int64_t kLines = 64;  // most log lines of one kind that are written in LogLimit::kIntervalNs

  void stalled(std::int64_t now_ns, const core::ProcessEvent& event);

  const std::int64_t stall_limit_ns_;
  engine::LogLimit connected_{kLines}, disconnected_{kLines}, stalled_{kLines};
};

}  // namespace weft::control
