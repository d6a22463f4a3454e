// Schedules the acknowledgments of a receiver, and keeps what an acknowledgment reports about each path: the send time
// to echo and segment counts.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <memory>
#include <new>

#include "native/core/host_time.h"
#include "native/core/types.h"

namespace weft::core {

class AckSchedule {
 public:
  struct alignas(32) PathReport {
    i64 echo_sent_ns = -1;
    i64 arrived_ns = 0;  // arrival time of the segment whose send time is echoed
    i64 away_ns = 0;     // HostTime::away_ns() at that arrival
    u32 segments = 0;
    u32 ecn_segments = 0;
  };
  static_assert(sizeof(PathReport) == 32);

  AckSchedule(u16 path_count, u64 wait_bytes, i64 wait_ns) noexcept
      : wait_bytes_(wait_bytes), wait_ns_(wait_ns), path_count_(path_count) {}

  // Allocates the per-path reports. False when out of memory: the caller must then not count its segment as received.
  bool activate() noexcept {
    if (reports_ == nullptr) reports_.reset(new (std::nothrow) PathReport[path_count_]);
    return reports_ != nullptr;
  }
  void release() noexcept {
    if (!pending()) reports_.reset();
  }

  void on_segment(i64 now_ns, const HostTime& host, u8 path, i64 sent_ns, u64 bytes,
                  bool congestion_experienced) noexcept {
    PathReport& report = reports_[path];
    ++report.segments;
    report.ecn_segments += congestion_experienced ? 1 : 0;
    if (sent_ns > report.echo_sent_ns) {
      report.echo_sent_ns = sent_ns;
      report.arrived_ns = host.arrived_ns();
      report.away_ns = host.away_at_arrival_ns();
    }
    due_[path / 64] |= u64{1} << (path % 64);
    if (bytes_ == 0 && !urgent_) since_ns_ = now_ns;
    bytes_ += bytes;
    urgent_ = urgent_ || congestion_experienced || bytes_ >= wait_bytes_;
  }
  void on_message_whole() noexcept { urgent_ = true; }
  // Requests an acknowledgment that reports on this path, after a duplicate segment or a larger grant.
  void on_due(u8 path) noexcept {
    due_[path / 64] |= u64{1} << (path % 64);
    urgent_ = true;
  }

  void prefetch(u8 path) const noexcept {
    if (reports_ != nullptr) __builtin_prefetch(&reports_[path]);
  }
  bool pending() const noexcept { return (due_[0] | due_[1] | due_[2] | due_[3]) != 0; }
  bool due(i64 now_ns) const noexcept { return pending() && (urgent_ || now_ns - since_ns_ >= wait_ns_); }
  i64 poll_timeout() const noexcept { return pending() && !urgent_ ? since_ns_ + wait_ns_ : kNever; }
  // Writes the due reports of up to kAckReportsMax paths, which are then no longer due. Returns the number of reports.
  u8 take_reports(i64 now_ns, const HostTime& host, wire::PathReport* out) noexcept {
    u8 count = 0;
    for (std::size_t word = 0; word < due_.size(); ++word) {
      while (due_[word] != 0) {
        if (count == wire::kAckReportsMax) return count;
        const auto path = 64 * word + static_cast<std::size_t>(std::countr_zero(due_[word]));
        due_[word] &= due_[word] - 1;
        // Skips a path on which no segment has arrived.
        if (reports_ == nullptr || reports_[path].echo_sent_ns < 0) continue;
        const PathReport& report = reports_[path];
        const i64 held_ns = std::clamp<i64>(now_ns - report.arrived_ns, 0, 0xFFFF'FFFF);
        out[count].echo_sent_ns = report.echo_sent_ns;
        out[count].ack_delay_ns = static_cast<u32>(held_ns);
        out[count].away_ns = static_cast<u32>(std::clamp<i64>(host.away_ns() - report.away_ns, 0, held_ns));
        out[count].segments = report.segments;
        out[count].ecn_segments = report.ecn_segments;
        out[count].path = static_cast<u8>(path);
        ++count;
      }
    }
    bytes_ = 0;
    urgent_ = false;
    return count;
  }
  std::size_t bytes_held() const noexcept { return reports_ == nullptr ? 0 : path_count_ * sizeof(PathReport); }

 private:
  std::unique_ptr<PathReport[]> reports_;
  std::array<u64, kMaxPaths / 64> due_{};
  u64 wait_bytes_;
  i64 wait_ns_;
  u64 bytes_ = 0;     // bytes received since the last acknowledgment
  i64 since_ns_ = 0;  // when the first byte since the last acknowledgment arrived
  bool urgent_ = false;
  u16 path_count_;
};

}  // namespace weft::core
