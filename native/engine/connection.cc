// Posts, completes and fails the requests of a connection. A post first reserves room in all engines that carry a
// stripe of the message. A connection fails in two steps: first every flow releases its buffers, then all requests
// complete with the reason (P-1).
#include "native/engine/connection.h"

#include <algorithm>
#include <climits>
#include <new>
#include <utility>

#include "native/engine/clock.h"
#include "native/engine/futex.h"
#include "native/engine/log.h"

namespace weft::engine {
namespace {

// How long close() waits for the engines to release buffers. That takes microseconds; the limit only prevents a hang.
// Each sleep counts as at most kQuiesceNapNs, so that time in which the process was stopped is left out.
constexpr std::int64_t kQuiesceNsMax = 5'000'000'000;
constexpr std::int64_t kQuiesceNapNs = 1'000'000;
// on_waited() ignores messages of fewer bytes: a caller that waits for each of them cannot make a loop move
// LoopLock::kBulkBytes within LoopLock::kWindowNs.
constexpr std::uint64_t kFewBytes = 4096;

}  // namespace

void RequestSlot::begin(const void* data, std::size_t bytes, Completion* completion) noexcept {
  taken_.store(true, std::memory_order_relaxed);
  completion_ = completion;
  begin_ = reinterpret_cast<std::uintptr_t>(data);
  length_ = bytes;
  bytes_ = 0;
  state_.store(kPending, std::memory_order_relaxed);
}

void RequestSlot::complete(Status status, std::size_t bytes) noexcept {
  Completion* const completion = completion_;
  bytes_ = bytes;
  state_.store(1 + static_cast<std::int32_t>(status), std::memory_order_seq_cst);
  if (completion != nullptr) {
    release();  // from now on another thread can take the request slot
    completion->on_complete(status, bytes);
    return;
  }
  if (sleepers_.load(std::memory_order_seq_cst) != 0) futex_wake_all(&state_);
}

bool RequestSlot::overlaps(const void* data, std::size_t bytes) const noexcept {
  const auto from = reinterpret_cast<std::uintptr_t>(data);
  return taken() && !done() && begin_ < from + bytes && from < begin_ + length_;
}

void RequestSlot::wait(std::int64_t timeout_ns) noexcept {
  const std::int64_t until_ns = later_ns(now_ns(), timeout_ns);
  sleepers_.fetch_add(1, std::memory_order_seq_cst);
  for (std::int64_t left_ns = timeout_ns; !done() && left_ns > 0; left_ns = until_ns - now_ns()) {
    futex_wait(&state_, kPending, left_ns);
  }
  sleepers_.fetch_sub(1, std::memory_order_relaxed);
}

ConnectionCore::ConnectionCore(std::uint64_t id, std::vector<FlowRef> flows, std::string peer_address,
                               bool reads_payload, Notifier* notifier, ConnectionTrace trace)
    : id_(id),
      flows_(std::move(flows)),
      peer_address_(std::move(peer_address)),
      reads_payload_(reads_payload),
      notifier_(notifier),
      trace_(std::move(trace)),
      patience_(flows_.empty() ? 0 : flows_[0].engine->poll_ns(), flows_.empty() ? 0 : flows_[0].engine->poll_share()),
      flows_live_(static_cast<std::int32_t>(flows_.size())),
      open_(flows_.size()) {}

ConnectionCore::~ConnectionCore() {
  if (port_ != nullptr) port_->end();
}

// Finds a request slot for the next message. The caller must hold the direction's mutex, and give the slot to the
// message with number() once nothing can fail any more.
Status ConnectionCore::begin(Direction* direction, const Payload& payload, std::size_t bytes,
                             RequestSlot** out) noexcept {
  const bool nowhere = payload.data == nullptr && payload.stages == nullptr && payload.lent == nullptr;
  if (bytes > core::kMessageBytesMax || (nowhere && bytes != 0)) return Status::invalid_argument;
  const Status failure = health();
  if (failure != Status::ok) return failure;
  if (direction->swept) return Status::connection_closed;
  RequestSlot* slot = nullptr;
  if (const Status found = direction->slots.obtain(direction->next_message, &slot); found != Status::ok) return found;
  // Notes which memory of the caller the request uses, for quiesce().
  if (payload.stages != nullptr) {
    slot->begin(payload.stages, sizeof(core::Stage) * core::stage_count(bytes, stripes()), payload.completion);
  } else if (payload.lent != nullptr) {
    slot->begin(payload.lent, sizeof(LentSend), payload.completion);
  } else {
    slot->begin(payload.data, bytes, payload.completion);
  }
  if (trace_.on()) {
    slot->posted_ns = now_ns();
    slot->channel = payload.channel;
  }
  *out = slot;
  return Status::ok;
}

// Numbers the message whose slot begin() has found.
std::uint64_t ConnectionCore::number(Direction* direction, RequestSlot* slot, std::uint64_t bytes,
                                     bool sends) noexcept {
  direction->slots.take(direction->next_message);
  slot->posted_bytes = bytes;
  slot->sends = sends;
  return direction->next_message++;
}

bool ConnectionCore::reserve(std::uint64_t message, std::uint64_t bytes) noexcept {
  for (std::uint32_t i = 0; i < stripes(); ++i) {
    if (!core::takes_part(message, bytes, i, stripes())) continue;
    if (flows_[i].engine->reserve(1)) continue;
    for (std::uint32_t k = 0; k < i; ++k) {
      if (core::takes_part(message, bytes, k, stripes())) flows_[k].engine->give_back(1);
    }
    return false;
  }
  return true;
}

// Whether a post need not wake an engine's thread, because a caller will soon run the engine's loop. A caller that
// polls runs the loop of the home flow's engine. A caller that waits for an eager message runs it too, unless it waits
// for the message before it first. The posted message is the direction's last one already.
bool ConnectionCore::lazily(const Direction& direction, std::uint64_t bytes) const noexcept {
  if (polled_.load(std::memory_order_relaxed)) return bytes <= core::kHomeBytesMax;
  if (bytes > flows_[0].engine->stack().config().eager_bytes) return false;
  return !direction.slots.follows_taken();
}

// The direction's mutex must be held.
Status ConnectionCore::post_to_port(Direction* direction, const Payload& payload, std::size_t bytes, bool sends,
                                    Request** out, std::uint64_t* number) noexcept {
  RequestSlot* slot = nullptr;
  const Status status = begin(direction, payload, bytes, &slot);
  if (status != Status::ok) return status;
  const std::uint64_t message = this->number(direction, slot, bytes, sends);
  if (number != nullptr) *number = message;
  slot->ticket().agreed_bytes.store(-1, std::memory_order_relaxed);
  *out = slot;  // set first: the message may be complete before the call below returns
  const MessagePort::Posting post{
      slot, static_cast<std::uint8_t*>(payload.data), payload.stages, bytes, payload.lent, payload.taker};
  sends ? port_->post_send(post) : port_->post_receive(post);
  return Status::ok;
}

void ConnectionCore::on_moved(RequestSlot* slot, std::uint64_t message_bytes) noexcept {
  {
    const std::lock_guard<SmallMutex> lock(open_mutex_);  // the engine may be releasing the flow
    if (const core::Flow* const home = open_[core::kHomeFlow]) {
      telemetry::FlowCells& counters = *home->config.counters;
      (slot->sends ? counters.bytes_sent : counters.bytes_received) += static_cast<std::int64_t>(message_bytes);
    }
  }
  complete(slot, Status::ok, message_bytes);
  notifier_->notify();
}

void ConnectionCore::on_unsent(RequestSlot* slot, Status reason) noexcept {
  complete(slot, reason, 0);
  notifier_->notify();
}

Status ConnectionCore::post_send(const Payload& payload, std::size_t bytes, Request** out,
                                 std::uint64_t* number) noexcept {
  *out = nullptr;
  const std::lock_guard<SmallMutex> lock(send_.mutex);
  if (port_ != nullptr) return post_to_port(&send_, payload, bytes, true, out, number);
  RequestSlot* slot = nullptr;
  const Status status = begin(&send_, payload, bytes, &slot);
  if (status != Status::ok) return status;
  const std::uint64_t message = send_.next_message;
  if (!reserve(message, bytes)) {
    slot->release();
    return Status::would_block;
  }
  this->number(&send_, slot, bytes, true);
  // A message gets a slot only when message n - kRequestsMax is complete.
  if (message >= kRequestsMax) passed_->sends.store(message - kRequestsMax, std::memory_order_release);
  if (number != nullptr) *number = message;
  slot->parts.store(core::part_count(message, bytes, stripes()), std::memory_order_relaxed);
  const bool lazy = lazily(send_, bytes);
  auto* bytes_at = static_cast<std::uint8_t*>(payload.data);
  for (std::uint32_t i = 0; i < stripes(); ++i) {
    if (!core::takes_part(message, bytes, i, stripes())) continue;
    core::Stage* stage =
        payload.stages != nullptr ? &payload.stages[core::stage_of(message, bytes, i, stripes())] : nullptr;
    const core::SendPost send{message, bytes_at, bytes, payload.memory, slot, stage};
    flows_[i].engine->post({Command::Kind::send, flows_[i].flow, id_, 0, {.send = send}}, lazy);
  }
  *out = slot;
  return Status::ok;
}

Status ConnectionCore::post_receive(const Payload& payload, std::size_t capacity_bytes, Request** out,
                                    std::uint64_t* number) noexcept {
  *out = nullptr;
  const std::lock_guard<SmallMutex> lock(receive_.mutex);
  if (port_ != nullptr) return post_to_port(&receive_, payload, capacity_bytes, false, out, number);
  RequestSlot* slot = nullptr;
  const Status status = begin(&receive_, payload, capacity_bytes, &slot);
  if (status != Status::ok) return status;
  const std::uint64_t message = receive_.next_message;
  if (!reserve(message, capacity_bytes)) {
    slot->release();
    return Status::would_block;
  }
  this->number(&receive_, slot, capacity_bytes, false);
  // With n = `message`: receive n - kRequestsMax is complete here, so its sender had posted it. To post it, the sender
  // needed the slot of send n - 2 * kRequestsMax, so that send is complete.
  if (message >= 2 * kRequestsMax) passed_->receives.store(message - 2 * kRequestsMax, std::memory_order_release);
  if (number != nullptr) *number = message;
  core::ReceiveTicket& ticket = slot->ticket();
  ticket.agreed_bytes.store(-1, std::memory_order_relaxed);
  ticket.stripes_placed.store(0, std::memory_order_relaxed);
  ticket.message.store(message, std::memory_order_release);
  const bool lazy = lazily(receive_, capacity_bytes);
  auto* bytes_at = static_cast<std::uint8_t*>(payload.data);
  // Posts to all flows that a message of the full capacity would use; a shorter message uses some of them.
  for (std::uint32_t i = 0; i < stripes(); ++i) {
    if (!core::takes_part(message, capacity_bytes, i, stripes())) continue;
    core::Stage* stage =
        payload.stages != nullptr ? &payload.stages[core::stage_of(message, capacity_bytes, i, stripes())] : nullptr;
    const core::ReceivePost receive{message, bytes_at, capacity_bytes, 0, &ticket, stage};
    flows_[i].engine->post({Command::Kind::receive, flows_[i].flow, id_, payload.memory, {.receive = receive}}, lazy);
  }
  *out = slot;
  return Status::ok;
}

bool ConnectionCore::on_staged(Request* send, std::uint32_t stage) noexcept {
  if (send->done()) return true;  // no flow waits for the bounce buffer
  if (port_ != nullptr) {
    port_->unattend();
    return true;
  }
  const auto* slot = static_cast<RequestSlot*>(send);
  const std::uint32_t flow = core::flow_of_stage(slot->message, slot->posted_bytes, stage, stripes());
  if (!flows_[flow].engine->reserve(1)) return false;
  flows_[flow].engine->post({Command::Kind::staged, flows_[flow].flow, id_, 0, {}}, false);
  return true;
}

void ConnectionCore::release(Request* request) noexcept {
  auto* slot = static_cast<RequestSlot*>(request);
  Direction& direction = slot->sends ? send_ : receive_;
  const std::lock_guard<SmallMutex> lock(direction.mutex);
  if (slot->done()) slot->release();
}

Status ConnectionCore::wait(Request* request, std::int64_t timeout_ns) noexcept {
  static_cast<RequestSlot*>(request)->wait(timeout_ns);
  return request->done() ? Status::ok : Status::timed_out;
}

Engine::Help ConnectionCore::help(std::uint64_t message, std::uint64_t bytes, std::uint32_t turn) noexcept {
  if (port_ != nullptr) return port_->help();
  // Every second call runs the loop of the home flow's engine, because a message that is shorter than its receive may
  // come over the home flow alone.
  if (turn % 2 == 0) return flows_[core::kHomeFlow].engine->help();
  const std::uint32_t part = turn / 2 % core::stripe_count(bytes, stripes());
  return flows_[core::flow_of_stage(message, bytes, part, stripes())].engine->help();
}

void ConnectionCore::progress(const Request& request) noexcept {
  if (port_ != nullptr) return port_->poll();
  const auto& slot = static_cast<const RequestSlot&>(request);
  if (slot.posted_bytes <= core::kHomeBytesMax) {
    polled_.store(true, std::memory_order_relaxed);
    static_cast<void>(flows_[core::kHomeFlow].engine->help());
    return;
  }
  // One thread is too slow to run the loops of all engines that carry stripes of the message: the engines' own threads
  // run them.
  const std::int64_t now = now_ns();
  for (std::uint32_t i = 0; i < stripes(); ++i) {
    if (core::takes_part(slot.message, slot.posted_bytes, i, stripes())) flows_[i].engine->keep_loop(now);
  }
}

void ConnectionCore::unattend(std::uint64_t message, std::uint64_t bytes) noexcept {
  if (port_ != nullptr) return port_->unattend();
  const std::uint32_t parts = core::stage_count(bytes, stripes());
  for (std::uint32_t part = 0; part < parts; ++part) {
    flows_[core::flow_of_stage(message, bytes, part, stripes())].engine->unattend();
  }
}

void ConnectionCore::on_waited(bool send, std::uint64_t message, std::uint64_t bytes) noexcept {
  if (port_ != nullptr) return port_->unattend();
  if (bytes < kFewBytes) return;
  Direction& direction = send ? send_ : receive_;
  {
    const std::lock_guard<SmallMutex> lock(direction.mutex);
    if (direction.next_message != message + 1) return;
  }
  const std::uint32_t parts = core::stage_count(bytes, stripes());
  for (std::uint32_t part = 0; part < parts; ++part) {
    flows_[core::flow_of_stage(message, bytes, part, stripes())].engine->discount_bytes(2 * bytes / parts);
  }
}

void ConnectionCore::on_send_done(RequestSlot* slot, std::uint64_t message_bytes) noexcept {
  if (slot->parts.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
  complete(slot, Status::ok, message_bytes);
  notifier_->notify();
}

void ConnectionCore::on_stripe_placed(core::ReceiveTicket* ticket, std::uint64_t message_bytes) noexcept {
  if (!core::on_stripe_placed(*ticket, message_bytes, stripes())) return;
  complete(&RequestSlot::with(ticket), Status::ok, message_bytes);
  notifier_->notify();
}

void ConnectionCore::complete(RequestSlot* slot, Status status, std::size_t bytes) noexcept {
  if (trace_.on()) trace_.message({slot->message, bytes, slot->posted_ns, slot->channel, slot->sends, status});
  slot->complete(status, bytes);
}

void ConnectionCore::fail(Status reason) noexcept {
  std::int32_t healthy = 0;
  if (!failure_.compare_exchange_strong(healthy, static_cast<std::int32_t>(reason))) return;
  port_ != nullptr ? port_->end() : on_port_ended();
}

// Nothing but the flows uses buffers of requests any more.
void ConnectionCore::on_port_ended() noexcept {
  for (const FlowRef& flow : flows_) flow.engine->abort(flow.flow, id_, health());
}

// The peer has closed or died. Eager messages that arrived before can still be received. The connection fails if there
// are none, or if a receive waits for a message that will not arrive.
void ConnectionCore::on_peer_closed(std::uint64_t held_messages, bool receive_waits, Status reason) noexcept {
  if (receive_waits) receive_waits_.store(true, std::memory_order_release);
  held_messages_.fetch_add(held_messages, std::memory_order_acq_rel);
  if (flows_peer_closed_.fetch_add(1, std::memory_order_acq_rel) + 1 != flow_count()) return;
  if (port_ != nullptr) return port_->on_peer_closed(reason);
  const bool drained = held_messages_.load(std::memory_order_acquire) == 0;
  if (drained || receive_waits_.load(std::memory_order_acquire) || lacks_parts()) return fail(reason);
  // The flows have released the buffers of outstanding sends, so these sends fail now.
  sweep(&send_, reason);
  notifier_->notify();
}

// Whether a message of several stripes has arrived in part only. Before a flow counts as closed by the peer, it has
// handled everything that it received.
bool ConnectionCore::lacks_parts() noexcept {
  const std::lock_guard<SmallMutex> lock(receive_.mutex);
  bool lacks = false;
  receive_.slots.each([&](const RequestSlot& slot) {
    const std::int64_t bytes = slot.ticket().agreed_bytes.load(std::memory_order_acquire);
    if (!slot.taken() || slot.done() || bytes < 0) return;
    lacks |= core::part_count(slot.message, static_cast<std::uint64_t>(bytes), stripes()) > 1;
  });
  return lacks;
}

void ConnectionCore::on_flow_quiesced() noexcept {
  if (flows_live_.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
  sweep(&send_, health());
  sweep(&receive_, health());
  trace_.end(health());
  // Must be the last step: after it the thread in await_quiesced() may free the buffers.
  flows_live_.store(INT32_MIN, std::memory_order_release);
  futex_wake_all(&flows_live_);
  notifier_->notify();
}

void ConnectionCore::sweep(Direction* direction, Status reason) noexcept {
  const std::lock_guard<SmallMutex> lock(direction->mutex);
  direction->swept = true;
  direction->slots.each([&](RequestSlot& slot) {
    if (slot.taken() && !slot.done()) complete(&slot, reason, 0);
  });
}

void ConnectionCore::await_quiesced() noexcept {
  for (std::int64_t waited_ns = 0; waited_ns < kQuiesceNsMax;) {
    const std::int32_t live = flows_live_.load(std::memory_order_acquire);
    if (live == INT32_MIN) return;
    const std::int64_t begin_ns = now_ns();
    futex_wait(&flows_live_, live, kQuiesceNapNs);
    waited_ns += std::clamp<std::int64_t>(now_ns() - begin_ns, 1, kQuiesceNapNs);
  }
  try {
    log(LogLevel::warn,
        "closing the connection to " + peer_address() + ": buffers of its requests are still in use " +
            "after 5 s, as memory that the peer lent cannot be read, or an engine stands still; do not " +
            "use or free the buffer of a request before it is done");
  } catch (const std::bad_alloc&) {  // out of memory: the line is lost
  }
}

void ConnectionCore::close() noexcept {
  fail(Status::cancelled);
  await_quiesced();
}

bool ConnectionCore::outstanding_in(Direction* direction, const void* data, std::size_t bytes) noexcept {
  const std::lock_guard<SmallMutex> lock(direction->mutex);
  bool overlaps = false;
  direction->slots.each([&](const RequestSlot& slot) { overlaps |= slot.overlaps(data, bytes); });
  return overlaps;
}

void ConnectionCore::quiesce(const void* data, std::size_t bytes) noexcept {
  // A started message cannot be withdrawn, so the only way to release its buffer is to close the connection.
  if (outstanding_in(&send_, data, bytes) || outstanding_in(&receive_, data, bytes)) close();
}

namespace {

// Reads the counters of a flow and of its paths, from any thread. The paths' gauge `usable` (1 or 0) is kept only for
// the first engine of the connection: the values of all engines are added up, and a path would otherwise count once for
// each engine.
ConnectionCounters counters_of(const core::Flow& flow, bool first_engine) {
  ConnectionCounters out{telemetry::values(*flow.config.counters), {}};
  const core::PathSet& paths = flow.peer->paths();
  out.paths.reserve(paths.count());
  for (std::size_t i = 0; i < paths.count(); ++i) {
    out.paths.push_back(paths.counters(i));
    if (!first_engine) out.paths.back().usable = 0;
  }
  return out;
}

}  // namespace

// The stripe that a flow carries; flow_count() if it is none of this connection.
std::size_t ConnectionCore::stripe_of(const Engine* engine, std::uint32_t index) const noexcept {
  std::size_t stripe = 0;
  while (stripe < flows_.size() && (flows_[stripe].engine != engine || flows_[stripe].flow != index)) ++stripe;
  return stripe;
}

void ConnectionCore::defer_flows(std::vector<DeferredEnd> ends, core::EagerLimits remote,
                                 std::unique_ptr<PolicySet> policies) noexcept {
  deferred_ = std::move(ends);
  remote_eager_ = remote;
  policies_ = std::move(policies);
}

bool ConnectionCore::deferred_config(const Engine* engine, std::uint32_t index, core::FlowConfig* out) const noexcept {
  const std::size_t stripe = stripe_of(engine, index);
  if (stripe == core::kHomeFlow || stripe > deferred_.size()) return false;
  const DeferredEnd& end = deferred_[stripe - 1];
  out->peer = end.peer;
  out->remote_flow = end.remote_flow;
  out->remote_token = end.remote_token;
  out->local_token = end.local_token;
  out->stripe = static_cast<std::uint8_t>(stripe);
  out->stripes = static_cast<std::uint8_t>(flows_.size());
  out->eager_bytes_max = remote_eager_.bytes;
  out->eager_slots_max = remote_eager_.slots;
  out->passed = passed_;
  if (policies_ != nullptr) policies_->put_into(out);
  return true;
}

void ConnectionCore::on_flow_opened(const Engine* engine, std::uint32_t index, core::Flow* flow) noexcept {
  const std::lock_guard<SmallMutex> lock(open_mutex_);
  const std::size_t stripe = stripe_of(engine, index);
  if (stripe < open_.size()) open_[stripe] = flow;
}

// Saves the counters of a flow that is released, because they may explain why a peer is gone.
void ConnectionCore::on_flow_released(const Engine* engine, std::uint32_t index) noexcept {
  const std::lock_guard<SmallMutex> lock(open_mutex_);
  const std::size_t stripe = stripe_of(engine, index);
  const core::Flow* const flow = stripe < open_.size() ? std::exchange(open_[stripe], nullptr) : nullptr;
  if (flow == nullptr) return;
  try {
    if (last_ == nullptr) last_ = std::make_unique<ConnectionCounters>();
    merge(counters_of(*flow, engine == flows_[0].engine), last_.get());
  } catch (const std::bad_alloc&) {  // out of memory: the flow's counters are lost
  }
}

ConnectionCounters ConnectionCore::counters() const {
  ConnectionCounters total;
  const std::lock_guard<SmallMutex> lock(open_mutex_);
  if (last_ != nullptr) total = *last_;
  for (std::size_t i = 0; i < open_.size(); ++i) {
    if (open_[i] != nullptr) merge(counters_of(*open_[i], flows_[i].engine == flows_[0].engine), &total);
  }
  return total;
}

std::vector<FlowRef> ConnectionCore::flows_on(std::int64_t engine) const {
  std::vector<FlowRef> found;
  for (const FlowRef& flow : flows_) {
    if (engine == kEveryEngine || engine == flow.engine->id()) found.push_back(flow);
  }
  return found;
}

}  // namespace weft::engine
