// A calendar queue: the events of a simulation, grouped by time window. A window is as long as the shortest delay of a
// link, so during a window no node can affect another. Each node can thus handle its own events of the window, in order
// of time.
#pragma once

#include <algorithm>
#include <array>
#include <memory>
#include <vector>

#include "native/sim/fabric/fabric_packet.h"

namespace weft::sim {

// An event of a node: the arrival of a packet or, if `packet` is null, a wake-up.
struct FabricDue {
  i64 at_ps = 0;
  u32 node = 0;
  u32 port = 0;  // port where the packet arrives or whose queue must be sent, or a code with kPause, kChange or kSelf
  FabricPacket* packet = nullptr;

  // kPause plus a port of the node: `packet` is a PFC frame that stops or restarts that port.
  static constexpr u32 kPause = 0x4000'0000u;
  static constexpr u32 kChange = 0x8000'0000u;  // kChange plus an index: a planned change of one of the node's ports
  static constexpr u32 kSelf = 0xFFFF'FFFFu;
  // The order of a node's events. No two different events compare equal, because a port delivers one packet or PFC
  // frame at a time.
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
  // The number of the first window (window_ps_ of virtual time) that has an event; kNever if none has.
  i64 next_window() const noexcept {
    const i64 far = far_.empty() ? core::kNever : far_.front().at_ps / window_ps_;
    for (i64 window = begin_; window < begin_ + static_cast<i64>(kNear); ++window) {
      if (near_[static_cast<std::size_t>(window) % kNear].count != 0) return std::min(window, far);
    }
    return far;
  }
  // Takes out all events of a window of virtual time. They are in the order in which they were pushed, except those
  // that were far in the future. There must be no events in earlier windows, and later pushes must be for later ones.
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
  // How many of the next windows of virtual time have a list of events of their own. Most events are due within a few
  // windows, because a link's delay is about one window; the others go to far_.
  static constexpr std::size_t kNear = 8;
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
  std::vector<FabricDue> far_;  // a heap of the events after the next kNear windows of virtual time
};

}  // namespace weft::sim
