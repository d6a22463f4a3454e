// Posts and completes a message of host memory. The backlog thread, not an engine, copies a received message into its
// pieces.
#include "native/message/host_message.h"

#include <sched.h>

#include <algorithm>
#include <cstring>
#include <utility>

namespace weft::message {
namespace {

// A caller that waits for a message tries to run an engine's loop itself. Each time it has found the loop taken by
// another thread this many times, it yields its core.
constexpr std::uint32_t kTakenTurns = 32;

}  // namespace

// shared_from_this() cannot throw: a shared pointer holds this object. NOLINTNEXTLINE(bugprone-exception-escape)
Status HostMessage::begin() noexcept {
  const engine::ConnectionCore::Payload payload{buffer_.data, buffer_.memory, nullptr, this};
  engine::Request* unused = nullptr;
  self_ = shared_from_this();  // set first, because the message may end before the call below returns
  const std::shared_ptr<HostMessage> self = self_;
  std::uint64_t number = 0;
  const Status status = direction_ == Backlog::Direction::send
                            ? core_->post_send(payload, buffer_.bytes, &unused, &number)
                            : core_->post_receive(payload, buffer_.bytes, &unused, &number);
  if (status == Status::ok) {
    number_.store(static_cast<std::int64_t>(number), std::memory_order_relaxed);
  } else {
    self_.reset();
  }
  return status;
}

Status HostMessage::wait(std::int64_t timeout_ns) noexcept {
  const std::int64_t begin_ns = engine::now_ns();
  poll(begin_ns, engine::later_ns(begin_ns, timeout_ns));
  sleep_on_port(begin_ns, timeout_ns);
  if (!done()) {
    const Status status = Outcome::wait(timeout_ns - std::min(timeout_ns, engine::now_ns() - begin_ns));
    if (status != Status::ok) return status;
  }
  const std::int64_t number = number_.load(std::memory_order_relaxed);
  if (number >= 0)
    core_->on_waited(direction_ == Backlog::Direction::send, static_cast<std::uint64_t>(number), bytes());
  return Status::ok;
}

// If a port moves the message, this thread sleeps where the peer process wakes it, and moves the message itself: the
// wake-up of another thread in between would cost as much again.
void HostMessage::sleep_on_port(std::int64_t begin_ns, std::int64_t timeout_ns) noexcept {
  engine::MessagePort* const port = core_->port();
  if (port == nullptr || number_.load(std::memory_order_relaxed) < 0) return;
  const std::int64_t until_ns = engine::later_ns(begin_ns, timeout_ns);
  for (std::int64_t left_ns = 0; !done() && (left_ns = until_ns - engine::now_ns()) > 0;) {
    std::int32_t turn = 0;
    if (!port->begin_sleep(&turn)) return;
    if (!done()) port->sleep(turn, left_ns);
    port->wake_up();
  }
  if (!done()) port->unattend();  // out of time
}

void HostMessage::poll(std::int64_t begin_ns, std::int64_t until_ns) noexcept {
  const std::int64_t number = number_.load(std::memory_order_relaxed);
  if (number < 0 || done()) return;
  const auto message = static_cast<std::uint64_t>(number);
  until_ns = std::min(until_ns, begin_ns + core_->patience().begin(begin_ns, buffer_.bytes));
  std::uint32_t turn = 0, taken = 0;
  std::int64_t now_ns = begin_ns;
  for (; !done() && (now_ns = engine::now_ns()) < until_ns; ++turn) {
    const engine::Engine::Help help = core_->help(message, buffer_.bytes, turn);
    if (help == engine::Engine::Help::busy) break;
    if (help != engine::Engine::Help::taken) continue;
    // The thread that runs the loop may need this core.
    if (++taken % kTakenTurns == 0) {
      ::sched_yield();
    } else {
      engine::relax();
    }
  }
  if (turn == 0) return;
  if (done()) return core_->patience().on_found(now_ns - begin_ns);
  core_->patience().on_vain(engine::now_ns() - begin_ns);
  core_->unattend(message, buffer_.bytes);
}

void HostMessage::cancel(Status reason) noexcept {
  set(reason, 0);
  notifier_->notify();
}

bool HostMessage::overlaps(const void* data, std::size_t bytes) const noexcept {
  const auto from = reinterpret_cast<std::uintptr_t>(data);
  const auto begin = reinterpret_cast<std::uintptr_t>(buffer_.data);
  return begin < from + bytes && from < begin + buffer_.bytes;
}

void HostMessage::on_complete(Status status, std::size_t bytes) noexcept {
  if (!buffer_.pieces.empty() && status == Status::ok) {
    status_ = status;
    bytes_ = bytes;
    return thread_->leave(this);
  }
  const std::shared_ptr<HostMessage> self = std::move(self_);
  set(status, bytes);
}

void HostMessage::finish() noexcept {
  const auto* from = static_cast<const std::uint8_t*>(buffer_.data);
  std::size_t left = bytes_;
  for (const HostPiece& piece : buffer_.pieces) {
    const std::size_t bytes = std::min(left, piece.bytes);
    if (bytes != 0) std::memcpy(piece.data, from, bytes);
    from += bytes;
    left -= bytes;
  }
  const std::shared_ptr<HostMessage> self = std::move(self_);
  set(status_, bytes_);
  notifier_->notify();
}

}  // namespace weft::message
