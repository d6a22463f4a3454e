// A send or receive of host memory that proceeds without further calls.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "native/engine/connection.h"
#include "native/message/backlog_thread.h"
#include "native/message/host_buffer.h"
#include "native/message/outcome.h"

namespace weft::message {

class HostMessage final : public Outcome,
                          public Post,
                          public engine::Completion,
                          private Leftover,
                          public std::enable_shared_from_this<HostMessage> {
 public:
  HostMessage(std::shared_ptr<engine::ConnectionCore> core, Backlog::Direction direction, HostBuffer buffer,
              BacklogThread* thread, engine::Notifier* notifier)
      : core_(std::move(core)),
        direction_(direction),
        buffer_(std::move(buffer)),
        thread_(thread),
        notifier_(notifier) {}

  Status begin() noexcept override;
  void cancel(Status reason) noexcept override;
  // Like Outcome::wait(), but first runs the engines' loops on this thread for a while to finish the message sooner.
  // NOLINTNEXTLINE(bugprone-derived-method-shadowing-base-method)
  Status wait(std::int64_t timeout_ns) noexcept;
  Status sleep(std::int64_t timeout_ns) noexcept { return Outcome::wait(timeout_ns); }
  bool overlaps(const void* data, std::size_t bytes) const noexcept override;
  bool in_pieces() const noexcept { return !buffer_.pieces.empty(); }
  void on_complete(Status status, std::size_t bytes) noexcept override;

 private:
  void finish() noexcept override;
  void poll(std::int64_t begin_ns, std::int64_t until_ns) noexcept;
  void sleep_on_port(std::int64_t begin_ns, std::int64_t timeout_ns) noexcept;

  const std::shared_ptr<engine::ConnectionCore> core_;
  const Backlog::Direction direction_;
  const HostBuffer buffer_;
  BacklogThread* const thread_;
  engine::Notifier* const notifier_;
  std::shared_ptr<HostMessage> self_;     // keeps the message alive while the engines use it
  std::atomic<std::int64_t> number_{-1};  // number of the message; -1: it is not posted
  Status status_ = Status::ok;            // the engines' result, stored while the pieces are being filled
  std::size_t bytes_ = 0;
};

}  // namespace weft::message
