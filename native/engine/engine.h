// An engine: a thread whose event loop drives the ports of a datapath and the flows of a protocol stack.
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
#include "native/engine/loop_lock.h"
#include "native/engine/telemetry_page.h"
#include "native/engine/trace/engine_trace.h"

namespace weft::engine {

class ConnectionCore;
class Engine;
class RequestSlot;

// One flow of a connection: its engine, and its index in that engine.
struct FlowRef {
  Engine* engine = nullptr;
  std::uint32_t flow = 0;
};

// A request from a caller's thread to an engine: post a send or a receive, or continue with a bounce buffer.
struct Command {
  enum class Kind : std::uint8_t { send, receive, staged } kind;
  std::uint32_t flow;
  std::uint64_t connection;  // id of the connection that owned the flow at the time of the post
  std::uint32_t memory;      // id of the registered memory that the buffer of a receive is in; 0: none
  union {
    core::SendPost send;
    core::ReceivePost receive;
  };
};

// An observer that engine threads call when a peer is quiet. Its functions must not block, because the engine's flows
// would stop meanwhile.
class PeerWatch {
 public:
  virtual ~PeerWatch() = default;
  virtual void on_peer_quiet(std::uint32_t engine, std::uint32_t peer) noexcept = 0;
};

struct EngineConfig {
  core::StackConfig stack;
  std::int64_t spin_ns = 100'000;
  std::int64_t poll_ns = 200'000;      // longest time that a waiting caller polls; 0: callers never run the loop
  double poll_share = 0.05;            // share of a caller's time that it may poll without receiving anything
  TelemetryPage* page = nullptr;       // page for the engine's counters; null: they are in private memory
  std::shared_ptr<TraceWriter> trace;  // null: nothing is traced
  std::vector<int> cpus;               // CPUs that the thread may use; empty: those of its creating thread
};

class Engine final : private datapath::RxSink, private core::FlowSource {
 public:
  Engine(std::uint32_t id, const EngineConfig& config, std::unique_ptr<datapath::Datapath> datapath);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  bool start(std::string* error);
  void stop() noexcept;
  std::uint32_t id() const noexcept { return id_; }
  std::int64_t poll_ns() const noexcept { return poll_ns_; }
  double poll_share() const noexcept { return poll_share_; }
  void watch_peers(PeerWatch* watch) noexcept { peer_watch_ = watch; }  // to be called inside call(); null: no observer
  // Wakes the engine's thread, if it sleeps, for one loop iteration.
  void nudge() noexcept { wake(); }
  // When the thread last began a loop iteration, on the clock now_ns(). sleeping(): whether it sleeps for lack of work.
  std::int64_t turn_ns() const noexcept { return row_->turn_ns; }
  bool sleeping() const noexcept { return sleeping_.load(std::memory_order_relaxed); }

  std::int64_t buffer_bytes() const noexcept { return datapath_->buffer_bytes(); }

  // The functions from here to call() are called on other threads.
  // Runs one iteration of the loop for a caller that waits. `taken`: another thread runs the loop at present. `busy`:
  // the loop moves many bytes, and the caller should sleep. The caller must hold no lock that Completion::on_complete()
  // takes.
  enum class Help : std::uint8_t { ran, taken, busy };
  Help help() noexcept;
  // From now on, for LoopLock::kBulkNs, only the engine's thread runs the loop.
  void keep_loop(std::int64_t now_ns) noexcept;
  // To be called when a waiting caller goes to sleep: if callers have run the loop, the engine's thread runs it again.
  void unattend() noexcept;
  // Takes bytes off the count towards LoopLock::kBulkBytes, because the caller that sent or received them waited for
  // them.
  void discount_bytes(std::uint64_t bytes) noexcept { loop_.discount(bytes); }
  bool reserve(std::int64_t count) noexcept { return ring_.reserve(count); }
  void give_back(std::int64_t count) noexcept { ring_.give_back(count); }
  // Queues a command. Wakes the engine's thread, unless `lazily` is set and callers run the loop: then a caller sees
  // the command at once.
  void post(const Command& command, bool lazily) noexcept;
  // Makes a flow release its buffers and tell its peer, and then calls the connection's on_flow_quiesced().
  void abort(std::uint32_t flow, std::uint64_t connection, Status reason) noexcept;
  // Makes the connection the owner of a flow that is reserved, and defers the flow. Returns at once: commands and
  // packets for the flow are handled after that. False: out of memory.
  bool defer(std::uint32_t flow, std::uint32_t peer, std::shared_ptr<ConnectionCore> owner) noexcept;
  // Runs `work` on the engine's thread, or on this thread while the engine's thread sleeps, and returns when it has
  // run. Rethrows its exception. Must not be called on an engine thread.
  void call(const std::function<void()>& work);

  // The functions from here to owner_id() may be called only inside call().
  core::Stack& stack() noexcept { return stack_; }
  TelemetryPage* page() noexcept { return page_; }
  datapath::Datapath& datapath() noexcept { return *datapath_; }
  // Sets the addresses of a peer, by path, for log lines and the trace.
  void name_peer(std::uint32_t peer, std::vector<std::string> addresses);
  // Allocates what owning a flow needs.
  void reserve_owner(std::uint32_t flow);
  // Makes the connection the owner of a flow, which is open or deferred. reserve_owner() must have been called.
  void own_flow(std::uint32_t flow, std::shared_ptr<ConnectionCore> connection) noexcept;
  // Handles the datagrams that wait in the sockets. A peer that ended may have sent its last acknowledgment or close
  // packet before this thread ran again.
  void receive_waiting() noexcept;
  std::int64_t time_ns() const noexcept { return now_ns_; }
  std::uint64_t owner_id(std::uint32_t flow) const noexcept;
  std::size_t open_flows() const noexcept { return open_flows_.load(std::memory_order_relaxed); }
  telemetry::EngineCounters counters() const noexcept { return telemetry::values(*counters_); }  // any thread

 private:
  // Bursts that are sent before the sockets are polled again. With more bursts, send times and RTTs would be less
  // accurate.
  static constexpr std::size_t kTxBatch = 8;
  static constexpr std::size_t kRingCommands = 8192;
  static constexpr std::size_t kQueuedMax = 64;  // an engine that sleeps is woken for so many deferred flows
  // Longest time between updates of the states in the telemetry page. An idle engine updates them once more and then
  // stops.
  static constexpr std::int64_t kStatesNs = 10'000'000;

  void place_thread() noexcept;
  void run() noexcept;
  bool round() noexcept;
  void sleep() noexcept;
  void doze(std::int64_t timeout_ns, std::int64_t asked_ns, std::uint64_t iterations) noexcept;
  bool call_here(const std::function<void()>& work);
  void leave_call() noexcept;
  void ring_if_on_sockets() noexcept;
  void wake() noexcept;
  void ring() noexcept;
  bool take_commands() noexcept;
  bool take_calls() noexcept;
  void do_command(const Command& command) noexcept;
  void do_abort(const CallQueue::Abort& abort) noexcept;
  Status post_receive(const Command& command) noexcept;
  void close_memory_window(std::uint32_t key) noexcept;
  void close_memory_windows_of(std::uint32_t flow) noexcept;
  bool transmit() noexcept;
  bool take_events() noexcept;
  void publish() noexcept;
  void on_peer_released(std::uint32_t peer) noexcept;
  void on_flow_closed(std::uint32_t flow) noexcept;
  void on_flow_stuck(std::uint32_t flow) noexcept;
  void release(std::uint32_t flow) noexcept;
  ConnectionCore* owner(std::uint32_t flow) noexcept { return flow < owners_.size() ? owners_[flow].get() : nullptr; }
  void on_datagram(std::uint32_t port, const wire::RxDatagram& datagram) override;
  bool config_of(std::uint32_t flow, core::FlowConfig* out) noexcept override;
  void on_flow_opened(std::uint32_t index, core::Flow* flow) noexcept override;

  const std::uint32_t id_;
  const std::int64_t spin_ns_;
  const std::int64_t poll_ns_;
  const double poll_share_;
  const std::vector<int> cpus_;
  TelemetryPage* const page_;
  telemetry::EnginePageRow own_row_;  // the engine's counters if there is no page
  telemetry::EnginePageRow* const row_;
  telemetry::EngineCells* const counters_;
  std::int64_t states_due_ns_ = INT64_MAX;  // when publish() is due; INT64_MAX: the states have not changed
  core::Stack stack_;
  EventLog event_log_;
  std::unique_ptr<EngineTrace> trace_;  // null: nothing is traced
  std::unique_ptr<datapath::Datapath> datapath_;
  const bool helps_;  // whether callers may run the loop
  int forks_ = 0;     // number of forks that led to the process in which the engine was started
  CommandRing<Command> ring_;
  CallQueue calls_;
  LoopLock loop_;
  std::int64_t sleeps_until_ns_ = 0;  // when the thread wakes at the latest; valid only while it sleeps
  bool looks_only_ = false;           // the thread was woken only because of new timers: it need not spin
  std::uint64_t moved_bytes_ = 0;     // bytes received and sent in this iteration
  std::atomic<bool> sleeping_{false};
  std::atomic<bool> woken_{false};       // wake() was called since the thread began to sleep
  std::atomic<bool> on_sockets_{false};  // the thread sleeps until a datagram arrives
  std::atomic<bool> stopping_{false};
  PeerWatch* peer_watch_ = nullptr;
  std::atomic<std::size_t> open_flows_{0};
  int doorbell_ = -1;
  std::int64_t now_ns_ = 0;
  std::int64_t realtime_ahead_ns_ = 0;                        // realtime_ahead_ns() in this iteration; 0: not read yet
  std::vector<std::shared_ptr<ConnectionCore>> owners_;       // by flow: its connection; null: the flow is not open
  std::vector<bool> quiesced_;                                // by flow: whether its buffers are released
  std::vector<bool> closed_;                                  // by flow: whether the stack has closed it
  std::unordered_map<std::uint32_t, std::uint32_t> windows_;  // by key of an open memory window: its flow
  std::unordered_map<std::uint32_t, std::int64_t> stuck_;     // by flow: when it was last reported to make no progress
  std::unique_ptr<wire::TxBurst[]> bursts_;
  wire::TxBurst* batch_[kTxBatch];
  std::thread thread_;
};

}  // namespace weft::engine
