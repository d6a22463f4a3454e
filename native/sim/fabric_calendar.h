// What is due when, by windows of one lookahead: within a window no node can reach another, so each window's events
// are handed out whole, and each node handles its own in their order. Sorts nothing itself; knows no node.
#pragma once

#include <algorithm>
#include <vector>

#include "native/sim/fabric_packet.h"

namespace weft::sim {

// A packet that arrives at a node, or (packet null) a node that is to look at itself.
struct FabricDue {
  i64 at_ps = 0;
  u32 node = 0;
  u32 port = 0;  // that the packet came in by, or that the node is to look at; kSelf: the node itself
  FabricPacket* packet = nullptr;

  static constexpr u32 kPause = 0x4000'0000u;   // plus one of the node's ports: the packet stops it or lets it go on
  static constexpr u32 kChange = 0x8000'0000u;  // plus the number of a change of one of its ports
  static constexpr u32 kSelf = 0xFFFF'FFFFu;
  // A port delivers one packet after the other, so that two of a node's events never tie but by being the same.
  bool before(const FabricDue& other) const noexcept {
    return at_ps != other.at_ps ? at_ps < other.at_ps : port < other.port;
  }
};

class FabricCalendar {
 public:
  explicit FabricCalendar(i64 window_ps) : window_ps_(window_ps), near_(kNear) {}

  void push(const FabricDue& due) {
    const i64 window = due.at_ps / window_ps_;
    if (window < begin_ + static_cast<i64>(kNear)) {
      near_[static_cast<std::size_t>(window) % kNear].push_back(due);
      ++near_count_;
      return;
    }
    far_.push_back(due);
    std::push_heap(far_.begin(), far_.end(), later);
  }
  // The first window that holds anything; kNever when none does.
  i64 next_window() noexcept {
    const i64 far = far_.empty() ? core::kNever : far_.front().at_ps / window_ps_;
    if (near_count_ == 0) return far;
    i64 window = std::max(begin_, searched_);
    while (near_[static_cast<std::size_t>(window) % kNear].empty()) ++window;
    searched_ = window;
    return std::min(window, far);
  }
  // Everything of a window, in no order; nothing of earlier ones may be left. What is pushed from now on is later.
  void take(i64 window, std::vector<FabricDue>* out) {
    out->clear();
    begin_ = window;
    while (!far_.empty() && far_.front().at_ps / window_ps_ < begin_ + static_cast<i64>(kNear)) {
      const FabricDue due = far_.front();
      std::pop_heap(far_.begin(), far_.end(), later);
      far_.pop_back();
      near_[static_cast<std::size_t>(due.at_ps / window_ps_) % kNear].push_back(due);
      ++near_count_;
    }
    std::vector<FabricDue>& bucket = near_[static_cast<std::size_t>(window) % kNear];
    near_count_ -= bucket.size();
    out->swap(bucket);
    begin_ = window + 1;
    searched_ = begin_;
  }
  template <class Look>
  void each_packet(Look look) const {
    for (const FabricDue& due : far_) {
      if (due.packet != nullptr) look(*due.packet);
    }
    for (const auto& bucket : near_) {
      for (const FabricDue& due : bucket) {
        if (due.packet != nullptr) look(*due.packet);
      }
    }
  }
  std::size_t bytes_held() const noexcept {
    std::size_t entries = far_.capacity();
    for (const auto& bucket : near_) entries += bucket.capacity();
    return entries * sizeof(FabricDue);
  }

 private:
  static constexpr std::size_t kNear = 8;  // windows ahead that have a list of their own: a wire is about one long
  static bool later(const FabricDue& a, const FabricDue& b) noexcept { return a.at_ps > b.at_ps; }

  i64 window_ps_;
  i64 begin_ = 0, searched_ = 0;
  std::size_t near_count_ = 0;
  std::vector<std::vector<FabricDue>> near_;
  std::vector<FabricDue> far_;  // a heap
};

}  // namespace weft::sim
