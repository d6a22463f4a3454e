// One control socket to another process: bytes in, frames out; frames in, bytes out; and its death.
// Knows frames, not what they mean. Non-blocking; touched by the control thread alone.
#pragma once

#include <cstdint>
#include <string>

#include "native/engine/frames.h"

namespace weft::engine {

class Channel {
 public:
  enum class State : std::uint8_t { connecting, greeting, ready, dead };
  enum class Read : std::uint8_t { frame, nothing, ended, stranger, version, damaged };

  // Takes the descriptor. `dialled`: we began it, so we greet first.
  Channel(std::uint64_t id, int descriptor, bool dialled, std::int64_t deadline_ns) noexcept
      : id_(id),
        descriptor_(descriptor),
        dialled_(dialled),
        deadline_ns_(deadline_ns),
        state_(dialled ? State::connecting : State::greeting) {}
  ~Channel();
  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;

  std::uint64_t id() const noexcept { return id_; }
  int descriptor() const noexcept { return descriptor_; }
  bool dialled() const noexcept { return dialled_; }
  State state() const noexcept { return state_; }
  void set_state(State state) noexcept { state_ = state; }
  std::int64_t deadline_ns() const noexcept { return deadline_ns_; }

  void send(const std::string& frame) { out_ += frame; }
  bool has_output() const noexcept { return !out_.empty(); }
  // False: the socket is dead.
  bool flush() noexcept;
  // Reads what there is, then hands out one frame a call.
  Read poll(Frame* out, std::uint16_t* version);
  // Errno of a connect that has ended; 0 when it succeeded.
  int connect_error() const noexcept;

  Hello mine, theirs;            // once greeted
  std::uint16_t local_port = 0;  // accepted on: whose port it is is asked when something is opened
  std::uint32_t device = 0;
  std::string peer_address;

 private:
  std::uint64_t id_;
  int descriptor_;
  bool dialled_;
  bool ended_ = false;
  std::int64_t deadline_ns_;  // of the greeting
  State state_;
  std::string in_, out_;
};

}  // namespace weft::engine
