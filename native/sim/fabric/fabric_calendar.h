// A calendar queue of events in windows of one lookahead, during which no node can affect another. So a window's events
// are taken as a whole, and each node handles its own in order.
#pragma once

#include <algorithm>
#include <array>
#include <memory>
#include <vector>

#include "native/sim/fabric/fabric_packet.h"

namespace weft::sim {

// The arrival of a packet at a node, or (packet null) a wake-up of a node.
struct FabricDue {
  i64 at_ps = 0;
  u32 node = 0;
  u32 port = 0;  // that the packet came in by, or that must be checked; kSelf: the node itself
  FabricPacket* packet = nullptr;

  // plus a port of the node: the packet is a PFC frame that stops or restarts it
  static constexpr u32 kPause = 0x4000'0000u;
  static constexpr u32 kChange = 0x8000'0000u;  // plus the index of a planned change of one of the node's ports
  static constexpr u32 kSelf = 0xFFFF'FFFFu;
  // A port delivers one packet (or PFC frame) at a time, so two events of a node are never equal unless they are the
  // same.
  bool before(const FabricDue& other) const noexcept {
    return at_ps != other.at_ps ? at_ps < other.at_ps : port < other.port;
  }
};

class FabricCalendar {
 public:
  explicit FabricCalendar(i64 window_ps) : window_ps_(window_ps) {}

  void push(const FabricDue& due) {
    const i64 window = due.at_ps / window_ps_;
    if (window < begin_ + static_cast<i64>(kNear)) {
      push_near(window, due);
      return;
    }
    far_.push_back(due);
    std::push_heap(far_.begin(), far_.end(), later);
  }
  // The first window with an event; kNever if there is none.
  i64 next_window() const noexcept {
    const i64 far = far_.empty() ? core::kNever : far_.front().at_ps / window_ps_;
    for (i64 window = begin_; window < begin_ + static_cast<i64>(kNear); ++window) {
      if (near_[static_cast<std::size_t>(window) % kNear].count != 0) return std::min(window, far);
    }
    return far;
  }
  // Takes all events of a window, in the order of pushing except for those that were far ahead. Earlier windows must be
  // empty, and later pushes must be for later windows.
  void take(i64 window, std::vector<FabricDue>* out) {
    begin_ = window;
    while (!far_.empty() && far_.front().at_ps / window_ps_ < begin_ + static_cast<i64>(kNear)) {
      const FabricDue due = far_.front();
      std::pop_heap(far_.begin(), far_.end(), later);
      far_.pop_back();
      push_near(due.at_ps / window_ps_, due);
    }
    Bucket& bucket = near_[static_cast<std::size_t>(window) % kNear];
    out->clear();
    out->reserve(bucket.count);
    for (std::size_t left = bucket.count; Chunk* chunk : bucket.chunks) {
      const std::size_t here = std::min(left, kChunk);
      out->insert(out->end(), chunk->due, chunk->due + here);
      left -= here;
      free_.push_back(chunk);
    }
    bucket.chunks.clear();
    bucket.count = 0;
    begin_ = window + 1;
  }
  template <class Look>
  void each_packet(Look look) const {
    for (const FabricDue& due : far_) {
      if (due.packet != nullptr) look(*due.packet);
    }
    for (const Bucket& bucket : near_) {
      for (std::size_t i = 0; i < bucket.count; ++i) {
        const FabricDue& due = bucket.chunks[i / kChunk]->due[i % kChunk];
        if (due.packet != nullptr) look(*due.packet);
      }
    }
  }
  std::size_t bytes_held() const noexcept { return all_.size() * sizeof(Chunk) + far_.capacity() * sizeof(FabricDue); }

 private:
  static constexpr std::size_t kNear = 8;  // windows ahead with a list of their own; a link's delay is about one window
  static constexpr std::size_t kChunk = 1024;
  struct Chunk {
    FabricDue due[kChunk];
  };
  struct Bucket {
    std::vector<Chunk*> chunks;
    std::size_t count = 0;
  };
  static bool later(const FabricDue& a, const FabricDue& b) noexcept { return a.at_ps > b.at_ps; }

  void push_near(i64 window, const FabricDue& due) {
    Bucket& bucket = near_[static_cast<std::size_t>(window) % kNear];
    if (bucket.count % kChunk == 0) bucket.chunks.push_back(chunk());
    bucket.chunks.back()->due[bucket.count++ % kChunk] = due;
  }
  Chunk* chunk() {
    if (free_.empty()) {
      all_.push_back(std::make_unique<Chunk>());
      return all_.back().get();
    }
    Chunk* made = free_.back();
    free_.pop_back();
    return made;
  }

  i64 window_ps_;
  i64 begin_ = 0;
  std::array<Bucket, kNear> near_;
  std::vector<std::unique_ptr<Chunk>> all_;
  std::vector<Chunk*> free_;
  std::vector<FabricDue> far_;  // a heap
};

}  // namespace weft::sim
