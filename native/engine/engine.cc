// The engine's event loop. An iteration handles calls, commands, received datagrams, timers, bursts to send, and
// events. An idle engine first spins and then sleeps; then a caller that waits can run the loop (help()). Other threads
// access only the command ring and the queue of calls.
#include "native/engine/engine.h"

#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <new>
#include <utility>

#include "native/engine/clock.h"
#include "native/engine/connection.h"
#include "native/engine/exceptions.h"
#include "native/engine/fork_count.h"
#include "native/engine/futex.h"
#include "native/engine/log.h"
#include "native/engine/page_states.h"
#include "native/engine/signals_blocked.h"
#include "native/policy/loader.h"

namespace weft::engine {
namespace {

// Longest sleep while the datapath holds datagrams back to reorder them (fault injection).
constexpr std::int64_t kHoldSleepNs = 1'000'000;
// A datagram does not wait longer than this in a socket: an older time stamp means that the clock was changed.
constexpr std::int64_t kWaitNsMax = 10'000'000'000;
// If an idle iteration takes this long, the thread was preempted and another thread needs the core. For kSharedCoreNs
// the engine then sleeps when it is idle, instead of spinning.
constexpr std::int64_t kInterruptedNs = 100'000;
constexpr std::int64_t kSharedCoreNs = 1'000'000'000;
// If the thread has not run for this long, the engine reads all waiting datagrams before it runs its timers.
constexpr std::int64_t kAwayNs = 1'000'000;
constexpr int kAwayBursts = 64;
constexpr int kCallTries = 1'000;
constexpr std::int64_t kAskedLatelyNs = 1'000'000'000;
constexpr int kCallRounds = 8;  // maximum number of loop iterations that leave_call() runs for the engine's thread
constexpr std::chrono::milliseconds kCallPause{1};

core::StackConfig with_counters(core::StackConfig config, telemetry::EngineCells* counters) noexcept {
  config.counters = counters;
  return config;
}

}  // namespace

Engine::Engine(std::uint32_t id, const EngineConfig& config, std::unique_ptr<datapath::Datapath> datapath)
    : id_(id),
      spin_ns_(config.spin_ns),
      poll_ns_(config.poll_ns),
      poll_share_(config.poll_share),
      cpus_(config.cpus),
      page_(config.page),
      row_(page_ == nullptr ? &own_row_ : &page_->engine(id)),
      counters_(&row_->counters),
      stack_(with_counters(config.stack, counters_)),
      event_log_(&stack_),
      datapath_(std::move(datapath)),
      // A trace has one ring buffer per thread, which keeps the order of that thread's records only. So while a trace
      // is written, only the engine's thread may run the loop.
      helps_(config.poll_ns != 0 && datapath_->sleeps_apart() && config.trace == nullptr),
      ring_(kRingCommands),
      bursts_(std::make_unique<wire::TxBurst[]>(kTxBatch)) {
  for (std::size_t i = 0; i < kTxBatch; ++i) batch_[i] = &bursts_[i];
  datapath_->count_in(counters_);
  stack_.supply_flows(this);
  if (page_ != nullptr) stack_.changed().want();
  if (config.trace != nullptr) trace_ = std::make_unique<EngineTrace>(id, &stack_, config.trace);
}

Engine::~Engine() {
  stop();
  if (doorbell_ >= 0) ::close(doorbell_);
}

// Limits the engine's thread to the configured CPUs. On failure the thread keeps the CPU mask of the thread that
// created it, which is only slower.
void Engine::place_thread() noexcept {
  if (cpus_.empty()) return;
  cpu_set_t mask;
  CPU_ZERO(&mask);
  for (const int cpu : cpus_) CPU_SET(cpu, &mask);
  const int problem = ::pthread_setaffinity_np(thread_.native_handle(), sizeof mask, &mask);
  if (problem != 0)
    log(LogLevel::warn,
        std::string("cannot limit an engine's thread to its CPUs (WEFT_ENGINE_CPUS): ") + std::strerror(problem));
}

bool Engine::start(std::string* error) {
  forks_ = fork_count().load();
  if (!datapath_->open(error)) return false;
  doorbell_ = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (doorbell_ < 0) {
    *error = std::string("cannot create an engine's eventfd: ") + std::strerror(errno);
    return false;
  }
  if (!datapath_->watch(doorbell_)) {
    *error = std::string("cannot watch an engine's eventfd: ") + std::strerror(errno);
    return false;
  }
  const SignalsBlocked blocked;
  try {
    thread_ = std::thread([this] { run(); });
    const std::string name = "weft-engine-" + std::to_string(id_);
    ::pthread_setname_np(thread_.native_handle(), name.substr(0, 15).c_str());
    place_thread();
  } catch (const std::exception& problem) {
    *error = std::string("cannot start an engine's thread: ") + problem.what();
  }
  return thread_.joinable();
}

void Engine::stop() noexcept {
  if (!thread_.joinable()) return;
  stopping_.store(true, std::memory_order_release);
  wake();
  thread_.join();
}

void Engine::run() noexcept {
  prepare_exceptions();
  std::int64_t busy_ns = now_ns();
  std::int64_t idle_ns = 0;  // start of the previous iteration if it was idle and no sleep followed; else 0
  std::int64_t shared_until_ns = 0;
  bool was_busy = false;
  while (!stopping_.load(std::memory_order_acquire)) {
    ++counters_->loops;
    const bool busy = round();
    if (moved_bytes_ != 0) static_cast<void>(loop_.count(now_ns_, moved_bytes_));
    if (idle_ns != 0 && now_ns_ - idle_ns > kInterruptedNs) shared_until_ns = now_ns_ + kSharedCoreNs;
    idle_ns = busy ? 0 : now_ns_;
    if (busy) {
      busy_ns = now_ns_;
    } else if (now_ns_ - busy_ns >= spin_ns_ || now_ns_ < shared_until_ns || loop_.attended(now_ns_)) {
      sleep();
      const std::int64_t awake_ns = now_ns();
      stack_.on_away(now_ns_, awake_ns);
      busy_ns = awake_ns - (std::exchange(looks_only_, false) ? spin_ns_ : 0);
      idle_ns = 0;
    } else if (was_busy) {
      // Yields once when work ends: a thread that was just woken may need this core, and would have to wait until the
      // spinning ends. Only once, because each yield can cost a whole time slice.
      ::sched_yield();
    } else {
      relax();
    }
    was_busy = busy;
  }
  take_calls();
}

bool Engine::round() noexcept {
  const std::int64_t before_ns = now_ns_;
  now_ns_ = now_ns();
  if (now_ns_ - before_ns > kAwayNs) stack_.on_away(before_ns, now_ns_);
  realtime_ahead_ns_ = 0;
  moved_bytes_ = 0;
  row_->turn_ns.set(now_ns_);
  bool busy = take_calls();
  busy |= take_commands();
  busy |= take_calls();  // again, as late as possible: the packets below may be for flows that were deferred meanwhile
  // After a pause of this thread, reads all waiting datagrams before the timers run, which would otherwise report
  // losses.
  const int bursts_max = now_ns_ - before_ns > kAwayNs ? kAwayBursts : 1;
  for (int burst = 0; burst < bursts_max && datapath_->rx_burst(this) != 0; ++burst) busy = true;
  event_log_.on_received(now_ns_);
  if (stack_.poll_timeout() <= now_ns_) stack_.on_timer(now_ns_);
  // Must precede transmit(): the memory window of a complete message is closed before the acknowledgment is sent (P-1).
  // After the acknowledgment the sender may reuse its buffer, which a late RDMA write could still read.
  busy |= take_events();
  busy |= transmit();
  busy |= take_events();
  if (busy && page_ != nullptr && states_due_ns_ == INT64_MAX)
    states_due_ns_ = std::max(now_ns_, row_->published_ns + kStatesNs);
  if (now_ns_ >= states_due_ns_) publish();
  return busy;
}

void Engine::receive_waiting() noexcept {
  for (int burst = 0; burst < kAwayBursts && datapath_->rx_burst(this) != 0; ++burst) {
  }
}

// Sleeps until there is work for this thread. Callers may run the loop meanwhile.
void Engine::sleep() noexcept {
  sleeping_.store(true, std::memory_order_seq_cst);
  std::atomic_thread_fence(std::memory_order_seq_cst);
  // Checks for work once more: a thread that posted before it saw `sleeping_` did not write to the eventfd.
  const std::int64_t asked_ns = loop_.asked_ns();
  const bool attended = loop_.attended(now_ns());
  const bool idle = ring_.empty();
  const bool called = !calls_.empty() || stopping_.load(std::memory_order_seq_cst);
  if (!called && (idle || attended)) {
    const std::int64_t due_ns = std::min({stack_.poll_timeout(), states_due_ns_, event_log_.due_ns()});
    std::int64_t timeout_ns = due_ns == core::kNever ? -1 : std::max<std::int64_t>(due_ns - now_ns(), 0);
    if (datapath_->holds_datagrams()) timeout_ns = timeout_ns < 0 ? kHoldSleepNs : std::min(timeout_ns, kHoldSleepNs);
    row_->sleeping.set(1);
    sleeps_until_ns_ = due_ns;
    const std::uint64_t iterations = loop_.iterations();
    loop_.leave();
    doze(attended ? 0 : timeout_ns, asked_ns, iterations);
    loop_.enter();
    row_->sleeping.set(0);
    ++counters_->wakeups;
  }
  sleeping_.store(false, std::memory_order_relaxed);
  woken_.store(false, std::memory_order_relaxed);
  std::uint64_t rung;
  static_cast<void>(!::read(doorbell_, &rung, sizeof rung));
}

// Sleeps without holding the loop's lock, until a datagram arrives or the timeout has passed. Skips this sleep if a
// caller has asked for the loop or run it since `asked_ns` and `iterations` were read. As long as callers run the loop,
// datagrams do not wake this thread: it only checks regularly whether callers still run it.
void Engine::doze(std::int64_t timeout_ns, std::int64_t asked_ns, std::uint64_t iterations) noexcept {
  on_sockets_.store(true, std::memory_order_seq_cst);
  // Either this thread sees that a caller has asked for the loop or has run it, which may have set timers, or the
  // caller sees `on_sockets_` and wakes this thread.
  if (timeout_ns != 0 && loop_.asked_ns() == asked_ns && loop_.iterations() == iterations) datapath_->wait(timeout_ns);
  on_sockets_.store(false, std::memory_order_seq_cst);
  while (loop_.attended(now_ns()) && !woken_.load(std::memory_order_seq_cst)) {
    std::uint64_t rung;
    static_cast<void>(!::read(doorbell_, &rung, sizeof rung));
    if (woken_.load(std::memory_order_seq_cst)) break;
    pollfd descriptor{doorbell_, POLLIN, 0};
    const timespec timeout{0, LoopLock::kAttendedNs};
    ::ppoll(&descriptor, 1, &timeout, nullptr);
  }
}

void Engine::wake() noexcept {
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (!sleeping_.load(std::memory_order_relaxed)) return;
  woken_.store(true, std::memory_order_seq_cst);
  ring();
}

void Engine::ring() noexcept {
  const std::uint64_t one = 1;
  static_cast<void>(!::write(doorbell_, &one, sizeof one));
}

Engine::Help Engine::help() noexcept {
  if (!helps_ || forks_ != fork_count().load(std::memory_order_relaxed)) return Help::busy;
  const std::int64_t now = now_ns();
  if (!loop_.ask(now)) return Help::busy;
  if (!loop_.try_enter()) return Help::taken;
  stack_.on_away(now_ns_, now);  // no thread has run the loop since now_ns_
  row_->sleeping.set(0);
  ++counters_->loops;
  loop_.count_iteration();
  static_cast<void>(round());
  const bool bulk = loop_.count(now_ns_, moved_bytes_);
  row_->sleeping.set(1);
  loop_.leave();
  if (bulk) {
    wake();
  } else {
    ring_if_on_sockets();
  }
  return bulk ? Help::busy : Help::ran;
}

// To be called after another thread has run an iteration, which may have set earlier timers: wakes the engine's thread,
// so that it computes anew how long to sleep.
void Engine::ring_if_on_sockets() noexcept {
  if (on_sockets_.exchange(false, std::memory_order_seq_cst)) ring();
}

void Engine::unattend() noexcept {
  if (!loop_.attended(now_ns())) return;
  loop_.forsake();
  wake();
}

void Engine::keep_loop(std::int64_t now_ns) noexcept {
  if (loop_.keep(now_ns)) wake();
}

void Engine::post(const Command& command, bool lazily) noexcept {
  ring_.post(command);
  // Either this thread sees that no caller runs the loop, or the caller that runs the loop sees the command.
  if (lazily) std::atomic_thread_fence(std::memory_order_seq_cst);
  if (!lazily || !loop_.attended(now_ns())) wake();
}

void Engine::abort(std::uint32_t flow, std::uint64_t connection, Status reason) noexcept {
  // The abort must not get lost: if memory runs out, it is retried a little later.
  const CallQueue::Abort abort{flow, connection, reason};
  for (int tries = 0; !calls_.post(abort) && tries < kCallTries; ++tries) std::this_thread::sleep_for(kCallPause);
  wake();
}

void Engine::call(const std::function<void()>& work) {
  if (call_here(work)) return;
  Call call(work);
  if (!calls_.post(&call)) throw std::bad_alloc();
  wake();
  call.wait();
}

// Runs `work` on the calling thread if no thread runs the loop: to wake the engine's thread and to be woken by it would
// take far longer than most work does.
bool Engine::call_here(const std::function<void()>& work) {
  if (!helps_ || forks_ != fork_count().load(std::memory_order_relaxed) || !loop_.try_enter()) return false;
  struct Leave {
    Engine* engine;
    ~Leave() { engine->leave_call(); }
  } leave{this};
  row_->sleeping.set(0);
  loop_.count_iteration();
  const std::int64_t before_ns = std::exchange(now_ns_, now_ns());
  stack_.on_away(before_ns, now_ns_);
  take_calls();  // calls that were queued before this one
  work();
  return true;
}

// Runs the loop to send what the call has queued. Wakes the engine's thread if work is left, or if a timer is due
// before the end of its sleep.
void Engine::leave_call() noexcept {
  if (page_ != nullptr && states_due_ns_ == INT64_MAX)
    states_due_ns_ = std::max(now_ns_, row_->published_ns + kStatesNs);
  bool busy = true;
  for (int i = 0; i < kCallRounds && busy; ++i) busy = round();
  const std::int64_t due_ns = std::min({stack_.poll_timeout(), states_due_ns_, event_log_.due_ns()});
  const bool late = busy || due_ns < sleeps_until_ns_;
  looks_only_ = late && !busy;
  row_->sleeping.set(1);
  loop_.leave();
  std::atomic_thread_fence(std::memory_order_seq_cst);  // either a caller can enter, or its ask() is seen below
  if (late) {
    wake();
  } else if (now_ns() - loop_.asked_ns() < kAskedLatelyNs) {
    ring_if_on_sockets();  // a help() during this call may have found the loop taken and returned without ringing
  }
}

bool Engine::take_calls() noexcept {
  return calls_.take([this](const CallQueue::Abort& abort) { do_abort(abort); },
                     [this](CallQueue::Deferred deferred) {
                       stack_.defer_flow(now_ns_, deferred.flow, deferred.peer);
                       own_flow(deferred.flow, std::move(deferred.owner));
                     });
}

bool Engine::defer(std::uint32_t flow, std::uint32_t peer, std::shared_ptr<ConnectionCore> owner) noexcept {
  const std::size_t queued = calls_.post({flow, peer, std::move(owner)});
  if (queued >= kQueuedMax) wake();
  return queued != 0;
}

void Engine::do_abort(const CallQueue::Abort& abort) noexcept {
  ConnectionCore* connection = owner(abort.flow);
  if (connection == nullptr || connection->id() != abort.connection) return;
  stack_.close_flow(now_ns_, abort.flow, abort.reason);
  if (quiesced_[abort.flow]) return;
  quiesced_[abort.flow] = true;
  close_memory_windows_of(abort.flow);
  // Waits until the NIC no longer reads the buffer: otherwise the NIC could send what the caller writes there next,
  // with a valid header.
  if (const core::Flow* flow = stack_.flow(abort.flow)) datapath_->quiesce(flow->config.peer);
  const std::shared_ptr<ConnectionCore> keep = owners_[abort.flow];
  if (closed_[abort.flow]) release(abort.flow);
  keep->on_flow_quiesced();
}

bool Engine::take_commands() noexcept {
  Command command;
  bool any = false;
  // The number of commands per iteration is limited, so that sockets are read even if many requests are posted.
  for (int i = 0; i < 256 && ring_.poll(&command); ++i) {
    do_command(command);
    any = true;
  }
  return any;
}

void Engine::do_command(const Command& command) noexcept {
  // The flow may have been deferred after this iteration took its calls, but before the command was posted.
  if (owner_id(command.flow) != command.connection) take_calls();
  ConnectionCore* connection = owner(command.flow);
  // The connection failed after the post: sweep() completes the request.
  if (connection == nullptr || connection->id() != command.connection) return;
  if (command.kind == Command::Kind::staged) return stack_.on_staged(command.flow);
  const Status status = command.kind == Command::Kind::send ? stack_.post_send(now_ns_, command.flow, command.send)
                                                            : post_receive(command);
  if (status == Status::ok) return;
  // The peer has closed this flow. That is no error yet: the connection fails when the peer has closed all flows.
  if (command.kind == Command::Kind::send && status == Status::connection_closed) return;
  connection->fail(status == Status::would_block ? Status::out_of_memory : status);
}

Status Engine::post_receive(const Command& command) noexcept {
  core::ReceivePost receive = command.receive;
  if (command.memory != 0 && receive.capacity_bytes > stack_.config().eager_bytes) {
    const core::Flow* flow = stack_.flow(command.flow);
    if (flow == nullptr) flow = stack_.open_deferred(now_ns_, command.flow);
    if (flow != nullptr) {
      receive.key =
          datapath_->open_memory_window(flow->config.peer, command.memory, receive.data, receive.capacity_bytes);
    }
  }
  try {
    if (receive.key != 0) windows_[receive.key] = command.flow;
  } catch (const std::bad_alloc&) {
    datapath_->close_memory_window(std::exchange(receive.key, 0));
  }
  const Status status = stack_.post_receive(now_ns_, command.flow, receive);
  if (status != Status::ok) close_memory_window(receive.key);
  return status;
}

void Engine::close_memory_window(std::uint32_t key) noexcept {
  if (key == 0) return;
  datapath_->close_memory_window(key);
  windows_.erase(key);
}

void Engine::close_memory_windows_of(std::uint32_t flow) noexcept {
  std::erase_if(windows_, [&](const auto& window) {
    if (window.second != flow) return false;
    datapath_->close_memory_window(window.first);
    return true;
  });
}

void Engine::on_datagram(std::uint32_t port, const wire::RxDatagram& datagram) {
  static_cast<void>(port);
  moved_bytes_ += datagram.payload_bytes;
  if (datagram.stamp_ns != 0 && realtime_ahead_ns_ == 0) realtime_ahead_ns_ = realtime_ahead_ns();
  std::int64_t arrived_ns = datagram.stamp_ns == 0 ? 0 : datagram.stamp_ns - realtime_ahead_ns_;
  if (arrived_ns > now_ns_) arrived_ns = std::min(arrived_ns, now_ns());  // the datagram arrived during this iteration
  // A much older time stamp means that the clock was changed; then the arrival time is unknown.
  const bool known = arrived_ns > now_ns_ - kWaitNsMax;
  stack_.on_datagram(now_ns_, datagram, known ? arrived_ns : 0);
}

bool Engine::transmit() noexcept {
  std::size_t count = 0;
  // Reads the clock again, because segments carry their send time and receiving has taken some time.
  const std::int64_t leaves_ns = now_ns();
  while (count < kTxBatch && stack_.poll_transmit(leaves_ns, batch_[count])) ++count;
  if (count == 0) return false;
  for (std::size_t i = 0; i < count; ++i) moved_bytes_ += batch_[i]->total_bytes();
  datapath_->tx_burst(batch_, count);
  if (now_ns() - leaves_ns > kAwayNs) stack_.on_late_departure(leaves_ns);
  return true;
}

bool Engine::take_events() noexcept {
  core::Event event;
  bool any = false;
  while (stack_.poll_event(&event)) {
    any = true;
    switch (event.kind) {
      case core::Event::Kind::send_done:
        if (ConnectionCore* connection = owner(event.flow)) {
          connection->on_send_done(static_cast<RequestSlot*>(event.cookie), event.value);
        }
        break;
      case core::Event::Kind::window_unused:
        close_memory_window(event.key);
        break;
      case core::Event::Kind::stripe_placed:
        close_memory_window(event.key);
        if (ConnectionCore* connection = owner(event.flow)) {
          connection->on_stripe_placed(static_cast<core::ReceiveTicket*>(event.cookie), event.value);
        }
        break;
      case core::Event::Kind::flow_failed:
        if (ConnectionCore* connection = owner(event.flow)) connection->fail(event.status);
        break;
      case core::Event::Kind::peer_closed:
        if (ConnectionCore* connection = owner(event.flow))
          connection->on_peer_closed(event.value, event.receive_waits, event.status);
        break;
      case core::Event::Kind::flow_closed:
        on_flow_closed(event.flow);
        break;
      case core::Event::Kind::peer_released:
        on_peer_released(event.peer);
        break;
      case core::Event::Kind::peer_quiet:
        if (peer_watch_ != nullptr) peer_watch_->on_peer_quiet(id_, event.peer);
        break;
      case core::Event::Kind::flow_stuck:
        on_flow_stuck(event.flow);
        break;
      default:  // other kinds of event are only for trace sinks
        break;
    }
  }
  return any;
}

// Writes the states of the engine's peers and flows to the telemetry page. The counters are in the page already.
void Engine::publish() noexcept {
  states_due_ns_ = INT64_MAX;
  row_->open_flows.set(static_cast<std::int64_t>(open_flows()));
  row_->published_ns.set(now_ns_);
  write_states(&stack_, page_);
  if (trace_ != nullptr) trace_->snapshot(now_ns_, counters_->host_drops);
}

void Engine::on_peer_released(std::uint32_t peer) noexcept {
  datapath_->close_link(peer);
  const core::Peer* gone = stack_.peer(peer);
  const telemetry::PeerCells* counters = gone == nullptr ? nullptr : gone->config().counters;
  stack_.release_peer(peer);
  if (page_ != nullptr) page_->give_back(page_->peer_row(counters));
}

// The stack has closed the flow. The flow is kept until its buffers are released, because eager messages may still be
// received.
void Engine::on_flow_closed(std::uint32_t flow) noexcept {
  if (owner(flow) == nullptr) return;
  closed_[flow] = true;
  if (quiesced_[flow]) release(flow);
}

// Gives up a flow without progress. The stack repeats the event every quarter of the silence limit; only the second one
// counts, because the first may occur only because this thread did not run.
void Engine::on_flow_stuck(std::uint32_t flow) noexcept {
  try {
    const auto [place, first] = stuck_.try_emplace(flow, now_ns_);
    const std::int64_t since_ns = now_ns_ - std::exchange(place->second, now_ns_);
    if (first || since_ns > stack_.config().peer_silence_ns / 2) return;
    stuck_.erase(place);
  } catch (const std::bad_alloc&) {
    return;
  }
  stack_.give_up_flow(now_ns_, flow, Status::no_progress);
}

void Engine::release(std::uint32_t flow) noexcept {
  stuck_.erase(flow);
  core::Flow* gone = stack_.flow(flow);
  owners_[flow]->on_flow_released(this, flow);
  owners_[flow].reset();
  open_flows_.fetch_sub(1, std::memory_order_relaxed);
  const telemetry::FlowCells* counters = gone == nullptr ? nullptr : gone->config.counters;
  stack_.release_flow(flow);
  if (page_ != nullptr) page_->give_back(page_->flow_row(counters));
}

void Engine::name_peer(std::uint32_t peer, std::vector<std::string> addresses) {
  if (trace_ != nullptr) trace_->name_peer(peer, addresses);
  event_log_.name_peer(peer, std::move(addresses));
}

void Engine::reserve_owner(std::uint32_t flow) {
  if (trace_ != nullptr) trace_->name_flow(flow, 0);
  if (owners_.size() > flow) return;
  quiesced_.resize(flow + 1, false);
  closed_.resize(flow + 1, false);
  owners_.resize(flow + 1);  // last: its size tells that there is room in all
}

void Engine::own_flow(std::uint32_t flow, std::shared_ptr<ConnectionCore> connection) noexcept {
  if (trace_ != nullptr) trace_->name_flow(flow, connection->trace().record());
  owners_[flow] = std::move(connection);
  quiesced_[flow] = closed_[flow] = false;
  open_flows_.fetch_add(1, std::memory_order_relaxed);
  if (core::Flow* const opened = stack_.flow(flow)) on_flow_opened(flow, opened);
}

bool Engine::config_of(std::uint32_t flow, core::FlowConfig* out) noexcept {
  const ConnectionCore* const connection = owner(flow);
  return connection != nullptr && connection->deferred_config(this, flow, out);
}

void Engine::on_flow_opened(std::uint32_t index, core::Flow* flow) noexcept {
  ConnectionCore* const connection = owners_[index].get();
  if (page_ != nullptr) take_row(page_, id_, connection->id(), flow);
  connection->on_flow_opened(this, index, flow);
}

std::uint64_t Engine::owner_id(std::uint32_t flow) const noexcept {
  return flow < owners_.size() && owners_[flow] != nullptr ? owners_[flow]->id() : 0;
}

}  // namespace weft::engine
