// The thread that owns a clock, a datapath's ports and many flows, and runs to completion. The stack runs the protocol,
// the control plane connects.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "native/core/stack.h"
#include "native/datapath/datapath.h"
#include "native/engine/call_queue.h"
#include "native/engine/command_ring.h"
#include "native/engine/event_log.h"
#include "native/engine/telemetry_page.h"

namespace weft::engine {

class ConnectionCore;
class Engine;
class RequestSlot;

// One flow of a connection: where it lives.
struct FlowRef {
  Engine* engine = nullptr;
  std::uint32_t flow = 0;
};

// What callers' threads ask of an engine.
struct Command {
  enum class Kind : std::uint8_t { send, receive, staged } kind;
  std::uint32_t flow;
  std::uint64_t connection;  // whose flow it was when the command was posted; flow indices are reused
  std::uint64_t message;
  std::uint8_t* data;
  std::uint64_t bytes;
  void* cookie;
  std::uint32_t memory;  // the registration that `data` lies in; 0: none
  core::Stage* stage;    // instead of `data`; null: none
};

// Who is told that a peer is quiet (engines' threads). It only takes note: an engine does not wait.
class PeerWatch {
 public:
  virtual ~PeerWatch() = default;
  virtual void on_peer_quiet(std::uint32_t engine, std::uint32_t peer) noexcept = 0;
};

struct EngineConfig {
  core::StackConfig stack;
  std::int64_t spin_ns = 50'000;
  TelemetryPage* page = nullptr;  // where it counts; null: in memory of its own
};

class Engine final : private datapath::RxSink {
 public:
  Engine(std::uint32_t id, const EngineConfig& config, std::unique_ptr<datapath::Datapath> datapath);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  bool start(std::string* error);
  void stop() noexcept;
  std::uint32_t id() const noexcept { return id_; }
  void watch_peers(PeerWatch* watch) noexcept { peer_watch_ = watch; }  // inside call(); null: nobody
  // When the thread last began a round, by now_ns(), and whether it sleeps until there is something to do.
  // Makes a sleeping thread take a turn.
  void nudge() noexcept { wake(); }
  std::int64_t turn_ns() const noexcept { return row_->turn_ns; }
  bool sleeping() const noexcept { return sleeping_.load(std::memory_order_relaxed); }

  // Callers' threads.
  bool reserve(std::int64_t count) noexcept { return ring_.reserve(count); }
  void give_back(std::int64_t count) noexcept { ring_.give_back(count); }
  void post(const Command& command) noexcept;
  // The flow is to let go of every buffer and tell its peer; the connection hears on_flow_let_go().
  void abort(std::uint32_t flow, std::uint64_t connection, Status reason) noexcept;
  // Runs `work` on the engine's thread and waits for it; what it throws is thrown here. Not from an engine's thread.
  void call(const std::function<void()>& work);

  // Only inside call().
  core::Stack& stack() noexcept { return stack_; }
  TelemetryPage* page() noexcept { return page_; }
  datapath::Datapath& datapath() noexcept { return *datapath_; }
  EventLog& event_log() noexcept { return event_log_; }
  void own_flow(std::uint32_t flow, std::shared_ptr<ConnectionCore> connection);
  std::int64_t time_ns() const noexcept { return now_ns_; }
  std::uint64_t owner_id(std::uint32_t flow) const noexcept;
  std::size_t open_flows() const noexcept { return open_flows_.load(std::memory_order_relaxed); }
  telemetry::EngineCounters counters() const noexcept { return telemetry::values(*counters_); }  // any thread

 private:
  // Bursts taken before the sockets are looked at again: a longer batch makes send times, and so RTTs, stale.
  static constexpr std::size_t kTxBatch = 8;
  static constexpr std::size_t kRingCommands = 8192;
  // How old the states in the telemetry page may be. An engine that runs out of work writes them once more.
  static constexpr std::int64_t kStatesNs = 10'000'000;

  void run() noexcept;
  bool round() noexcept;
  void sleep() noexcept;
  void wake() noexcept;
  bool take_commands() noexcept;
  bool take_calls() noexcept;
  void do_command(const Command& command) noexcept;
  void do_abort(const CallQueue::Abort& abort) noexcept;
  Status post_receive(const Command& command) noexcept;
  void close_window(std::uint32_t key) noexcept;
  void close_windows_of(std::uint32_t flow) noexcept;
  bool transmit() noexcept;
  bool take_events() noexcept;
  void publish() noexcept;
  void on_peer_released(std::uint32_t peer) noexcept;
  void on_flow_closed(std::uint32_t flow) noexcept;
  void on_flow_stuck(std::uint32_t flow) noexcept;
  void release(std::uint32_t flow) noexcept;
  ConnectionCore* owner(std::uint32_t flow) noexcept { return flow < owners_.size() ? owners_[flow].get() : nullptr; }
  void on_datagram(std::uint32_t port, const wire::RxDatagram& datagram) override;

  const std::uint32_t id_;
  const std::int64_t spin_ns_;
  TelemetryPage* const page_;
  telemetry::EnginePageRow own_row_;  // where there is no page
  telemetry::EnginePageRow* const row_;
  telemetry::EngineCells* const counters_;
  std::int64_t states_due_ns_ = INT64_MAX;  // when publish() is due; INT64_MAX: nothing has changed since
  core::Stack stack_;
  EventLog event_log_;
  std::unique_ptr<datapath::Datapath> datapath_;
  CommandRing<Command> ring_;
  CallQueue calls_;
  std::atomic<bool> sleeping_{false};
  std::atomic<bool> stopping_{false};
  PeerWatch* peer_watch_ = nullptr;
  std::atomic<std::size_t> open_flows_{0};
  int doorbell_ = -1;
  std::int64_t now_ns_ = 0;
  std::int64_t realtime_ahead_ns_ = 0;                   // in the round in progress; 0: no datagram had a stamp yet
  std::vector<std::shared_ptr<ConnectionCore>> owners_;  // by flow; keeps what the stack may still report on
  std::vector<bool> let_go_;                             // by flow: its connection has been told
  std::vector<bool> closed_;                             // by flow: the stack is done with it
  std::unordered_map<std::uint32_t, std::uint32_t> windows_;  // open ones: the flow by key
  std::unordered_map<std::uint32_t, std::int64_t> stuck_;     // flows that were told to make no progress, and when
  std::unique_ptr<wire::TxBurst[]> bursts_;
  wire::TxBurst* batch_[kTxBatch];
  std::thread thread_;
};

}  // namespace weft::engine
