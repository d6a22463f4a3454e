// What moves the messages of a connection in place of its flows, such as memory that two processes of one host share.
// The connection numbers the messages, and has their request slots; flows only tell when the peer ends.
#pragma once

#include <cstddef>
#include <cstdint>

#include "native/core/stage.h"
#include "native/core/status.h"
#include "native/engine/engine.h"
#include "native/engine/loan.h"

namespace weft::engine {

class RequestSlot;

class MessagePort {
 public:
  // A message's bytes are at `data`, or pass through the bounce buffer `stage`.
  struct Posting {
    RequestSlot* slot = nullptr;
    std::uint8_t* data = nullptr;
    core::Stage* stage = nullptr;
    std::uint64_t bytes = 0;         // size of a send, or capacity of a receive
    const LentSend* lent = nullptr;  // a send: the bytes are in memory that this names, and nowhere else
    LoanTaker* taker = nullptr;      // a receive: takes the message if it is lent; null: it goes to `data`
  };

  virtual ~MessagePort() = default;
  // Take the next message of a direction; at most RequestSlots::kSlots of each are outstanding. One thread at a time
  // calls each.
  virtual void post_send(const Posting& send) noexcept = 0;
  virtual void post_receive(const Posting& receive) noexcept = 0;
  // For a caller that waits for a message: moves what can be moved. `ran`: it moved something.
  virtual Engine::Help help() noexcept = 0;
  // For a caller that polls a request, again and again, instead of waiting.
  virtual void poll() noexcept = 0;
  // To be called when a caller that used help() stops to do so.
  virtual void unattend() noexcept = 0;
  // For a caller that sleeps until its message is done: begins to sleep, and moves what can be moved; if the message is
  // not done then, sleep(); in any case wake_up(). begin_sleep() returns false if the port moves nothing more: another
  // thread will end the message.
  virtual bool begin_sleep(std::int32_t* turn) noexcept = 0;
  virtual void sleep(std::int32_t turn, std::int64_t timeout_ns) noexcept = 0;
  virtual void wake_up() noexcept = 0;
  // The next two functions wait for no other thread: if one is moving messages, it does their work afterwards. It may
  // be copying, and the peer may let a copy take as long as it likes.
  //
  // The peer has closed the connection or has died. All sends fail that the peer does not hold. Fails the connection
  // once nothing is left to receive.
  virtual void on_peer_closed(Status reason) noexcept = 0;
  // Gives all buffers back, without completing their requests, and then calls ConnectionCore::on_port_ended(). Only the
  // first call has an effect.
  virtual void end() noexcept = 0;
  // Loans of the connection's messages; null: this port knows none.
  virtual Loans* loans() noexcept { return nullptr; }
  virtual const char* name() const noexcept = 0;  // for logs and traces
};

}  // namespace weft::engine
