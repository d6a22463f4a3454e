// A connection as its caller uses it: numbers messages, posts their stripes to the flows, and completes a request with
// its last stripe. Functions run on the caller's thread unless marked otherwise.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "native/engine/engine.h"
#include "native/engine/message_port.h"
#include "native/engine/notifier.h"
#include "native/engine/patience.h"
#include "native/engine/policies/policy_choice.h"
#include "native/engine/request_slots.h"
#include "native/engine/small_mutex.h"
#include "native/engine/trace/connection_trace.h"
#include "native/telemetry/counters.h"

namespace weft::engine {

using telemetry::ConnectionCounters;

class ConnectionCore : public std::enable_shared_from_this<ConnectionCore> {
 public:
  // Limit of outstanding requests per direction.
  static constexpr std::uint64_t kRequestsMax = RequestSlots::kSlots;

  ConnectionCore(std::uint64_t id, std::vector<FlowRef> flows, std::string peer_address, bool reads_payload,
                 Notifier* notifier, ConnectionTrace trace = {});
  ~ConnectionCore();
  // What a deferred flow needs to be opened, besides what all flows of the connection have in common.
  struct DeferredEnd {
    std::uint64_t local_token = 0, remote_token = 0;
    std::uint32_t peer = 0, remote_flow = 0;
  };
  // Sets the configurations of the flows but the first, which are deferred. To be called before an engine owns one.
  // `policies`: those that were chosen for this connection; null: none.
  void defer_flows(std::vector<DeferredEnd> ends, core::EagerLimits remote,
                   std::unique_ptr<PolicySet> policies) noexcept;
  // Lets a port move all messages, instead of the flows. To be called before the first post.
  void use_port(std::shared_ptr<MessagePort> port) noexcept { port_ = std::move(port); }
  MessagePort* port() const noexcept { return port_.get(); }
  // What moves the messages; empty: the datapath.
  const char* port_name() const noexcept { return port_ == nullptr ? "" : port_->name(); }

  // Where the bytes of a message are: at `data`, or in bounce buffers (`stages`, one per stripe).
  struct Payload {
    void* data = nullptr;
    std::uint32_t memory = 0;  // id of the registered memory that contains `data`; 0: none
    core::Stage* stages = nullptr;
    Completion* completion = nullptr;  // if set: when the request is done, it is released, then on_complete() is called
    std::uint32_t channel = 0;         // id of the NCCL channel's trace record; 0: none
    const LentSend* lent = nullptr;    // a send: the bytes are in memory that this names (Loans::can_lend())
    LoanTaker* taker = nullptr;        // a receive: takes the message if it is lent
  };
  // `number`: gets the number of the message; may be null.
  Status post_send(const Payload& payload, std::size_t bytes, Request** out, std::uint64_t* number = nullptr) noexcept;
  Status post_receive(const Payload& payload, std::size_t capacity_bytes, Request** out,
                      std::uint64_t* number = nullptr) noexcept;
  // For a caller that waits for a message: runs one iteration of an engine's loop. For an even `turn` it is the home
  // flow's engine, for an odd one any engine that may carry a stripe. `bytes`: the posted size.
  Engine::Help help(std::uint64_t message, std::uint64_t bytes, std::uint32_t turn) noexcept;
  // For a caller that polls a request, again and again, instead of waiting for it: if the home flow carries all of the
  // message, runs an iteration of the loop of the home flow's engine.
  void progress(const Request& request) noexcept;
  // To be called when the caller that waits for the message goes to sleep: the engines' own threads run their loops
  // again.
  void unattend(std::uint64_t message, std::uint64_t bytes) noexcept;
  // To be called when a caller has waited for a message of `bytes` bytes and the message is done. If no later message
  // of its direction is posted, these bytes, and as many bytes of a reply, do not count towards LoopLock::kBulkBytes.
  void on_waited(bool send, std::uint64_t message, std::uint64_t bytes) noexcept;
  Patience& patience() noexcept { return patience_; }
  bool on_staged(Request* send, std::uint32_t stage) noexcept;
  void release(Request* request) noexcept;
  Status wait(Request* request, std::int64_t timeout_ns) noexcept;
  void close() noexcept;
  void quiesce(const void* data, std::size_t bytes) noexcept;
  Status health() const noexcept { return static_cast<Status>(failure_.load(std::memory_order_acquire)); }
  // Whether the peer has closed the connection; messages that arrived before may still be received.
  bool closed_by_peer() const noexcept { return flows_peer_closed_.load(std::memory_order_acquire) == flow_count(); }
  const std::string& peer_address() const noexcept { return peer_address_; }
  bool reads_payload() const noexcept { return reads_payload_ || port_ != nullptr; }
  // Number of stripes of a large message.
  std::uint32_t stripes() const noexcept { return port_ != nullptr ? 1 : static_cast<std::uint32_t>(flows_.size()); }
  // Reads the counters that the engines update, without interrupting the engines.
  ConnectionCounters counters() const;
  std::uint64_t id() const noexcept { return id_; }
  const std::vector<FlowRef>& flows() const noexcept { return flows_; }
  // The flows on one engine; on all engines if `engine` is kEveryEngine.
  static constexpr std::int64_t kEveryEngine = -1;
  std::vector<FlowRef> flows_on(std::int64_t engine) const;
  const ConnectionTrace& trace() const noexcept { return trace_; }

  // Ends the port, then aborts every flow. When the last flow has released its buffers, outstanding requests fail. Only
  // the first call has an effect.
  void fail(Status reason) noexcept;
  const std::shared_ptr<core::Passed>& passed() const noexcept { return passed_; }

  // Called by the port: it has moved all bytes of a message, will not move any more of a send because the peer has
  // closed, or has ended.
  void on_moved(RequestSlot* slot, std::uint64_t message_bytes) noexcept;
  void on_unsent(RequestSlot* slot, Status reason) noexcept;
  void on_port_ended() noexcept;

  // The functions from here to on_flow_released() are called on engine threads.
  void on_send_done(RequestSlot* slot, std::uint64_t message_bytes) noexcept;
  void on_stripe_placed(core::ReceiveTicket* ticket, std::uint64_t message_bytes) noexcept;
  void on_peer_closed(std::uint64_t held_messages, bool receive_waits, Status reason) noexcept;
  bool deferred_config(const Engine* engine, std::uint32_t index, core::FlowConfig* out) const noexcept;
  void on_flow_opened(const Engine* engine, std::uint32_t index, core::Flow* flow) noexcept;
  void on_flow_quiesced() noexcept;
  void on_flow_released(const Engine* engine, std::uint32_t index) noexcept;

 private:
  struct Direction {
    SmallMutex mutex;  // held while a message is numbered and posted
    std::uint64_t next_message = 0;
    RequestSlots slots;
    bool swept = false;  // sweep() has completed all requests, and new requests are refused
  };
  Status begin(Direction* direction, const Payload& payload, std::size_t bytes, RequestSlot** out) noexcept;
  static std::uint64_t number(Direction* direction, RequestSlot* slot, std::uint64_t bytes, bool sends) noexcept;
  bool reserve(std::uint64_t message, std::uint64_t bytes) noexcept;
  bool lazily(const Direction& direction, std::uint64_t bytes) const noexcept;
  void complete(RequestSlot* slot, Status status, std::size_t bytes) noexcept;
  void sweep(Direction* direction, Status reason) noexcept;
  bool outstanding_in(Direction* direction, const void* data, std::size_t bytes) noexcept;
  void await_quiesced() noexcept;
  bool lacks_parts() noexcept;
  Status post_to_port(Direction* direction, const Payload& payload, std::size_t bytes, bool sends, Request** out,
                      std::uint64_t* number) noexcept;
  std::uint32_t flow_count() const noexcept { return static_cast<std::uint32_t>(flows_.size()); }

  const std::uint64_t id_;
  const std::vector<FlowRef> flows_;
  const std::string peer_address_;
  const bool reads_payload_;
  const std::shared_ptr<core::Passed> passed_ = std::make_shared<core::Passed>();
  Notifier* notifier_;
  const ConnectionTrace trace_;
  std::shared_ptr<MessagePort> port_;  // null: the flows move the messages
  Patience patience_;
  std::atomic<std::int32_t> failure_{0};
  std::atomic<std::int32_t> flows_live_;
  std::atomic<std::uint32_t> flows_peer_closed_{0};
  std::atomic<bool> receive_waits_{false};       // a receive waits for a message that the peer did not send
  std::atomic<std::uint64_t> held_messages_{0};  // eager messages that can be received after the peer closed
  std::atomic<bool> polled_{false};              // a caller polls requests, see progress()
  Direction send_, receive_;
  std::size_t stripe_of(const Engine* engine, std::uint32_t index) const noexcept;
  std::vector<DeferredEnd> deferred_;          // of the flows but the first
  core::EagerLimits remote_eager_;             // the other end's limits of eager messages
  std::unique_ptr<const PolicySet> policies_;  // keeps the policies loaded; null: none were chosen
  mutable SmallMutex open_mutex_;              // engines lock it when they open or release a flow
  std::vector<core::Flow*> open_;              // by stripe: its flow; null while the flow is not open
  std::unique_ptr<ConnectionCounters> last_;   // the counters of flows that were released; null: none was
};

}  // namespace weft::engine
