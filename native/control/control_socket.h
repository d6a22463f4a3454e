// A control socket to another process: sends and receives frames, and reads the state of its TCP connection. Non-
// blocking; used by the control loop only.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "native/control/frames.h"
#include "native/control/keys.h"
#include "native/control/tls.h"

namespace weft::control {

class ControlSocket {
 public:
  // greeting: connected, but the hello frames have not been exchanged. ready: part of a session.
  enum class State : std::uint8_t { connecting, greeting, ready, dead };
  // plain: the peer answers without TLS, but this end uses it. sealed: the peer uses TLS, but this end cannot.
  // unproved: the peer does not have the key; proof() names it.
  enum class Read : std::uint8_t { frame, nothing, ended, stranger, version, damaged, plain, sealed, unproved };

  // What an accepted socket needs if its peer begins with TLS. context: null if this process cannot use TLS.
  struct TlsServer {
    const TlsContext* context = nullptr;
    TlsKeys* keys = nullptr;
  };

  // The kernel's state of the control socket's TCP connection.
  struct Kernel {
    bool established = false;
    bool answers = false;        // no sent byte is overdue for its acknowledgment
    std::int64_t heard_ns = -1;  // when the last acknowledgment arrived
    std::int64_t rtt_ns = 0;     // minimum round-trip time; 0: unknown
  };

  // Both take ownership of the descriptor. A dialled socket sends the first hello; `tls`: null if nothing is to be
  // proved. An accepted socket uses TLS if its peer does.
  ControlSocket(std::uint64_t id, int descriptor, std::int64_t now_ns, std::unique_ptr<TlsStream> tls) noexcept;
  ControlSocket(std::uint64_t id, int descriptor, std::int64_t now_ns, const TlsServer& server) noexcept;
  ~ControlSocket();
  ControlSocket(const ControlSocket&) = delete;
  ControlSocket& operator=(const ControlSocket&) = delete;

  std::uint64_t id() const noexcept { return id_; }
  int descriptor() const noexcept { return descriptor_; }
  bool dialled() const noexcept { return dialled_; }
  State state() const noexcept { return state_; }
  void set_state(State state) noexcept { state_ = state; }
  std::int64_t since_ns() const noexcept { return since_ns_; }
  // Extends this socket's deadlines by a time in which this process did not run.
  void credit_pause(std::int64_t pause_ns) noexcept { since_ns_ += pause_ns; }
  bool is_silent() const noexcept { return received_bytes_ == 0; }
  // Once the TCP connection has ended: whether the peer ended it, not a timeout of the local kernel.
  bool was_reset() const noexcept { return !timed_out_; }

  // Names the pre-shared key of the TLS handshake; its guard is `none` without TLS.
  KeyName proof() const noexcept;
  // Whether the peer named a key that this end does not have.
  bool unknown_key() const noexcept { return tls_ != nullptr && tls_->unknown_key(); }

  // Queues a frame. Returns false if more output is queued than a peer can be expected to read, or if TLS has failed.
  bool send(const std::string& frame);
  // Queues a frame without TLS: a refusal to a peer that does not use TLS, or has no key.
  void send_plain(const std::string& frame) { out_ += frame; }
  bool has_output() const noexcept { return !out_.empty(); }
  // Writes queued output to the socket. Returns false if the socket has failed.
  bool flush() noexcept;
  // Reads available input, then returns one frame per call.
  Read poll(Frame* out, std::uint16_t* version);
  // The errno of a finished connect; 0 if the connect succeeded.
  int connect_error() const noexcept;
  Kernel kernel(std::int64_t now_ns) const noexcept;
  datapath::SocketAddress local() const noexcept;
  datapath::SocketAddress remote() const noexcept;

  std::uint64_t session = 0;     // the session of this socket, once known; 0: not known yet
  bool proves = false;           // opened only to show the peer that we own one of our addresses
  bool deferred = false;         // waits for its turn in the control plane's next iteration
  bool turned_away = false;      // accepted with the spare descriptor, in order to be refused after the hello
  std::uint32_t interest = 0;    // events that epoll waits for
  std::uint16_t local_port = 0;  // the local port on which the socket was accepted
  std::uint32_t device = 0;
  std::string peer_address;

 private:
  bool receive() noexcept;
  bool take(const char* data, std::size_t bytes);
  std::uint64_t id_;
  int descriptor_;
  bool dialled_;
  bool ended_ = false, timed_out_ = false, unproved_ = false;
  std::int64_t since_ns_;
  State state_;
  std::unique_ptr<TlsStream> tls_;
  TlsServer server_;
  std::size_t received_bytes_ = 0;
  char first_byte_ = 0;
  std::string in_, out_;
};

// Sets the DSCP of a socket's packets (WEFT_DSCP). A kernel that refuses it sends without.
void set_dscp(int descriptor, std::int64_t dscp, bool v6) noexcept;

}  // namespace weft::control
