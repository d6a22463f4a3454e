// Keeps what one family of policies was asked in a run, row by row, so that the same questions can be put again.
// Keeps no state of a policy and judges no answer.
#pragma once

#include <cstring>
#include <vector>

#include "native/core/decision_tap.h"

namespace weft::sim {

// Rows of one size: hook, owner (host in the upper half), then the event; path policies: then n PathHeads.
class DecisionLog {
 public:
  DecisionLog(policy::Family family, std::size_t event_bytes, std::size_t paths, std::size_t rows_max)
      : family_(family),
        event_bytes_(event_bytes),
        paths_(family == policy::Family::path ? paths : 0),
        rows_max_(rows_max) {}

  std::size_t row_bytes() const noexcept { return 16 + event_bytes_ + paths_ * sizeof(policy::PathHead); }
  const std::vector<core::u8>& rows() const noexcept { return rows_; }

  void add(core::u32 host, const core::Decision& decision) {
    if (decision.family != family_ || rows_.size() / row_bytes() >= rows_max_) return;
    const std::size_t at = rows_.size();
    rows_.resize(at + row_bytes());
    core::u8* row = rows_.data() + at;
    const core::i64 head[2] = {static_cast<core::i64>(decision.hook), core::i64{host} << 32 | decision.owner};
    std::memcpy(row, head, sizeof head);
    std::memcpy(row + 16, decision.event, event_bytes_);
    for (std::size_t path = 0; path < paths_ && path < decision.path_count; ++path) {
      std::memcpy(row + 16 + event_bytes_ + path * sizeof(policy::PathHead),
                  decision.paths + path * decision.descriptor->shared_bytes, sizeof(policy::PathHead));
    }
  }

 private:
  policy::Family family_;
  std::size_t event_bytes_, paths_, rows_max_;
  std::vector<core::u8> rows_;
};

// The ear of one host's stack.
class HostTap final : public core::DecisionTap {
 public:
  void attach(DecisionLog* log, core::u32 host) noexcept {
    log_ = log;
    host_ = host;
  }
  void on_decision(const core::Decision& decision) noexcept override { log_->add(host_, decision); }

 private:
  DecisionLog* log_ = nullptr;
  core::u32 host_ = 0;
};

}  // namespace weft::sim
