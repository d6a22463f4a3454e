// The control plane owns control sockets and sessions, opens connections and decides when a peer is dead. It has a
// thread, whose loop a caller that waits for its connection may run instead. Sources: control_plane.cc (the loop and
// deadlines), control_sockets.cc (listening, accepting), control_redial.cc (dialling and losing control sockets),
// control_handshake.cc (frames), control_opens.cc (opening connections), control_sessions.cc (sessions),
// control_strangers.cc (bounds of peers that are not authenticated).
#pragma once

#include <atomic>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "native/control/accept_gate.h"
#include "native/control/control_socket.h"
#include "native/control/control_state.h"
#include "native/control/flow_setup.h"
#include "native/control/input_wait.h"
#include "native/control/keyring.h"
#include "native/control/last_refusal.h"
#include "native/control/loop_share.h"
#include "native/control/open_budget.h"
#include "native/control/process_log.h"
#include "native/control/session.h"
#include "native/engine/log_limit.h"
#include "native/local/host.h"

namespace weft::control {

class ControlPlane final : private engine::PeerWatch {
 public:
  ControlPlane(const engine::Knobs* knobs, std::vector<std::unique_ptr<engine::Engine>>* engines,
               const engine::DatapathChoice* datapath, engine::Notifier* notifier, engine::TelemetryPage* page,
               std::shared_ptr<engine::TraceWriter> trace, local::Host* host = nullptr);
  ~ControlPlane() override;

  Status start(std::string* error);
  void stop() noexcept;

  // Called by callers' threads:
  // `open`: also accepts dials that do not prove the handle's key.
  Status listen(std::uint32_t device, std::uint16_t port, bool open, const engine::PolicySet& policies,
                std::shared_ptr<ListenerState>* out, std::string* error);
  void close_listener(const std::shared_ptr<ListenerState>& listener) noexcept;
  // Returns the TCP port of a listener. An open listener has a port of its own, which the first call opens (0: it
  // cannot be opened); the others share the port that their handles name, one for each device.
  std::uint16_t own_port(const std::shared_ptr<ListenerState>& listener) noexcept;
  // The error of a failed accept in the last `within_ns`; ok if none failed, or if an accept has succeeded since. If
  // ok, `text` names a peer that was refused in that time, and why; empty if there was none.
  Status accept_trouble(std::int64_t within_ns, std::string* text);
  void dial(std::shared_ptr<DialState> dial);
  // Runs the loop in the control thread's place until the dial has finished, but at most for `timeout_ns` or 2 ms,
  // whichever is shorter, plus the time to finish the last iteration.
  void help(const DialState& dial, std::int64_t timeout_ns) noexcept;
  telemetry::ProcessCounters counters() const noexcept { return telemetry::values(counters_); }  // any thread

 private:
  struct PendingDial {
    std::shared_ptr<DialState> state;
    std::vector<LocalFlow> flows;
    std::uint64_t session = 0;
    std::uint32_t segment_bytes = 0;    // segment size offered to the peer
    std::unique_ptr<local::Half> half;  // memory that was proposed to the peer; null: none
    std::string frame;                  // the open frame, to repeat it on another control socket; empty: not sent yet
  };
  struct PendingAccept {
    std::shared_ptr<engine::ConnectionCore> connection;
    std::shared_ptr<ListenerState> listener;
    std::int64_t begun_ns = 0, deadline_ns = 0;
    std::string reply;  // the open_reply frame, sent again if the peer repeats its open frame
  };
  // A dial's confirm frame may be lost with its control socket, so until `until_ns` it is sent again on a new one.
  struct Confirmed {
    std::int64_t until_ns;
    std::uint64_t session, dial;
  };
  struct Notice {
    std::uint32_t engine, peer;
  };

  // Defined in control_plane.cc:
  void run() noexcept;
  void await_work() noexcept;
  void iterate() noexcept;
  bool try_iterate(bool* unread) noexcept;
  int pause_ms() const noexcept;
  void wake() noexcept;
  void serve(int descriptor);
  void check_deadlines(std::int64_t now_ns);
  void forget_confirmed(std::int64_t now_ns);
  void check_strangers(std::int64_t now_ns);
  void check_dials(std::int64_t now_ns);
  void tell_cause(const Session& session, DialState* dial);
  void tell_stalled(Session* session, DialState* dial, std::int64_t now_ns);
  void tell_no_answer(Session* session, const DialState& dial, std::int64_t now_ns);
  void check_accepts(std::int64_t now_ns);
  void take_dials();
  void take_notices();
  void on_peer_quiet(std::uint32_t engine, std::uint32_t peer) noexcept override;

  // Defined in control_sockets.cc:
  int open_listening(const datapath::SocketAddress& address, std::string* error) noexcept;
  // Listens on the first free port of a range.
  int open_listening(datapath::SocketAddress address, const engine::PortRange& ports, std::string* error);
  Status watch_listening(int descriptor, std::string* error) noexcept;
  std::shared_ptr<ListenerState> listener_for(const Session& session, std::uint64_t id);
  Status device_socket(std::uint32_t device, int* descriptor, std::string* error);
  datapath::SocketAddress control_address(std::uint32_t device) noexcept;
  void say_open(const ListenerState& listener, const datapath::SocketAddress& address);
  Status open_port(ListenerState* listener, std::uint16_t port, std::string* error);
  void accept_all(int listening);
  bool accept_one(int listening, std::uint32_t device);
  ControlSocket* add_accepted(int descriptor, int listening, std::uint32_t device, const datapath::SocketAddress& from);
  void accept_to_refuse(int listening, std::uint32_t device);
  bool make_room(std::int64_t now_ns);
  void pause_accepting();
  void close_sockets() noexcept;

  // Defined in control_redial.cc:
  ControlSocket* watch_socket(std::unique_ptr<ControlSocket> socket);
  ControlSocket* dial_socket(Session* session, const datapath::SocketAddress& to, std::size_t place);
  bool may_be_dialled(const Session& session, std::int64_t now_ns);
  void need_socket(Session* session, std::int64_t now_ns);
  void on_connected(ControlSocket* socket);
  void drop_socket(ControlSocket* socket, const std::string& why, Status outcome = Status::address_unavailable);
  void lose_socket(Session* session, bool ended, std::int64_t now_ns);
  void join(Session* session, ControlSocket* socket);
  void update_interest(ControlSocket* socket) noexcept;
  void send(ControlSocket* socket, const std::string& frame);
  bool send_to(Session* session, const std::string& frame);

  // Defined in control_handshake.cc:
  void on_readable(ControlSocket* socket);
  bool on_read(ControlSocket* socket, ControlSocket::Read read, const Frame& frame, std::uint16_t version);
  bool on_frame(ControlSocket* socket, const Frame& frame);
  bool on_hello(ControlSocket* socket, const Frame& frame);
  bool on_hello_reply(ControlSocket* socket, const Frame& frame);
  void prove_addresses(Session* session, const Hello& theirs);
  bool on_refuse(ControlSocket* socket, const Frame& frame);
  bool on_ping(ControlSocket* socket, const Frame& frame);
  bool on_pong(ControlSocket* socket, const Frame& frame);
  bool on_verdict(ControlSocket* socket, const Frame& frame);
  Hello hello_of(const Session& session, const ControlSocket& socket);
  bool fits_socket(const ControlSocket& socket, const Hello& theirs) const noexcept;
  Session* session_for(ControlSocket* socket, const Hello& theirs, std::string* error);
  void refuse(ControlSocket* socket, std::uint64_t dial, Status status, const std::string& text);
  void turn_down(ControlSocket* socket, Status status, const std::string& text, const std::string& what);
  void on_unproved(ControlSocket* socket);
  void on_plain_answer(ControlSocket* socket, const Frame& frame);
  void stranger(const ControlSocket& socket, const std::string& what);

  // Defined in control_opens.cc:
  void start_dial(const std::shared_ptr<DialState>& dial);
  void finish_dial(const std::shared_ptr<DialState>& dial, Status status, const std::string& error);
  void move_dials(std::uint64_t session, Status outcome, const std::string& why);
  void send_opens(Session* session);
  bool send_open(Session* session, PendingDial* pending);
  void propose_memory(Session* session, PendingDial* pending, Open* open);
  bool shares_memory(const engine::PolicySet& policies) const noexcept;
  std::unique_ptr<local::Half> take_memory(const Session& session, const engine::PolicySet& policies, Open* open);
  void say_again(Session* session);
  Status join_memory(std::unique_ptr<local::Half> half, std::uint64_t session,
                     const std::shared_ptr<engine::ConnectionCore>& connection, std::string* error);
  bool on_open(Session* session, ControlSocket* socket, const Frame& frame);
  bool on_open_reply(Session* session, const Frame& frame);
  bool on_confirm(Session* session, const Frame& frame);
  void on_confirmed(Session* session);
  void dial_without_memory(Session* session, const std::shared_ptr<DialState>& dial,
                           const std::vector<LocalFlow>& flows);
  void end_open(Session* session, std::uint64_t dial, Status status);
  void forget_open(Session* session, std::uint64_t dial);
  bool has_accepts(std::uint64_t session) const noexcept;
  std::size_t accepts_of(std::uint64_t session) const noexcept;
  bool drop_oldest_accept();
  Status accept_open(Session* session, Open* offered, std::int64_t open_bytes, PendingAccept* accept,
                     std::string* error);
  void keep_proved(const Session& session, Open* open);
  Status check_limits(const Session& session, ListenerState* listener, const Open& open, std::string* error);

  // Defined in control_strangers.cc:
  bool admit_session(Session* session, const datapath::SocketAddress& from, std::string* error);
  bool admit_open(const Session& session, const std::vector<PeerKey>& peers, std::string* error);
  bool make_room_for(std::uint64_t session, const datapath::SocketAddress& from, std::int64_t bytes,
                     std::string* error);
  bool drop_if_silent(std::uint64_t session, std::int64_t now_ns);
  bool drop_a_stranger(std::uint64_t spared);
  void count_strangers(std::int64_t now_ns);
  void let_silent_go(std::int64_t now_ns);

  // Defined in control_sessions.cc:
  Session* add_session(bool dialled);
  Session* find_session(std::uint64_t id) noexcept;
  Session* dialled_session(const DialState& dial);
  void end_session(Session* session, Status status, const std::string& why, bool say_so);
  void tell(core::ProcessEvent::Kind kind, const Session& session, std::int64_t since_ns, Status status = Status::ok,
            const std::string& cause = "");
  void examine(Session* session, std::int64_t now_ns);
  void tick(Session* session, std::int64_t now_ns);
  HealthFacts facts_of(const Session& session, const Survey& survey, std::int64_t now_ns) const noexcept;
  bool hears(const Session& session, std::int64_t since_ns) const noexcept;
  void credit_pause(std::int64_t now_ns);
  // Round-trip time of the session's control socket; 0: unknown.
  std::int64_t rtt_ns(const Session& session) const noexcept;
  // `heard_ns`: when the last reply of the peer process arrived; -1: never.
  void report_condition(Session* session, std::int64_t heard_ns, std::int64_t now_ns);
  void report_quiet(Session* session, std::int64_t now_ns);
  void check_sessions(std::int64_t now_ns);
  void check_stuck(std::int64_t now_ns);
  bool is_idle(Session* session, std::int64_t now_ns);
  HealthLimits limits() const noexcept;

  const engine::Knobs* knobs_;
  std::vector<std::unique_ptr<engine::Engine>>* engines_;
  const engine::DatapathChoice* datapath_;
  const std::vector<datapath::DeviceState>* devices_;  // the devices of `datapath_`
  engine::Notifier* notifier_;
  // Whether a thread that waits for its connection may run the control thread's loop. False if a trace is written: each
  // thread that writes to it needs a ring buffer of its own.
  const bool helped_;
  local::Host* const host_;  // null: all messages go over the network
  InputWait wait_;
  FlowSetup setup_;
  const std::uint64_t node_;  // random number that identifies this process
  Keyring keyring_;
  int epoll_ = -1, doorbell_ = -1;
  std::atomic<bool> stopping_{false};
  telemetry::ProcessCells own_counters_;  // used if there is no telemetry page
  telemetry::ProcessCells& counters_;
  std::int64_t idle_check_ns_ = 0;
  std::int64_t stuck_check_ns_ = 0;
  engine::LogLimit stranger_log_, refusal_log_, exhausted_log_;
  LastRefusal last_refusal_;
  ProcessLog process_log_;
  core::Trace trace_;  // reports events of peer processes to logs and recordings

  std::mutex notices_mutex_;  // never held for long, because engines' threads lock it
  std::vector<Notice> notices_;

  std::mutex mutex_;        // guards the next five members, which callers' threads use too
  AcceptGate accept_gate_;  // callers' threads call only AcceptGate::problem()
  std::map<std::uint64_t, std::shared_ptr<ListenerState>> listeners_;
  std::atomic<int> open_listeners_{0};      // number of listeners that are `open`; written with the mutex locked
  std::map<int, std::uint32_t> listening_;  // listening socket -> device
  std::vector<std::shared_ptr<DialState>> new_dials_;
  std::map<std::uint32_t, int> device_sockets_;

  // The mutex of share_ guards the members from here to next_engine_, and all sessions and sockets.
  LoopShare share_;
  std::map<std::uint64_t, std::unique_ptr<ControlSocket>> sockets_;
  std::map<int, std::uint64_t> by_descriptor_;
  std::vector<std::uint64_t> unread_;    // sockets that hold frames not yet handled
  std::vector<std::uint64_t> deferred_;  // sockets of unauthenticated peers without a turn in the last iteration
  std::int64_t strangers_until_ns_ = 0;  // time until which this iteration handles frames of unauthenticated peers
  std::map<std::uint64_t, std::unique_ptr<Session>> sessions_;
  std::map<std::string, std::uint64_t> by_key_;  // key of a dialled session -> session id
  std::map<std::uint64_t, PendingDial> dials_;
  // (session id, dial id) -> the peer's open request
  std::map<std::pair<std::uint64_t, std::uint64_t>, PendingAccept> accepts_;
  std::deque<Confirmed> confirmed_;
  OpenBudget budget_;                    // memory of the sessions that unauthenticated peers opened
  std::int64_t counted_ns_ = 0;          // when count_strangers() was last called
  std::int64_t checked_ns_ = 0;          // when deadlines were last checked
  std::int64_t round_ns_ = 0;            // start of the loop's last iteration
  std::int64_t opened_ns_ = 0;           // when a peer last asked for a connection or confirmed one
  engine::Engine* opened_at_ = nullptr;  // engine of the home flow of the connection that was accepted last
  std::uint64_t next_socket_ = 1, next_session_ = 1, next_connection_ = 1;
  std::uint16_t next_engine_ = 0;
  std::thread thread_;
};

}  // namespace weft::control
