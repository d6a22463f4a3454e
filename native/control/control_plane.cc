// The control plane's loop: one epoll instance for listening and control sockets, and all deadlines. The control thread
// runs it, or a caller that waits for its connection. Other threads only queue work and write to an eventfd.
#include "native/control/control_plane.h"

#include <poll.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "native/datapath/udp/reverse_path.h"
#include "native/engine/clock.h"
#include "native/engine/exceptions.h"
#include "native/engine/log.h"
#include "native/engine/setup/descriptor_budget.h"
#include "native/engine/signals_blocked.h"

namespace weft::control {
namespace {

// Limit of queued notices of engines about quiet peers. Further ones are dropped; the engine repeats a dropped notice a
// quarter of the silence limit later.
constexpr std::size_t kNoticesMax = 4096;
// The longest time for which a caller that waits for its connection runs the control thread's event loop. A reachable
// peer answers sooner.
constexpr std::int64_t kHelpNs = 2'000'000;
// The longest time for which one iteration of the event loop handles frames of unauthenticated peers, so that they
// delay other peers by at most this.
constexpr std::int64_t kStrangersNs = 2'000'000;
// Limit of events per epoll_wait(). Deferred sockets of unauthenticated peers stay readable; if there were more of them
// than this, the events of other sockets could be left out.
constexpr int kEventsMax = 1024;
constexpr int kPauseMs = 20;  // longest wait of the event loop while there are deadlines
// Deadlines are checked at most this often: it takes time for each session and each control socket, of which
// unauthenticated peers may hold thousands while they cause many iterations.
constexpr std::int64_t kCheckNs = 5'000'000;
// A longer time between two iterations of the event loop counts as a pause of this process.
constexpr std::int64_t kMissedNs = 100'000'000;
constexpr int kIdlePauseMs = 1000;  // longest wait of the event loop while there are sessions, which may become idle
constexpr std::int64_t kStallLogNs = 30'000'000'000;
// If an open request is not answered for this long, the state of the peer process is examined.
constexpr std::int64_t kAnswerNs = 1'000'000'000;
// If a peer's first pong after a deadline is later than this, the peer process had been stopped: a running one gets a
// ping at least every 250 ms.
constexpr std::int64_t kLateAnswerNs = 350'000'000;
// If a peer does not answer a dial for this long, this is logged; kStallLogNs later again.
constexpr std::int64_t kStalledDialNs = 2'000'000'000;
// How long a peer that is refused for lack of descriptors may use the spare descriptor, which is needed to refuse the
// next peer.
constexpr std::int64_t kTurnAwayNs = 500'000'000;

// Why a dial has failed to which nobody answered.
std::string no_answer(const datapath::SocketAddress& to, const std::vector<datapath::Interface>& interfaces) {
  const std::string said = "no answer from " + to.text() + " within the handshake timeout (WEFT_HANDSHAKE_TIMEOUT_NS)";
  const std::string likely = datapath::reverse_path_problem(interfaces, to);
  return likely.empty() ? said : said + "; " + likely;
}

}  // namespace

ControlPlane::ControlPlane(const engine::Knobs* knobs, std::vector<std::unique_ptr<engine::Engine>>* engines,
                           const engine::DatapathChoice* datapath, engine::Notifier* notifier,
                           engine::TelemetryPage* page, std::shared_ptr<engine::TraceWriter> trace, local::Host* host)
    : knobs_(knobs),
      engines_(engines),
      datapath_(datapath),
      devices_(&datapath->found.devices),
      notifier_(notifier),
      helped_(trace == nullptr),
      host_(host),
      wait_(knobs->spin_ns),
      setup_(knobs, engines, datapath, page, std::move(trace)),
      node_(random_token()),
      keyring_(node_, &sessions_, &open_listeners_),
      counters_(page == nullptr ? own_counters_ : page->process().counters),
      process_log_(knobs->peer_stall_ns),
      budget_({knobs->open_bytes_per_address, knobs->open_bytes}) {
  static_cast<void>(trace_.subscribe(&process_log_, core::kTraceProcesses));
}

ControlPlane::~ControlPlane() {
  stop();
  close_sockets();
  if (doorbell_ >= 0) ::close(doorbell_);
  if (epoll_ >= 0) ::close(epoll_);
}

Status ControlPlane::start(std::string* error) {
  if (const Status status = keyring_.load(knobs_->secret_file, error); status != Status::ok) return status;
  epoll_ = ::epoll_create1(EPOLL_CLOEXEC);
  doorbell_ = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (epoll_ < 0 || doorbell_ < 0) {
    const int problem = errno;
    *error = std::string("cannot create the control plane's descriptors: ") + std::strerror(problem);
    if (!engine::is_out_of_descriptors(problem)) return Status::system_error;
    *error += "; " + engine::raise_limit_advice();
    return Status::out_of_descriptors;
  }
  accept_gate_.open_spare();
  notices_.reserve(kNoticesMax);
  for (const auto& engine : *engines_) engine->call([&] { engine->watch_peers(this); });
  const engine::SignalsBlocked blocked;
  try {
    thread_ = std::thread([this] { run(); });
    ::pthread_setname_np(thread_.native_handle(), "weft-control");
  } catch (const std::exception& problem) {
    *error = std::string("cannot start the control thread: ") + problem.what();
  }
  return thread_.joinable() ? Status::ok : Status::system_error;
}

void ControlPlane::stop() noexcept {
  if (!thread_.joinable()) return;
  for (const auto& engine : *engines_) {
    try {
      engine->call([&] { engine->watch_peers(nullptr); });
    } catch (const std::bad_alloc&) {
      // Out of memory: the engine keeps its pointer to this control plane, which is safe, because engines stop before
      // the control plane is destroyed.
    }
  }
  stopping_.store(true);
  wake();
  thread_.join();
  const std::lock_guard<std::mutex> lock(share_.mutex());
  for (const auto& [id, session] : sessions_) {
    try {
      if (session->confirmed) {
        tell(core::ProcessEvent::Kind::disconnected, *session, 0, Status::ok, "this endpoint was closed");
      }
    } catch (const std::bad_alloc&) {  // out of memory: this line is not logged
    }
  }
}

void ControlPlane::wake() noexcept {
  const std::uint64_t one = 1;
  static_cast<void>(!::write(doorbell_, &one, sizeof one));
}

int ControlPlane::pause_ms() const noexcept {
  if (!unread_.empty() || !deferred_.empty()) return 0;
  bool waits = accept_gate_.is_paused() || !dials_.empty() || !accepts_.empty() || !confirmed_.empty();
  waits = waits || budget_.any_silent() || (host_ != nullptr && host_->has_guests());
  for (const auto& [id, socket] : sockets_) waits = waits || socket->state() != ControlSocket::State::ready;
  for (const auto& [id, session] : sessions_) waits = waits || session->tick_ns >= 0 || session->ends_ns >= 0;
  return waits ? kPauseMs : sessions_.empty() ? -1 : kIdlePauseMs;
}

void ControlPlane::run() noexcept {
  engine::prepare_exceptions();
  while (!stopping_.load()) {
    await_work();
    const std::lock_guard<std::mutex> lock(share_.mutex());
    if (!stopping_.load()) iterate();
  }
  // Tells the peers that the sessions end, so that they need not detect it themselves.
  const std::lock_guard<std::mutex> lock(share_.mutex());
  try {
    for (const auto& [id, session] : sessions_) static_cast<void>(send_to(session.get(), encode(Verdict{})));
  } catch (const std::bad_alloc&) {  // out of memory: the peers still see that the sockets are closed
  }
}

// Sleeps until there is work. Only this thread reads the eventfd, so that a write to it always wakes this thread.
void ControlPlane::await_work() noexcept {
  int pause = 0;
  std::int64_t opened_ns = 0;
  engine::Engine* home = nullptr;
  share_.stay_away(stopping_, &engine::now_ns, [&] {
    const std::lock_guard<std::mutex> lock(share_.mutex());
    pause = pause_ms();
    opened_ns = opened_ns_;
    home = opened_at_;
  });
  pollfd descriptors[2] = {{epoll_, POLLIN, 0}, {doorbell_, POLLIN, 0}};
  // A connection that was opened will soon carry its first message: while this thread spins, it runs the loop of the
  // connection's engine, whose thread need not be woken for it.
  bool helped = false;
  wait_.wait(descriptors, 2, pause, opened_ns, [&] {
    if (home != nullptr) helped = home->help() != engine::Engine::Help::busy;
  });
  if (helped && descriptors[0].revents == 0) home->unattend();
  std::uint64_t rung;
  if (descriptors[1].revents != 0) static_cast<void>(!::read(doorbell_, &rung, sizeof rung));
}

// One iteration of the loop. The caller holds the mutex of `share_`.
void ControlPlane::iterate() noexcept {
  epoll_event events[kEventsMax];
  const int count = ::epoll_wait(epoll_, events, kEventsMax, 0);
  try {
    credit_pause(engine::now_ns());
    strangers_until_ns_ = engine::now_ns() + kStrangersNs;
    // Sockets that had no turn in the last iteration come first, so that each gets one.
    std::vector<std::uint64_t> unread;
    unread.reserve(deferred_.size() + unread_.size());  // the lists stay whole if memory runs out
    unread.insert(unread.end(), deferred_.begin(), deferred_.end());
    unread.insert(unread.end(), unread_.begin(), unread_.end());
    deferred_.clear();
    unread_.clear();
    for (const std::uint64_t id : unread) {
      const auto place = sockets_.find(id);
      if (place == sockets_.end()) continue;
      place->second->deferred = false;
      on_readable(place->second.get());
    }
    for (int i = 0; i < count; ++i) serve(events[i].data.fd);
    take_notices();
    take_dials();
    const std::int64_t now = engine::now_ns();
    credit_pause(now);  // again, because the process may have been stopped (SIGSTOP) since the call above
    if (now - checked_ns_ >= kCheckNs) {
      checked_ns_ = now;
      check_deadlines(now);
    }
  } catch (const std::bad_alloc&) {
    engine::log(engine::LogLevel::error, "the control plane is out of memory; a connection attempt is lost");
  }
}

void ControlPlane::help(const DialState& dial, std::int64_t timeout_ns) noexcept {
  if (!helped_ || !share_.enter()) return;
  engine::prepare_exceptions();
  const std::int64_t begun_ns = engine::now_ns(), until_ns = begun_ns + std::min(kHelpNs, timeout_ns);
  bool more = true;
  while (more && engine::now_ns() < until_ns) {
    if (share_.see_caller(engine::now_ns())) wake();
    if (stopping_.load()) break;
    bool unread = false;
    const int pause = try_iterate(&unread) && unread ? 0 : 1;
    {
      const std::lock_guard<std::mutex> lock(dial.mutex);
      more = dial.status == Status::would_block;
    }
    pollfd descriptor{epoll_, POLLIN, 0};
    if (more) wait_.wait(&descriptor, 1, pause, begun_ns);
  }
  if (share_.leave()) wake();
}

void ControlPlane::serve(int descriptor) {
  bool listening = false;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    listening = listening_.count(descriptor) != 0;
  }
  if (listening) {
    accept_all(descriptor);
    return;
  }
  const auto place = by_descriptor_.find(descriptor);
  if (place == by_descriptor_.end()) return;
  ControlSocket* socket = sockets_.at(place->second).get();
  if (socket->state() == ControlSocket::State::connecting) {
    on_connected(socket);
  } else {
    on_readable(socket);
  }
}

void ControlPlane::dial(std::shared_ptr<DialState> dial) {
  dial->id = random_token();
  dial->begun_ns = engine::now_ns();
  dial->deadline_ns = dial->begun_ns + knobs_->handshake_timeout_ns;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    new_dials_.push_back(std::move(dial));
  }
  // Sends the open frame on this thread, if it can, instead of waking another one for that.
  if (helped_ && share_.enter()) {
    engine::prepare_exceptions();
    static_cast<void>(share_.see_caller(engine::now_ns()));
    bool unread = false;
    const bool ran = try_iterate(&unread) && !unread;
    if (!share_.leave() && ran) return;
  }
  wake();
}

// Runs an iteration for a caller that has entered `share_`, unless the control thread runs one: that may take longer
// than the caller may wait. `unread`: whether a next iteration has work already.
bool ControlPlane::try_iterate(bool* unread) noexcept {
  const std::unique_lock<std::mutex> lock(share_.mutex(), std::try_to_lock);
  if (!lock.owns_lock() || stopping_.load()) return false;
  share_.count_round();
  iterate();
  *unread = !unread_.empty();
  return true;
}

void ControlPlane::take_dials() {
  std::vector<std::shared_ptr<DialState>> taken;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    taken.swap(new_dials_);
  }
  for (const auto& dial : taken) {
    try {
      start_dial(dial);
    } catch (const std::bad_alloc&) {
      finish_dial(dial, Status::out_of_memory, "");
    }
  }
}

void ControlPlane::on_peer_quiet(std::uint32_t engine, std::uint32_t peer) noexcept {
  {
    const std::lock_guard<std::mutex> lock(notices_mutex_);
    if (notices_.size() == notices_.capacity()) return;  // an engine's thread must not allocate
    notices_.push_back({engine, peer});
  }
  wake();
}

void ControlPlane::take_notices() {
  {
    const std::lock_guard<std::mutex> lock(notices_mutex_);
    if (notices_.empty()) return;
  }
  std::vector<Notice> taken;
  taken.reserve(kNoticesMax);  // this vector is swapped with notices_, which must not grow on an engine's thread
  {
    const std::lock_guard<std::mutex> lock(notices_mutex_);
    taken.swap(notices_);
  }
  const std::int64_t now = engine::now_ns();
  for (const Notice& notice : taken) {
    Session* session = find_session(setup_.session_of(notice.engine, notice.peer));
    if (session != nullptr) examine(session, now);
  }
}

// Extends deadlines by the time in which this process was stopped or starved of CPU, which is not the peers' fault. A
// process that runs makes an iteration every kPauseMs while there are deadlines.
void ControlPlane::credit_pause(std::int64_t now_ns) {
  const std::int64_t missed_ns = now_ns - round_ns_;
  round_ns_ = now_ns;
  if (missed_ns < kMissedNs) return;
  for (auto& [id, pending] : dials_) pending.state->deadline_ns += missed_ns;
  for (auto& [id, accept] : accepts_) accept.deadline_ns += missed_ns;
  for (Confirmed& each : confirmed_) each.until_ns += missed_ns;
  for (auto& [id, socket] : sockets_) socket->credit_pause(missed_ns);
  setup_.credit_pause(missed_ns);
}

void ControlPlane::check_deadlines(std::int64_t now_ns) {
  if (accept_gate_.resume_due(now_ns)) {
    std::string ignored;
    const std::lock_guard<std::mutex> lock(mutex_);
    for (const auto& [descriptor, device] : listening_) static_cast<void>(watch_listening(descriptor, &ignored));
  }
  accept_gate_.open_spare();  // tries again if the spare descriptor could not be opened before
  check_strangers(now_ns);
  check_dials(now_ns);
  check_accepts(now_ns);
  check_sessions(now_ns);
  forget_confirmed(now_ns);
  if (host_ != nullptr) host_->tend();
}

// Drops the stored confirm frames of dials that need not be sent again any more. Only the oldest is checked: if
// say_again() has extended its time, those after it are kept longer too, which is harmless. Those of a session without
// a control socket are kept until it has one again.
void ControlPlane::forget_confirmed(std::int64_t now_ns) {
  while (!confirmed_.empty() && now_ns >= confirmed_.front().until_ns) {
    Confirmed oldest = confirmed_.front();
    confirmed_.pop_front();
    const Session* session = find_session(oldest.session);
    if (session == nullptr || session->current != 0) continue;
    oldest.until_ns = now_ns + knobs_->handshake_timeout_ns;
    confirmed_.push_back(oldest);
  }
}

void ControlPlane::check_strangers(std::int64_t now_ns) {
  std::vector<std::uint64_t> late;
  for (const auto& [id, socket] : sockets_) {
    const bool greets = socket->state() == ControlSocket::State::greeting && !socket->dialled();
    const std::int64_t patience_ns =
        socket->turned_away ? std::min(kTurnAwayNs, knobs_->handshake_timeout_ns) : knobs_->handshake_timeout_ns;
    if (greets && now_ns - socket->since_ns() >= patience_ns) late.push_back(id);
  }
  for (const std::uint64_t id : late) {
    stranger(*sockets_.at(id), "sent no valid hello in time");
    drop_socket(sockets_.at(id).get(), "no hello in time");
  }
}

// Whether the peer process has answered a ping since `since_ns` and its control socket works. If so, the peer is to
// blame for a reply that is missing.
bool ControlPlane::hears(const Session& session, std::int64_t since_ns) const noexcept {
  return session.current != 0 && session.pong_ns > since_ns && session.health.condition() == Condition::well;
}

// After the handshake timeout, a dial keeps waiting only while the peer process is stalled or is being examined, or
// while its lost control socket is being re-established.
void ControlPlane::check_dials(std::int64_t now_ns) {
  std::vector<std::shared_ptr<DialState>> abandoned, overdue;
  for (auto& [id, pending] : dials_) {
    DialState& dial = *pending.state;
    bool gone = false;
    {
      const std::lock_guard<std::mutex> lock(dial.mutex);
      gone = dial.abandoned;
    }
    Session* session = find_session(pending.session);
    if (gone || session == nullptr) {
      abandoned.push_back(pending.state);
      continue;
    }
    tell_cause(*session, &dial);
    const bool answered_late = !pending.frame.empty() && now_ns - dial.begun_ns >= kAnswerNs;
    if (session->greeted && answered_late) examine(session, now_ns);
    // A queued dial needs no timeout of its own: it waits only for the dials before it in the queue, which do time out.
    const bool queued = session->greeted && pending.frame.empty() && session->opening != 0;
    const bool late = now_ns >= dial.deadline_ns && !queued;
    if (!late && (dial.stall_told || now_ns - dial.begun_ns < kStalledDialNs)) continue;
    const bool examined = session->greeted && session->health.begun();
    bool stalled = examined && session->health.condition() == Condition::stalled;
    for (const auto& [socket_id, socket] : sockets_) {
      if (session->greeted || socket->session != session->id) continue;
      const ControlSocket::Kernel kernel = socket->kernel(now_ns);
      stalled = stalled || (kernel.established && kernel.answers);
    }
    if (stalled) tell_stalled(session, &dial, now_ns);
    if (!stalled && !session->greeted) tell_no_answer(session, dial, now_ns);
    if (!late) continue;
    const bool waits = stalled || (session->greeted && !hears(*session, dial.begun_ns));
    const bool for_ever = knobs_->peer_stall_ns == 0;
    if (!waits || (!for_ever && now_ns - dial.begun_ns >= knobs_->peer_stall_ns)) {
      overdue.push_back(pending.state);
      continue;
    }
    // The full timeout applies from the moment when the peer runs again.
    dial.deadline_ns = now_ns + knobs_->handshake_timeout_ns;
  }
  for (const auto& dial : abandoned) finish_dial(dial, Status::cancelled, "abandoned");
  std::string unused;
  std::vector<datapath::Interface> interfaces;  // listed once, however many dials are overdue
  if (!overdue.empty()) interfaces = datapath::list_interfaces(&unused);
  for (const auto& dial : overdue) {
    const auto place = dials_.find(dial->id);
    const Session* session = place == dials_.end() ? nullptr : find_session(place->second.session);
    const std::string late = no_answer(dial->to, interfaces);
    const std::string last = session == nullptr ? "" : session->last_error;
    const Status cause = session == nullptr ? Status::would_block : session->last_status;
    if (cause != Status::would_block && !last.empty()) {
      finish_dial(dial, cause, last + "; " + late);
    } else {
      finish_dial(dial, Status::timed_out, last.empty() ? late : late + "; " + last);
    }
  }
}

// Stores the session's last error in the dial, for a caller that stops waiting before the connection attempts end.
void ControlPlane::tell_cause(const Session& session, DialState* dial) {
  const std::lock_guard<std::mutex> lock(dial->mutex);
  if (dial->cause == session.last_status) return;
  dial->cause = session.last_status;
  dial->error = dial->cause == Status::would_block ? "" : session.last_error;
  dial->stall_told = false;
}

// Stores in the dial, and logs, that the peer is stalled. A caller that stops waiting gets this error.
void ControlPlane::tell_stalled(Session* session, DialState* dial, std::int64_t now_ns) {
  const std::string what =
      session->name + " accepts connections but does not answer: its process is stalled, or is not weft";
  if (!dial->stall_told) {
    const std::lock_guard<std::mutex> lock(dial->mutex);
    dial->error = what;
  }
  dial->stall_told = true;
  if (session->dial_stall_logged_ns >= 0 && now_ns - session->dial_stall_logged_ns < kStallLogNs) return;
  session->dial_stall_logged_ns = now_ns;
  engine::log(engine::LogLevel::warn, what + "; the dial has been waiting for " +
                                          std::to_string((now_ns - dial->begun_ns) / 1'000'000'000) +
                                          " s (limit: WEFT_PEER_TIMEOUT=stall)");
}

// Logs that not even the peer's host answers. A refusal, or another error that the host's kernel reports, ends the dial
// and is not logged here.
void ControlPlane::tell_no_answer(Session* session, const DialState& dial, std::int64_t now_ns) {
  if (session->no_answer_logged_ns >= 0 && now_ns - session->no_answer_logged_ns < kStallLogNs) return;
  session->no_answer_logged_ns = now_ns;
  std::string unused;
  const std::string likely = datapath::reverse_path_problem(datapath::list_interfaces(&unused), dial.to);
  const datapath::DeviceState& device = (*devices_)[session->device];
  engine::log(engine::LogLevel::warn,
              "no answer from " + session->name + " for " + std::to_string((now_ns - dial.begun_ns) / 1'000'000'000) +
                  " s, dialled from " + device.info.name + " (" + device.info.address + "): " +
                  (likely.empty() ? "a firewall drops TCP to this port, the address is wrong or leads over another "
                                    "interface (WEFT_INTERFACES), or the host is down"
                                  : likely) +
                  "; still trying (weft doctor --serve and --peer test the way)");
}

// Ends open requests that the dialler has not confirmed within the handshake timeout. The dialler's process may have
// been stopped in that time; only a pong after the deadline shows that it runs. If that pong is later than
// kLateAnswerNs, the process was stopped and has just continued, so the full timeout applies again.
void ControlPlane::check_accepts(std::int64_t now_ns) {
  for (auto place = accepts_.begin(); place != accepts_.end();) {
    auto& accept = place->second;
    Session* session = find_session(place->first.first);
    const bool late = now_ns >= accept.deadline_ns;
    if (session != nullptr && (late || now_ns - accept.begun_ns >= kAnswerNs)) examine(session, now_ns);
    const bool waits = late && session != nullptr && !hears(*session, accept.deadline_ns);
    const bool went_on = late && session != nullptr && !waits && session->pong_ns - accept.deadline_ns > kLateAnswerNs;
    if (went_on) accept.deadline_ns = now_ns + knobs_->handshake_timeout_ns;
    if (!late || waits || went_on) {
      ++place;
      continue;
    }
    accept.connection->fail(Status::timed_out);
    if (session != nullptr) forget_open(session, place->first.second);
    place = accepts_.erase(place);
  }
}

}  // namespace weft::control
