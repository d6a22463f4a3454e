// One control socket to another process: frames in, frames out, and what the kernel knows of the other end.
// Non-blocking; touched by the control thread alone.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "native/control/frames.h"
#include "native/control/tls.h"

namespace weft::control {

class Channel {
 public:
  // greeting: connected, and the first frames have not been exchanged; ready: it has joined a session.
  enum class State : std::uint8_t { connecting, greeting, ready, dead };
  // plain: the other end does not use TLS and we do; sealed: the reverse; unproved: it does not hold our secret.
  enum class Read : std::uint8_t { frame, nothing, ended, stranger, version, damaged, plain, sealed, unproved };

  // What its TCP knows.
  struct Kernel {
    bool established = false;
    bool answers = false;        // nothing that was sent waits unduly for its acknowledgment
    std::int64_t heard_ns = -1;  // when the last acknowledgment came
    std::int64_t rtt_ns = 0;     // the least that was seen; 0: unknown
  };

  // Takes the descriptor. `dialled`: we began it, so we greet first. `tls`: null where no secret is set.
  Channel(std::uint64_t id, int descriptor, bool dialled, std::int64_t now_ns, std::unique_ptr<TlsStream> tls) noexcept;
  ~Channel();
  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;

  std::uint64_t id() const noexcept { return id_; }
  int descriptor() const noexcept { return descriptor_; }
  bool dialled() const noexcept { return dialled_; }
  State state() const noexcept { return state_; }
  void set_state(State state) noexcept { state_ = state; }
  std::int64_t since_ns() const noexcept { return since_ns_; }
  void credit_pause(std::int64_t pause_ns) noexcept { since_ns_ += pause_ns; }  // of this process
  bool is_silent() const noexcept { return received_bytes_ == 0; }
  bool was_reset() const noexcept { return !timed_out_; }  // once ended: by the other end, not by the kernel's patience

  // False: more waits to be sent than the other end can be expected to read, or TLS has failed.
  bool send(const std::string& frame);
  // Past TLS, for a refusal to an end that does not use it.
  void send_plain(const std::string& frame) { out_ += frame; }
  bool has_output() const noexcept { return !out_.empty(); }
  // False: the socket is dead.
  bool flush() noexcept;
  // Reads what there is, then hands out one frame a call.
  Read poll(Frame* out, std::uint16_t* version);
  // Errno of a connect that has ended; 0 when it succeeded.
  int connect_error() const noexcept;
  Kernel kernel(std::int64_t now_ns) const noexcept;
  datapath::SocketAddress local() const noexcept;
  datapath::SocketAddress remote() const noexcept;

  std::uint64_t session = 0;     // that it belongs to or is to join; 0: not known yet
  bool proves = false;           // made only to prove an address of ours
  bool turned_away = false;      // accepted with the spare descriptor, to be refused once it has greeted
  std::uint16_t local_port = 0;  // accepted on
  std::uint32_t device = 0;
  std::string peer_address;

 private:
  bool receive() noexcept;
  std::uint64_t id_;
  int descriptor_;
  bool dialled_;
  bool ended_ = false, timed_out_ = false, unproved_ = false;
  std::int64_t since_ns_;
  State state_;
  std::unique_ptr<TlsStream> tls_;
  std::size_t received_bytes_ = 0;
  char first_byte_ = 0;
  std::string in_, out_;
};

}  // namespace weft::control
