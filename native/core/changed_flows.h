// The flows that have changed since their states were last published, so that publishing takes time for these only.
#pragma once

#include <algorithm>
#include <vector>

#include "native/core/types.h"

namespace weft::core {

class ChangedFlows {
 public:
  // From now on, changes are noted.
  void want() noexcept { wanted_ = true; }
  // Allocates memory for all flows with smaller indices, so that note() never allocates.
  void reserve(std::size_t flows) {
    if (!wanted_ || noted_.size() >= flows) return;
    if (order_.capacity() < flows) order_.reserve(std::max(flows, 2 * order_.capacity()));
    noted_.resize(flows, false);
  }
  void note(u32 flow) noexcept {
    if (flow >= noted_.size() || noted_[flow]) return;
    noted_[flow] = true;
    order_.push_back(flow);
  }
  // Calls what(flow) for each flow that was noted, of which some may be released by now, and forgets them.
  template <class What>
  void take(const What& what) {
    for (const u32 flow : order_) {
      noted_[flow] = false;
      what(flow);
    }
    order_.clear();
  }

 private:
  bool wanted_ = false;
  std::vector<u32> order_;
  std::vector<bool> noted_;
};

}  // namespace weft::core
