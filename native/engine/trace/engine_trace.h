// Writes an engine's part of the trace: the stripes of its messages, events of paths and peers, and what each path has
// carried. It gets them as a sink of the engine's stack, on the engine's thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "native/core/stack.h"
#include "native/engine/trace/message_table.h"
#include "native/engine/trace/trace_writer.h"

namespace weft::engine {

class EngineTrace final : public core::TraceSink {
 public:
  EngineTrace(std::uint32_t engine, core::Stack* stack, std::shared_ptr<TraceWriter> writer);
  ~EngineTrace() override { stack_->trace().unsubscribe(this); }
  EngineTrace(const EngineTrace&) = delete;
  EngineTrace& operator=(const EngineTrace&) = delete;

  // Sets the trace record of the connection that a flow belongs to. May throw std::bad_alloc.
  void name_flow(std::uint32_t flow, std::uint32_t connection);
  // Sets the addresses of a peer: path i leads to addresses[i % addresses.size()]. May throw std::bad_alloc.
  void name_peer(std::uint32_t peer, const std::vector<std::string>& addresses);
  void on_event(std::int64_t now_ns, const core::Event& event) noexcept override;
  // Writes the counters of paths that have carried something since they were last written, at most once a second; and
  // an event if the host has dropped more datagrams. `host_drops`: the engine's counter of these.
  void snapshot(std::int64_t now_ns, std::int64_t host_drops) noexcept;

 private:
  static constexpr std::int64_t kSnapshotNs = 1'000'000'000;
  static constexpr int kEventsMax = 1000;  // limit of events per second: a path that flaps must not fill the trace

  void on_posted(std::int64_t now_ns, const core::Event& event) noexcept;
  void on_segments(std::int64_t now_ns, const core::Event& event) noexcept;
  void on_end(std::int64_t now_ns, const core::Event& event) noexcept;
  void put_event(std::int64_t now_ns, const core::Event& event) noexcept;
  void put_host_drops(std::int64_t now_ns, std::int64_t host_drops) noexcept;
  bool may_put_event(std::int64_t now_ns) noexcept;
  void put_path(std::int64_t now_ns, std::uint32_t peer, const core::PathSet& paths, std::size_t path) noexcept;
  std::uint32_t connection_of(std::uint32_t flow) const noexcept {
    return flow < connections_.size() ? connections_[flow] : 0;
  }
  std::uint32_t address_of(std::uint32_t peer, std::size_t path) const noexcept;

  struct PeerNames {
    std::vector<std::uint32_t> addresses;        // trace ids of the texts of the peer's addresses
    std::vector<std::int64_t> segments_written;  // by path: segments sent when the path was last written
  };

  const std::uint32_t engine_;
  core::Stack* stack_;
  const std::shared_ptr<TraceWriter> writer_;
  MessageTable messages_;
  std::vector<std::uint32_t> connections_;  // by flow: id of its connection's trace record
  std::unordered_map<std::uint32_t, PeerNames> peers_;
  std::array<std::uint32_t, core::Event::kKinds> kinds_{};  // by kind of event: id of the text with its name
  const std::uint32_t host_drops_text_;
  std::int64_t host_drops_ = 0;  // the counter when the last event of it was written
  std::int64_t snapshot_ns_ = 0, second_ns_ = 0;
  int events_ = 0;  // number of events written in the current second
};

}  // namespace weft::engine
