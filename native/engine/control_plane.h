// Who connects to whom: the thread that owns control sockets, greets, opens connections and notices death.
// Moves no message; its engines do not wait for it.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "native/engine/channel.h"
#include "native/engine/control_state.h"
#include "native/engine/flow_setup.h"

namespace weft::engine {

class ControlPlane {
 public:
  ControlPlane(const Knobs* knobs, std::vector<std::unique_ptr<Engine>>* engines,
               const std::vector<DeviceState>* devices, Notifier* notifier);
  ~ControlPlane();

  Status start(std::string* error);
  void stop() noexcept;

  // Callers' threads.
  Status listen(std::uint32_t device, std::uint16_t port, const PolicySet& policies,
                std::shared_ptr<ListenerState>* out, std::string* error);
  void close_listener(const std::shared_ptr<ListenerState>& listener) noexcept;
  // The port that belongs to this listener alone; opened when first asked for, as handles need none. 0: it cannot be
  // had.
  std::uint16_t own_port(const std::shared_ptr<ListenerState>& listener) noexcept;
  void dial(std::shared_ptr<DialState> dial);
  std::int64_t strangers_refused() const noexcept { return strangers_.load(std::memory_order_relaxed); }

 private:
  struct PendingDial {
    std::shared_ptr<DialState> state;
    std::vector<LocalFlow> flows;
    std::uint64_t channel = 0;
    std::uint32_t segment_bytes = 0;  // that were offered
  };
  struct PendingAccept {
    std::shared_ptr<ConnectionCore> connection;
    std::shared_ptr<ListenerState> listener;
    std::int64_t deadline_ns = 0;
  };
  // A process that died: its last datagrams may still be in our sockets.
  struct Death {
    std::int64_t at_ns;
    std::uint64_t channel;
  };

  // control_plane.cc
  void run() noexcept;
  void wake() noexcept;
  void serve(int descriptor);
  void check_deadlines(std::int64_t now_ns);
  void take_dials();
  void start_dial(const std::shared_ptr<DialState>& dial);
  void finish_dial(const std::shared_ptr<DialState>& dial, Status status, const std::string& error);
  // control_sockets.cc
  int open_listening(const datapath::SocketAddress& address, std::string* error) noexcept;
  Status watch_listening(int descriptor, std::string* error) noexcept;
  std::shared_ptr<ListenerState> listener_for(const Channel& channel, std::uint64_t id);
  Status device_socket(std::uint32_t device, int* descriptor, std::string* error);
  Status open_port(ListenerState* listener, std::uint16_t port, std::string* error);
  void accept_all(int listening);
  void pause_accepting();
  Channel* add_channel(int descriptor, bool dialled);
  // `outcome`: what dials end with that were waiting for the greeting.
  void drop_channel(Channel* channel, const std::string& why, Status outcome = Status::address_unavailable);
  void update_interest(Channel* channel) noexcept;
  Channel* channel_to(const DialState& dial, std::string* error);
  // control_handshake.cc
  void on_readable(Channel* channel);
  void on_connected(Channel* channel);
  bool on_frame(Channel* channel, const Frame& frame);
  bool on_hello(Channel* channel, const Frame& frame);
  bool on_hello_reply(Channel* channel, const Frame& frame);
  bool on_auth(Channel* channel, const Frame& frame);
  bool on_open(Channel* channel, const Frame& frame);
  bool on_open_reply(Channel* channel, const Frame& frame);
  bool on_confirm(Channel* channel, const Frame& frame);
  bool on_refuse(Channel* channel, const Frame& frame);
  Status accept_open(Channel* channel, const Open& open, Open* reply, std::string* error);
  void send_open(Channel* channel, PendingDial* pending);
  void refuse(Channel* channel, std::uint64_t dial, Status status, const std::string& text);
  void stranger(Channel* channel, const char* what);
  Digest proof(const char* who, const Digest& first, const Digest& second) const;

  const Knobs* knobs_;
  std::vector<std::unique_ptr<Engine>>* engines_;
  const std::vector<DeviceState>* devices_;
  Notifier* notifier_;
  FlowSetup setup_;
  std::string secret_;
  std::uint64_t node_ = 0;
  int epoll_ = -1, doorbell_ = -1;
  std::atomic<bool> stopping_{false};
  std::atomic<std::int64_t> strangers_{0};
  std::int64_t accept_again_ns_ = 0;  // out of descriptors: try again then

  std::mutex mutex_;  // the three below are shared with callers' threads
  std::map<std::uint64_t, std::shared_ptr<ListenerState>> listeners_;
  std::map<int, std::uint32_t> listening_;  // socket -> device
  std::vector<std::shared_ptr<DialState>> new_dials_;
  std::map<std::uint32_t, int> device_sockets_;

  std::map<std::uint64_t, std::unique_ptr<Channel>> channels_;
  std::map<int, std::uint64_t> by_descriptor_;
  std::map<std::string, std::uint64_t> by_target_;  // dialled channels, by address and port
  std::map<std::uint64_t, PendingDial> dials_;
  std::map<std::pair<std::uint64_t, std::uint64_t>, PendingAccept> accepts_;  // by channel and dial
  std::vector<Death> deaths_;
  std::uint64_t next_channel_ = 1, next_connection_ = 1;
  std::uint16_t next_engine_ = 0;
  std::thread thread_;
};

}  // namespace weft::engine
