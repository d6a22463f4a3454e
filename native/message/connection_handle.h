// The Connection object that a caller gets. Its destructor closes the connection.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "native/engine/connection.h"
#include "native/engine/policies/policy_board.h"
#include "native/message/backlog_thread.h"
#include "native/message/device_message.h"
#include "native/message/host_message.h"
#include "native/message/path_weights.h"
#include "native/message/runtime.h"
#include "native/message/unfinished.h"

namespace weft::message {

// The services of a runtime that its connections use.
struct ConnectionServices {
  engine::PolicyBoard* board = nullptr;
  BacklogThread* backlog_thread = nullptr;
  engine::Notifier* notifier = nullptr;
  std::size_t posts_max = 0;
  PathWeights* weights = nullptr;  // null: no file of path weights is in use (WEFT_WEIGHTS)
};

class ConnectionHandle final : public Connection {
 public:
  ConnectionHandle(std::shared_ptr<engine::ConnectionCore> core, const ConnectionServices& services,
                   std::shared_ptr<void> runtime)
      : services_(services),
        runtime_(std::move(runtime)),
        core_(std::move(core)),
        backlog_(std::make_shared<Backlog>(services.backlog_thread, services.posts_max)) {
    if (services.weights != nullptr) services.weights->add(core_);
  }
  ~ConnectionHandle() override { close(); }
  Status post_send(const void* data, std::size_t bytes, std::uint32_t memory, engine::Request** out,
                   std::uint32_t channel) noexcept override {
    return core_->post_send({const_cast<void*>(data), memory, nullptr, nullptr, channel}, bytes, out);
  }
  Status post_receive(void* data, std::size_t bytes, std::uint32_t memory, engine::Request** out,
                      std::uint32_t channel) noexcept override {
    return core_->post_receive({data, memory, nullptr, nullptr, channel}, bytes, out);
  }
  Status post_staged_send(core::Stage* stages, std::size_t bytes, engine::Request** out) noexcept override {
    return core_->post_send({nullptr, 0, stages}, bytes, out);
  }
  Status post_staged_receive(core::Stage* stages, std::size_t bytes, engine::Request** out,
                             engine::LoanTaker* taker) noexcept override {
    return core_->post_receive({nullptr, 0, stages, nullptr, 0, nullptr, taker}, bytes, out);
  }
  Status post_lent_send(const engine::LentSend* send, std::size_t bytes, engine::Request** out) noexcept override {
    return core_->post_send({nullptr, 0, nullptr, nullptr, 0, send}, bytes, out);
  }
  engine::Loans* loans() noexcept override { return core_->port() == nullptr ? nullptr : core_->port()->loans(); }
  Status start(Backlog::Direction direction, HostBuffer buffer, std::shared_ptr<HostMessage>* out) noexcept override;
  Status start(Backlog::Direction direction, const std::shared_ptr<DeviceMessage>& message) noexcept override;
  std::uint32_t flows() const noexcept override { return core_->stripes(); }
  bool on_staged(engine::Request* send, std::uint32_t stage) noexcept override { return core_->on_staged(send, stage); }
  void release(engine::Request* request) noexcept override { core_->release(request); }
  Status wait(engine::Request* request, std::int64_t timeout_ns) noexcept override {
    return core_->wait(request, timeout_ns);
  }
  void progress(const engine::Request& request) noexcept override { core_->progress(request); }
  void close() noexcept override {
    core_->close();
    backlog_->close(Status::cancelled);
  }
  void await_copies() noexcept override;
  void quiesce(const void* data, std::size_t bytes) noexcept override;
  void quiesce(DeviceMessage* message) noexcept override;
  void quiesce(HostMessage* message) noexcept override;
  bool reads_payload() const noexcept override { return core_->reads_payload(); }
  Status health() const noexcept override { return core_->health(); }
  bool closed_by_peer() const noexcept override { return core_->closed_by_peer(); }
  std::string peer_address() const override { return core_->peer_address(); }
  ConnectionCounters counters() const override { return core_->counters(); }
  Status change_policy(const std::string& family, const std::string& text, engine::PolicyChange what,
                       std::string* error, std::int64_t engine) noexcept override;
  std::vector<engine::PolicyInfo> policies() const override;

 private:
  const ConnectionServices services_;
  std::shared_ptr<void> runtime_;  // keeps the engines alive, which the connection uses
  std::shared_ptr<engine::ConnectionCore> core_;
  std::shared_ptr<Backlog> backlog_;
  Unfinished<HostMessage> in_pieces_;
  Unfinished<DeviceMessage> on_device_;
};

}  // namespace weft::message
