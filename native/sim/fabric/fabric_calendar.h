// A calendar queue: the events of a simulation, grouped by time window and by the color of their nodes. A window is as
// long as the shortest delay of a link, so during a window no node can affect another. Each node can thus handle its
// own events of the window, in order of time.
#pragma once

#include <algorithm>
#include <array>
#include <memory>
#include <utility>
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
  bool is_packet() const noexcept { return packet != nullptr && port < kPause; }  // false also for a PFC frame
  // The order of a node's events. No two different events compare equal, because a port delivers one packet or PFC
  // frame at a time.
  bool before(const FabricDue& other) const noexcept {
    return at_ps != other.at_ps ? at_ps < other.at_ps : port < other.port;
  }
};

class FabricCalendar {
 public:
  static constexpr std::size_t kColors = 2;

  // `color_of`: the color of each node, 0 or 1. It must outlive the object.
  FabricCalendar(i64 window_ps, const std::vector<u8>* color_of)
      : window_ps_(window_ps), near_ps_(static_cast<i64>(kNear) * window_ps), color_of_(*color_of) {}

  void push(const FabricDue& due) {
    const i64 after_ps = due.at_ps - begin_ps_;
    if (after_ps >= near_ps_) return push_far(due);
    // An event of an earlier window, which is a defect, goes to the first one.
    const u32 ahead = after_ps < 0 ? 0 : static_cast<u32>(after_ps) / static_cast<u32>(window_ps_);
    push_to(near_[(static_cast<std::size_t>(begin_) + ahead) % kNear][color_of_[due.node]], due);
  }
  // The number of the first window (window_ps_ of virtual time) in which a node of the color has an event; kNever if
  // there is none.
  i64 next_window(std::size_t color) const noexcept {
    const i64 far = far_.empty() ? core::kNever : far_.front().at_ps / window_ps_;
    for (i64 window = begin_; window < begin_ + static_cast<i64>(kNear); ++window) {
      if (!near_[static_cast<std::size_t>(window) % kNear][color].empty()) return std::min(window, far);
    }
    return far;
  }
  // From now on the first window that is not taken is `window`, for all colors. There must be no events before it.
  void skip_to(i64 window) {
    front_.fill(window);
    begin_at(window);
  }
  // Takes out a color's events of all windows before `end` that were not taken yet. each_taken() passes on all that was
  // taken since forget_taken(), in the order in which they were pushed, except those that were far in the future. Later
  // pushes must be for later windows.
  void take(std::size_t color, i64 end) {
    for (i64 window = front_[color]; window < end; ++window) {
      Bucket& bucket = near_[static_cast<std::size_t>(window) % kNear][color];
      if (!bucket.empty()) taken_.push_back(std::exchange(bucket, {}));
    }
    front_[color] = end;
    begin_at(std::min(front_[0], front_[1]));
  }
  void forget_taken() {
    for (const Bucket& bucket : taken_) free_.insert(free_.end(), bucket.chunks.begin(), bucket.chunks.end());
    taken_.clear();
  }
  i64 front(std::size_t color) const noexcept { return front_[color]; }  // the first window that was not taken
  std::size_t taken() const noexcept {
    std::size_t count = 0;
    for (const Bucket& bucket : taken_) count += bucket.count();
    return count;
  }
  template <class Use>
  void each_taken(Use use) const {
    for (const Bucket& bucket : taken_) each(bucket, use);
  }
  template <class Look>
  void each_packet(Look look) const {
    const auto look_at = [&](const FabricDue& due) {
      if (due.packet != nullptr) look(*due.packet);
    };
    std::for_each(far_.begin(), far_.end(), look_at);
    for (const auto& window : near_) {
      for (const Bucket& bucket : window) each(bucket, look_at);
    }
  }
  std::size_t bytes_held() const noexcept { return all_.size() * sizeof(Chunk) + far_.capacity() * sizeof(FabricDue); }

 private:
  // How many of the next windows of virtual time have a list of events of their own. Most events are due within a few
  // windows, because a link's delay is about one window; the others go to far_.
  static constexpr std::size_t kNear = 8;
  static constexpr std::size_t kChunk = 512;
  struct Chunk {
    FabricDue due[kChunk];
  };
  struct Bucket {
    std::vector<Chunk*> chunks;
    FabricDue *at = nullptr, *end = nullptr;  // the free part of the last chunk

    bool empty() const noexcept { return chunks.empty(); }
    std::size_t count() const noexcept { return chunks.size() * kChunk - static_cast<std::size_t>(end - at); }
  };
  static bool later(const FabricDue& a, const FabricDue& b) noexcept { return a.at_ps > b.at_ps; }

  void begin_at(i64 window) {
    begin_ = window;
    begin_ps_ = window * window_ps_;
    while (!far_.empty() && far_.front().at_ps - begin_ps_ < near_ps_) {
      const FabricDue due = far_.front();
      std::pop_heap(far_.begin(), far_.end(), later);
      far_.pop_back();
      push(due);
    }
  }
  template <class Use>
  static void each(const Bucket& bucket, Use use) {
    std::size_t left = bucket.count();
    for (const Chunk* chunk : bucket.chunks) {
      const std::size_t here = std::min(left, kChunk);
      for (std::size_t i = 0; i < here; ++i) use(chunk->due[i]);
      left -= here;
    }
  }
  void push_to(Bucket& bucket, const FabricDue& due) {
    if (bucket.at == bucket.end) grow(bucket);
    *bucket.at++ = due;
  }
  void grow(Bucket& bucket) {
    Chunk* const added = chunk();
    bucket.chunks.push_back(added);
    bucket.at = added->due;
    bucket.end = added->due + kChunk;
  }
  void push_far(const FabricDue& due) {
    far_.push_back(due);
    std::push_heap(far_.begin(), far_.end(), later);
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

  i64 window_ps_, near_ps_;
  const std::vector<u8>& color_of_;
  std::array<i64, kColors> front_{};  // by color: the first window that was not taken
  i64 begin_ = 0, begin_ps_ = 0;      // the earlier of both, and its begin
  std::array<std::array<Bucket, kColors>, kNear> near_;
  std::vector<Bucket> taken_;
  std::vector<std::unique_ptr<Chunk>> all_;
  std::vector<Chunk*> free_;
  std::vector<FabricDue> far_;  // a heap of the events after the next kNear windows of virtual time
};

}  // namespace weft::sim
