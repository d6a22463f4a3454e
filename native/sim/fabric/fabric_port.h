// One direction of a link: a queue with two priorities, and the times at which its packets are sent. The node advances
// its port up to a time: all packets whose sending begins by then are passed on with their arrival times.
#pragma once

#include <algorithm>
#include <array>

#include "native/core/random.h"
#include "native/sim/fabric/fabric_packet.h"
#include "native/sim/fabric/fabric_report.h"

namespace weft::sim {

// Memory for data that all queues of a switch share. A queue may hold `alpha` times the bytes that are free, so that
// long queues leave room for short ones (dynamic thresholds: Choudhury and Hahne, IEEE/ACM ToN 1998). A packet leaves
// the memory when its sending begins.
struct alignas(64) FabricBuffer {
  i64 bytes = 0;
  double alpha = 1;
  i64 used_bytes = 0, used_bytes_max = 0;

  void add(i64 more_bytes) noexcept {
    used_bytes += more_bytes;
    used_bytes_max = std::max(used_bytes_max, used_bytes);
  }
  // Whether a packet finds no room in a queue that would then hold `queue_bytes`.
  bool is_full(i64 queue_bytes, i64 packet_bytes) const noexcept {
    const i64 free_bytes = bytes - used_bytes;
    return packet_bytes > free_bytes || static_cast<double>(queue_bytes) > alpha * static_cast<double>(free_bytes);
  }
};

// Properties common to all ports of a fabric, or of a switch if its queues share a buffer.
struct FabricRules {
  bool trim = false;
  bool priority = true;
  i64 header_queue_bytes_max = 0;
  u32 wire_overhead_bytes = 0;
  FabricBuffer* buffer = nullptr;  // null: no buffer is shared
};

// Receives the packets that a port has sent or lost. The functions of a port that need a sink are templates, so that
// calls of a final class are direct: there are several for every packet and hop.
class FabricSink {
 public:
  virtual void arrive(FabricPacket* packet, u32 port, u32 node) = 0;  // the packet arrives at packet->due_ps
  virtual void lose(FabricPacket* packet) = 0;
  virtual void look(u32 node, u32 port, i64 at_ps) = 0;  // asks the node to advance this port at that time
  // The port begins to send the packet. Only PFC needs this.
  virtual void leave(const FabricPacket& packet, u32 port, i64 at_ps) = 0;

 protected:
  ~FabricSink() = default;
};

class alignas(64) FabricPort {
 public:
  void open(const PortPlan& plan, u32 index, u64 seed, const FabricRules* rules);
  // Adds a constant delay and up to `jitter_ps` of random delay to packets for a host; the packets stay in order.
  void add_host(i64 delay_ps, i64 jitter_ps) noexcept {
    delay_ps_ += delay_ps;
    jitter_ps_ = jitter_ps;
    set_odd();
  }

  // Queues a packet, or loses it. First advances the port up to now, so that packets are sent in order of arrival.
  template <class Sink>
  void offer(i64 now_ps, FabricPacket* packet, Sink* sink);
  // Sends all packets whose sending can begin at `until_ps` or earlier.
  template <class Sink>
  void advance(i64 until_ps, Sink* sink);
  bool waits() const noexcept { return high_waits_ || low_.head != nullptr; }
  bool busy(i64 now_ps) const noexcept { return free_ps_ > now_ps; }
  // When the sending of the next queued packet begins; kNever if none is queued, or the port is paused or down.
  i64 next_ps() const noexcept { return waits() && !paused_ && up_ ? free_ps_ : core::kNever; }
  // When the port will have sent everything if nothing more arrives; kNever if it is paused.
  i64 idle_ps() const noexcept { return paused_ ? core::kNever : free_ps_ + takes_ps(low_bytes_ + high_bytes_); }

  bool up() const noexcept { return up_; }
  template <class Sink>
  void apply(i64 now_ps, const PortChange& change, Sink* sink);
  template <class Sink>
  void pause(i64 now_ps, bool paused, Sink* sink);
  i64 bytes() const noexcept { return bytes_; }  // sent so far
  // Bytes of data that are queued or being sent.
  i64 queue_bytes(i64 now_ps) const noexcept {
    return low_bytes_ + (sending_low_bytes_ != 0 && free_ps_ > now_ps ? sending_low_bytes_ : 0);
  }

  // Prefetches what the arrival of a packet accesses; `data`: of a data packet.
  void prefetch(bool data) const noexcept {
    for (std::size_t at = 0; at < (data ? 256 : 128); at += 64) {
      __builtin_prefetch(reinterpret_cast<const char*>(this) + at);
    }
  }
  // Prefetches the packet that is sent next. The port itself should be in the cache already.
  const FabricPacket* head() const noexcept { return low_.head; }
  void prefetch_head() const noexcept { __builtin_prefetch(low_.head); }
  template <class Look>
  void each_packet(Look look) const {
    for (const Queue* queue : {&high_, &low_}) {
      for (const FabricPacket* packet = queue->head; packet != nullptr; packet = packet->next) look(*packet);
    }
  }
  u32 from() const noexcept { return from_; }
  u32 to() const noexcept { return to_; }
  // Two flags that the port's node stores in the port: a wake-up is scheduled for the next packet to send
  // (wake_pending), and the port must be advanced at the end of the current time window (touched).
  bool wake_pending() const noexcept { return wake_pending_; }
  void set_wake_pending(bool pending) noexcept { wake_pending_ = pending; }
  bool touched() const noexcept { return touched_; }
  void set_touched(bool touched) noexcept { touched_ = touched; }
  void set_leads_to_host() noexcept { leads_to_host_ = true; }
  void set_stamps() noexcept { stamps_ = true; }  // it is a port of a switch, and a policy of the run reads telemetry
  PortReport report() const;

 private:
  struct Queue {
    FabricPacket *head = nullptr, *tail = nullptr;
    void push(FabricPacket* packet) noexcept {
      packet->next = nullptr;
      (tail == nullptr ? head : tail->next) = packet;
      tail = packet;
    }
    FabricPacket* pop() noexcept {
      FabricPacket* packet = head;
      head = packet->next;
      if (head == nullptr) tail = nullptr;
      return packet;
    }
  };
  i64 wire_bytes(const FabricPacket& packet) const noexcept {
    return i64{packet.header_bytes} + rules_->wire_overhead_bytes + (packet.trimmed ? 0 : packet.payload_bytes);
  }
  void set_rate(i64 bytes_per_s) noexcept;
  i64 takes_ps(i64 bytes) const noexcept;
  template <class Sink>
  [[gnu::always_inline]] void start(i64 at_ps, FabricPacket* packet, i64 bytes, Sink* sink);
  template <class Sink>
  void drop(FabricPacket* packet, i64* count, Sink* sink);
  bool lost_on_wire(i64 bytes);
  bool survives(FabricPacket* packet, i64 bytes);
  void set_odd() noexcept;
  void mark(FabricPacket* packet, i64 queue_bytes);
  void stamp(i64 at_ps, FabricPacket* packet) const noexcept;
  // Changes the bytes that are queued in low_.
  void add_low(i64 bytes) noexcept {
    low_bytes_ += bytes;
    if (rules_->buffer != nullptr) rules_->buffer->add(bytes);
  }
  bool is_full(i64 held_bytes, i64 packet_bytes) const noexcept;
  template <class Sink>
  bool overflow(FabricPacket* packet, Sink* sink);
  template <class Sink>
  void join_high(FabricPacket* packet, i64 bytes, Sink* sink);

  // The members of the first two cache lines are accessed for each packet, those of the next two also for each data
  // packet that arrives.
  i64 free_ps_ = 0;  // time at which the last bit of the current packet will have been sent
  Queue low_;
  i64 low_bytes_ = 0;    // bytes queued in low_; high_bytes_ is the same for high_
  i64 ps_per_byte_ = 0;  // 0: at this rate, a byte does not take a whole number of picoseconds
  i64 delay_ps_ = 0;
  u32 to_ = 0, index_ = 0;
  u32 sending_low_bytes_ = 0;
  // After this many priority packets, one data segment is sent (NDP, section 3.1, uses ten). Otherwise headers of
  // trimmed packets could occupy a link for ever, as each is answered by a retransmission that is trimmed too.
  static constexpr u16 kHighInARowMax = 256;
  u16 high_in_a_row_ = 0;  // consecutive priority packets sent while data waited
  bool odd_ : 1 = false;   // the port has losses, jitter, reordering or a token bucket, which start() must handle
  bool up_ : 1 = true, paused_ : 1 = false, leads_to_host_ : 1 = false, wake_pending_ : 1 = false, touched_ : 1 = false;
  bool high_waits_ : 1 = false;  // high_ is not empty
  bool stamps_ : 1 = false;

  Queue high_;
  i64 high_bytes_ = 0;
  const FabricRules* rules_ = nullptr;
  i64 packets_ = 0, bytes_ = 0, data_packets_ = 0, busy_ps_ = 0;

  double seen_per_byte_ = 0;  // buckets of seen_ per byte of queue: kSeen / (queue_bytes_max + 1)
  i64 queue_bytes_max_ = 0;
  i64 mark_from_bytes_ = 0, mark_full_bytes_ = 0;
  i64 marked_ = 0, queue_seen_max_ = 0;
  core::Random random_{0};
  i64 trimmed_ = 0;
  static constexpr std::size_t kSeen = 32;  // number of buckets of the histogram seen_
  std::array<u32, kSeen> seen_{};           // histogram of the queue length that arriving data finds

  i64 bytes_per_s_ = 0;
  double loss_ = 0, bit_error_rate_ = 0;
  i64 burst_ps_ = 0;  // size of the token bucket, as the time in which its bytes are sent
  i64 jitter_ps_ = 0, last_due_ps_ = 0;
  double reorder_ = 0;
  i64 reorder_ps_max_ = 0;
  i64 dropped_ = 0, lost_ = 0, pauses_ = 0;
  u32 from_ = 0;
};

}  // namespace weft::sim

#include "native/sim/fabric/fabric_port_send.h"
