// Creates, examines and ends sessions. A session is created by the first dial or hello, examined when its process is
// quiet or its last control socket is lost, and ended by a verdict that is sent to the peer.
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>

#include "native/control/control_plane.h"
#include "native/engine/clock.h"
#include "native/engine/log.h"

namespace weft::control {
namespace {

constexpr std::int64_t kTickNsMin = 20'000'000, kTickNsMax = 250'000'000;
// Tick length while a peer is examined whose host has closed all control sockets, so that its death is detected within
// 0.1 to 0.2 s.
constexpr std::int64_t kEndedTickNs = 50'000'000;
constexpr int kWellTicks = 4;  // consecutive ticks in condition `well` that end the examination of a peer
constexpr std::int64_t kStallSayNs = 1'000'000'000, kStallSayAgainNs = 30'000'000'000;
constexpr std::int64_t kIdleCheckNs = 10'000'000'000;
// How often it is examined at least whether messages in shared memory move.
constexpr std::int64_t kStuckCheckNs = 5'000'000'000;
// A session without connections ends after this idle time. The end that opened the session has the shorter time, so
// that it acts first.
constexpr std::int64_t kIdleNs = 60'000'000'000, kIdleTakenNs = 90'000'000'000;
// Limits for sessions in which no connection was ever completed: the idle time after which they end, and their number.
constexpr std::int64_t kUnconfirmedNs = 15'000'000'000;
constexpr std::size_t kUnusedSessionsMax = 256;
constexpr std::int64_t kOpensSoonNs = 1'000'000'000;  // a genuine peer opens a connection within this time

}  // namespace

HealthLimits ControlPlane::limits() const noexcept {
  HealthLimits limits;
  limits.dead_ns = knobs_->peer_dead_ns;
  limits.silence_ns = knobs_->peer_silence_ns;
  limits.stall_ns = knobs_->peer_stall_ns;
  limits.tick_ns = std::clamp(knobs_->peer_silence_ns / 80, kTickNsMin, kTickNsMax);
  return limits;
}

Session* ControlPlane::find_session(std::uint64_t id) noexcept {
  const auto place = sessions_.find(id);
  return place == sessions_.end() ? nullptr : place->second.get();
}

Session* ControlPlane::add_session(bool dialled) {
  auto made = std::make_unique<Session>(limits());
  made->id = next_session_++;
  made->token = random_token();
  made->dialled = dialled;
  made->busy_ns = engine::now_ns();
  // If peers open too many sessions without completing a connection, the oldest such session is ended.
  Session* oldest = nullptr;
  std::size_t unconfirmed = 0;
  for (const auto& [id, session] : sessions_) {
    if (session->dialled || session->confirmed) continue;
    ++unconfirmed;
    const bool old = made->busy_ns - session->busy_ns >= kOpensSoonNs;
    if (oldest == nullptr && old && !has_accepts(id)) oldest = session.get();
  }
  if (!dialled && !keyring_.has_secret() && unconfirmed >= kUnusedSessionsMax && oldest != nullptr)
    end_session(oldest, Status::refused, "too many sessions without a connection", true);
  Session* session = made.get();
  sessions_[session->id] = std::move(made);
  return session;
}

// A handle names one process; a dial by address may reach any process at that address. So a dial by handle and a dial
// by address do not share a session, nor do handles with different keys, one of which is damaged or forged.
Session* ControlPlane::dialled_session(const DialState& dial) {
  const std::string target = target_of(dial.to);
  const std::string key = std::to_string(dial.device) + ' ' + target + ' ' + std::to_string(dial.node) + ' ' +
                          std::string(dial.key.begin(), dial.key.end());
  const auto place = by_key_.find(key);
  if (place != by_key_.end()) return find_session(place->second);
  Session* session = add_session(true);
  session->device = dial.device;
  session->node = dial.node;
  session->guard = keyring_.guard_for(dial.key);
  session->handle_key = dial.key;
  session->target = dial.to;
  session->key = key;
  session->name = target;
  by_key_[key] = session->id;
  return session;
}

// `say_so`: sends the verdict to the peer, which may still run, so that it need not detect the end itself.
void ControlPlane::end_session(Session* session, Status status, const std::string& why, bool say_so) {
  const std::uint64_t id = session->id;
  const Status reason = status == Status::ok ? Status::peer_dead : status;
  if (session->confirmed) {
    tell(core::ProcessEvent::Kind::disconnected, *session, 0, status, why);
  } else if (session->greeted && status != Status::ok) {
    // The log is rate-limited, because unauthenticated peers can open and end many sessions.
    const engine::LogLevel level = status == Status::peer_dead ? engine::LogLevel::info : engine::LogLevel::warn;
    refusal_log_.log(engine::now_ns(), level, session->name + ": " + why);
  }
  if (!session->key.empty()) by_key_.erase(session->key);
  move_dials(id, reason, why.rfind(session->name, 0) == 0 ? why : session->name + ": " + why);
  std::vector<ControlSocket*> sockets;
  for (const auto& [socket_id, socket] : sockets_) {
    if (socket->session == id) sockets.push_back(socket.get());
  }
  const std::string verdict = encode(Verdict{static_cast<std::uint32_t>(status), why});
  for (ControlSocket* socket : sockets) {
    if (say_so && socket->state() == ControlSocket::State::ready) send(socket, verdict);
    socket->session = 0;
    drop_socket(socket, why);
  }
  for (auto place = accepts_.begin(); place != accepts_.end();) {
    if (place->first.first != id) {
      ++place;
      continue;
    }
    place->second.connection->fail(reason);
    place = accepts_.erase(place);
  }
  std::erase_if(confirmed_, [&](const Confirmed& each) { return each.session == id; });
  setup_.forget(id, reason);
  budget_.forget(id);
  sessions_.erase(id);
  notifier_->notify();
}

void ControlPlane::tell(core::ProcessEvent::Kind kind, const Session& session, std::int64_t since_ns, Status status,
                        const std::string& cause) {
  core::ProcessEvent event;
  event.kind = kind;
  event.status = status;
  event.name = session.name.c_str();
  event.cause = cause.c_str();
  event.since_ns = since_ns;
  trace_.emit(engine::now_ns(), event);
}

void ControlPlane::examine(Session* session, std::int64_t now_ns) {
  if (session->health.begun()) {
    session->tick_ns = std::min(session->tick_ns, session->ended_ns >= 0 ? now_ns : session->tick_ns);
    return;
  }
  session->health.begin(now_ns);
  session->tick_ns = now_ns;
  session->well_ticks = 0;
  // From now on the kernel sends a TCP keepalive after each idle second. The kernel of a stalled process still answers
  // keepalives.
  const auto place = sockets_.find(session->current);
  const int second = 1;
  if (place != sockets_.end())
    ::setsockopt(place->second->descriptor(), IPPROTO_TCP, TCP_KEEPIDLE, &second, sizeof second);
}

HealthFacts ControlPlane::facts_of(const Session& session, const Survey& survey, std::int64_t now_ns) const noexcept {
  HealthFacts facts;
  facts.data_ns = survey.heard_ns;
  facts.data_quiet = survey.quiet;
  facts.pong_ns = session.pong_ns;
  facts.engines_turn = session.engines_turn;
  facts.ended = session.ended && session.current == 0;
  facts.refused = session.refused;
  for (const auto& [id, socket] : sockets_) {
    if (socket->session != session.id || socket->state() == ControlSocket::State::connecting) continue;
    const ControlSocket::Kernel kernel = socket->kernel(now_ns);
    if (kernel.established) facts.kernel_ns = std::max(facts.kernel_ns, kernel.heard_ns);
  }
  return facts;
}

std::int64_t ControlPlane::rtt_ns(const Session& session) const noexcept {
  const auto place = sockets_.find(session.current);
  return place == sockets_.end() ? 0 : place->second->kernel(engine::now_ns()).rtt_ns;
}

void ControlPlane::tick(Session* session, std::int64_t now_ns) {
  const bool down = session->current == 0;
  session->tick_ns = now_ns + (down && session->ended ? kEndedTickNs : limits().tick_ns);
  const Survey survey = setup_.survey(session->id, down);
  const std::uint64_t id = session->id;
  need_socket(session, now_ns);
  if (find_session(id) == nullptr) return;
  if (!down && session->ping_ns < 0) {
    session->ping_ns = now_ns;
    static_cast<void>(send_to(session, encode(Ping{++session->ping})));
  }
  const Status verdict = session->health.on_tick(now_ns, facts_of(*session, survey, now_ns));
  report_condition(session, std::max(survey.heard_ns, session->pong_ns), now_ns);
  if (verdict != Status::ok) {
    end_session(session, verdict, status_text(verdict), true);
    return;
  }
  const bool well = session->health.condition() == Condition::well && session->current != 0;
  session->well_ticks = well ? session->well_ticks + 1 : 0;
  if (session->well_ticks < kWellTicks) return;
  session->health.end();
  session->tick_ns = -1;
  const auto place = sockets_.find(session->current);
  const int idle_s = static_cast<int>(std::clamp<std::int64_t>(knobs_->peer_dead_ns / 4'000'000'000, 1, 3600));
  if (place != sockets_.end())
    ::setsockopt(place->second->descriptor(), IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof idle_s);
}

void ControlPlane::report_condition(Session* session, std::int64_t heard_ns, std::int64_t now_ns) {
  if (session->health.condition() == Condition::quiet) report_quiet(session, now_ns);
  const std::int64_t stalled_ns = session->health.stalled_for_ns();
  if (session->health.condition() != Condition::stalled) {
    if (session->stall_ns >= 0 && session->health.condition() == Condition::well) {
      tell(core::ProcessEvent::Kind::resumed, *session, session->stall_ns);
      session->stall_ns = session->stall_logged_ns = -1;
    }
    return;
  }
  if (stalled_ns < kStallSayNs) return;
  if (session->stall_ns < 0) {
    // The examination of a peer process begins seconds after the process stopped, so the stall is counted from the last
    // reply of the process.
    session->stall_ns = heard_ns >= 0 ? heard_ns : now_ns - stalled_ns;
    ++counters_.peers_stalled;
  } else if (now_ns - session->stall_logged_ns < kStallSayAgainNs) {
    return;
  }
  session->stall_logged_ns = now_ns;
  tell(core::ProcessEvent::Kind::stalled, *session, session->stall_ns);
}

// Logs that the peer process runs and answers here while none of its data arrives.
void ControlPlane::report_quiet(Session* session, std::int64_t now_ns) {
  if (session->quiet_logged_ns >= 0 && now_ns - session->quiet_logged_ns < kStallSayAgainNs) return;
  session->quiet_logged_ns = now_ns;
  engine::log(
      engine::LogLevel::warn,
      "no data arrives from " + session->name +
          ", whose process answers on the control port: does a firewall, a route or the MTU stop the data paths (" +
          datapath_->entry->title +
          ")? weft doctor --serve and --peer test them; if this lasts, the connection ends "
          "(WEFT_PEER_TIMEOUT=silence)");
}

// True if the session has been without connections for so long that it must end.
bool ControlPlane::is_idle(Session* session, std::int64_t now_ns) {
  const bool dialling =
      std::any_of(dials_.begin(), dials_.end(), [&](const auto& each) { return each.second.session == session->id; });
  const bool busy = dialling || has_accepts(session->id);
  if (busy || setup_.survey(session->id, false).flows != 0) {
    session->busy_ns = now_ns;
    return false;
  }
  const std::int64_t most_ns = !session->dialled && !session->confirmed ? kUnconfirmedNs
                               : session->dialled                       ? kIdleNs
                                                                        : kIdleTakenNs;
  return now_ns - session->busy_ns >= most_ns;
}

// Examines processes of this host for which messages in shared memory wait. As those take no packets, no engine notices
// that such a process is quiet.
void ControlPlane::check_stuck(std::int64_t now_ns) {
  if (host_ == nullptr || now_ns < stuck_check_ns_) return;
  stuck_check_ns_ = now_ns + std::min(knobs_->peer_silence_ns / 16 * 5, kStuckCheckNs);
  for (const std::uint64_t id : host_->stuck()) {
    if (Session* const session = find_session(id)) examine(session, now_ns);
  }
}

void ControlPlane::check_sessions(std::int64_t now_ns) {
  check_stuck(now_ns);
  const bool look_for_idle = now_ns >= idle_check_ns_;
  if (look_for_idle) idle_check_ns_ = now_ns + kIdleCheckNs;
  let_silent_go(now_ns);
  counters_.strangers_bytes.set(budget_.bytes());
  std::vector<std::uint64_t> ids;
  for (const auto& [id, session] : sessions_) ids.push_back(id);
  for (const std::uint64_t id : ids) {
    Session* session = find_session(id);
    if (session == nullptr) continue;
    if (session->ends_ns >= 0) {
      if (now_ns >= session->ends_ns)
        end_session(session, Status::ok, "the peer process has ended or closed its endpoint", false);
    } else if (look_for_idle && is_idle(session, now_ns)) {
      end_session(session, Status::ok, "the session was idle: it had no connection", true);
    } else if (session->tick_ns >= 0 && now_ns >= session->tick_ns) {
      tick(session, now_ns);
    } else if (!session->greeted) {
      need_socket(session, now_ns);
    } else {
      send_opens(session);
    }
  }
}

}  // namespace weft::control
