// The conversation: hello, proof of the secret, open, reply, confirm. A false return drops the channel.
// Until a peer has proved itself nothing it says is acted on; every refusal is said to it and logged here.
#include <sys/epoll.h>

#include <algorithm>
#include <cstring>

#include "native/engine/clock.h"
#include "native/engine/control_plane.h"
#include "native/engine/log.h"

namespace weft::engine {
namespace {

// Flows of a connection when the knob leaves it open: more engines than this gain nothing a connection can use.
constexpr std::uint16_t kStripesAuto = 8;

std::string version_text(std::uint16_t theirs) {
  return "the peer speaks version " + std::to_string(theirs) + " of the control protocol, this is version " +
         std::to_string(kControlVersion) + ": install the same weft on both ends";
}

}  // namespace

Digest ControlPlane::proof(const char* who, const Digest& first, const Digest& second) const {
  if (secret_.empty()) return Digest{};
  std::string message = std::string("weft ") + who;
  message.append(first.begin(), first.end());
  message.append(second.begin(), second.end());
  return hmac_sha256(secret_, message);
}

void ControlPlane::stranger(Channel* channel, const char* what) {
  // The first is logged; a port scan would otherwise fill the log.
  if (strangers_.fetch_add(1, std::memory_order_relaxed) == 0) {
    log(LogLevel::warn,
        "a stranger at the control port, " + channel->peer_address + ", " + what + "; further ones are only counted");
  }
}

void ControlPlane::refuse(Channel* channel, std::uint64_t dial, Status status, const std::string& text) {
  log(LogLevel::warn, "refused " + channel->peer_address + ": " + text);
  if (!channel->dialled() && channel->state() != Channel::State::ready)
    strangers_.fetch_add(1, std::memory_order_relaxed);
  Refuse refusal;
  refusal.dial = dial;
  refusal.status = static_cast<std::uint32_t>(status);
  refusal.text = text;
  channel->send(encode(refusal));
  static_cast<void>(channel->flush());
}

void ControlPlane::on_connected(Channel* channel) {
  const int problem = channel->connect_error();
  if (problem != 0) {
    drop_channel(channel, std::string(std::strerror(problem)) + "; is a listener running there?",
                 problem == ECONNREFUSED ? Status::refused : Status::address_unavailable);
    return;
  }
  channel->set_state(Channel::State::greeting);
  channel->send(encode(FrameType::hello, channel->mine));
  if (!channel->flush()) {
    drop_channel(channel, "the connection was reset");
    return;
  }
  update_interest(channel);
}

void ControlPlane::on_readable(Channel* channel) {
  const std::uint64_t id = channel->id();
  if (!channel->flush()) {
    drop_channel(channel, "the connection was reset");
    return;
  }
  // Frames a wake-up: bounded, the rest stays readable.
  for (int i = 0; i < 256; ++i) {
    Frame frame;
    std::uint16_t version = 0;
    switch (channel->poll(&frame, &version)) {
      case Channel::Read::frame:
        if (!on_frame(channel, frame)) {
          if (channels_.count(id) != 0) drop_channel(channel, "the handshake failed");
          return;
        }
        continue;
      case Channel::Read::nothing:
        if (!channel->flush()) {
          drop_channel(channel, "the connection was reset");
        } else {
          update_interest(channel);
        }
        return;
      case Channel::Read::stranger:
        stranger(channel, "does not speak our protocol");
        drop_channel(channel, "what answers there is not weft", Status::refused);
        return;
      case Channel::Read::version:
        refuse(channel, 0, Status::version_mismatch, version_text(version));
        drop_channel(channel, version_text(version), Status::version_mismatch);
        return;
      case Channel::Read::damaged:
        stranger(channel, "sent a damaged frame");
        drop_channel(channel, "a damaged control frame");
        return;
      case Channel::Read::ended:
        drop_channel(channel, channel->state() == Channel::State::ready ? "the peer process is gone"
                                                                        : "the peer closed during the handshake");
        return;
    }
  }
}

bool ControlPlane::on_frame(Channel* channel, const Frame& frame) {
  const bool ready = channel->state() == Channel::State::ready;
  switch (frame.type) {
    case FrameType::hello:
      return !ready && !channel->dialled() && on_hello(channel, frame);
    case FrameType::hello_reply:
      return !ready && channel->dialled() && on_hello_reply(channel, frame);
    case FrameType::auth:
      return !ready && !channel->dialled() && on_auth(channel, frame);
    case FrameType::open:
      return ready && !channel->dialled() && on_open(channel, frame);
    case FrameType::open_reply:
      return ready && channel->dialled() && on_open_reply(channel, frame);
    case FrameType::confirm:
      return ready && !channel->dialled() && on_confirm(channel, frame);
    case FrameType::refuse:
      return on_refuse(channel, frame);
  }
  stranger(channel, "sent a frame of no known type");
  return false;
}

bool ControlPlane::on_hello(Channel* channel, const Frame& frame) {
  if (channel->theirs.node != 0 || !decode(frame.body, &channel->theirs) || channel->theirs.node == 0) return false;
  if (channel->theirs.has_secret != !secret_.empty()) {
    refuse(channel, 0, Status::authentication_failed, "only one of the two ends has WEFT_SECRET_FILE set");
    return false;
  }
  channel->mine.proof = proof("listener", channel->theirs.nonce, channel->mine.nonce);
  channel->mine.device = channel->device;
  channel->send(encode(FrameType::hello_reply, channel->mine));
  return true;
}

bool ControlPlane::on_hello_reply(Channel* channel, const Frame& frame) {
  if (!decode(frame.body, &channel->theirs) || channel->theirs.node == 0 || channel->theirs.engines == 0) return false;
  if (!equal_digests(channel->theirs.proof, proof("listener", channel->mine.nonce, channel->theirs.nonce))) {
    refuse(channel, 0, Status::authentication_failed, "the secrets in WEFT_SECRET_FILE differ");
    drop_channel(channel, "the secrets in WEFT_SECRET_FILE differ", Status::authentication_failed);
    return false;
  }
  channel->send(encode_auth(proof("dialler", channel->theirs.nonce, channel->mine.nonce)));
  channel->set_state(Channel::State::ready);
  for (auto& [id, pending] : dials_) {
    if (pending.channel == channel->id()) send_open(channel, &pending);
  }
  return true;
}

bool ControlPlane::on_auth(Channel* channel, const Frame& frame) {
  Digest theirs{};
  if (channel->theirs.node == 0 || !decode_auth(frame.body, &theirs)) return false;
  if (!equal_digests(theirs, proof("dialler", channel->mine.nonce, channel->theirs.nonce))) {
    refuse(channel, 0, Status::authentication_failed, "the secrets in WEFT_SECRET_FILE differ");
    return false;
  }
  channel->set_state(Channel::State::ready);
  return true;
}

void ControlPlane::send_open(Channel* channel, PendingDial* pending) {
  const std::uint16_t ours = static_cast<std::uint16_t>(engines_->size()), theirs = channel->theirs.engines;
  const std::uint16_t most = std::min<std::uint16_t>(std::max(ours, theirs), kStripesAuto);
  const auto stripes = static_cast<std::uint16_t>(knobs_->stripes != 0 ? knobs_->stripes : most);
  DialState& dial = *pending->state;
  const std::uint64_t apart = dial.policies.path == nullptr ? 0 : dial.policies.path->number;
  std::vector<FlowPlan> plans;
  for (std::uint16_t i = 0; i < stripes; ++i) {
    plans.push_back({static_cast<std::uint16_t>((next_engine_ + i) % ours),
                     static_cast<std::uint16_t>((next_engine_ + i) % theirs), apart});
  }
  ++next_engine_;
  std::string error;
  const std::uint32_t remote_device = channel->theirs.device;
  const Status status = setup_.reserve(dial.device, channel->id(), remote_device, plans, &pending->flows, &error);
  Open open;
  open.dial = dial.id;
  open.listener = dial.listener;
  if (status != Status::ok) {
    // finish_dial would take the entry away under our caller's feet: the deadline check reports it.
    const std::lock_guard<std::mutex> lock(dial.mutex);
    dial.status = status;
    dial.error = error;
    dial.deadline_ns = 0;
    pending->flows.clear();
    return;
  }
  setup_.describe(dial.device, pending->flows, &dial.to, &open);
  pending->segment_bytes = open.segment_bytes;
  channel->send(encode(FrameType::open, open));
  static_cast<void>(channel->flush());
  update_interest(channel);
}

Status ControlPlane::accept_open(Channel* channel, const Open& open, Open* reply, std::string* error) {
  const std::shared_ptr<ListenerState> listener = listener_for(*channel, open.listener);
  if (listener == nullptr) {
    *error = "nobody listens there (any more)";
    return Status::refused;
  }
  std::vector<FlowPlan> plans;
  for (const FlowEnd& flow : open.flows) {
    if (flow.remote_engine >= engines_->size()) {
      *error = "an engine that does not exist";
      return Status::refused;
    }
    plans.push_back({flow.remote_engine, flow.engine, std::uint64_t{1} << 63 | flow.peer});
  }
  if (plans.empty() || open.addresses.empty() || open.segment_bytes < 256 || open.segment_bytes > kSegmentBytesMax ||
      open.train_bytes > wire::kMaxBurstSegments * kSegmentBytesMax) {
    *error = "an offer without flows or addresses, or with a segment out of range";
    return Status::refused;
  }
  std::vector<LocalFlow> flows;
  Status status = setup_.reserve(listener->device, channel->id(), open.device, plans, &flows, error);
  if (status != Status::ok) return status;
  setup_.describe(listener->device, flows, &open.addresses[0], reply);
  reply->segment_bytes = std::min(reply->segment_bytes, open.segment_bytes);
  std::shared_ptr<ConnectionCore> connection;
  status = setup_.open(next_connection_++, flows, listener->policies, open, reply->segment_bytes, channel->peer_address,
                       notifier_, &connection, error);
  if (status != Status::ok) return status;
  accepts_[{channel->id(), open.dial}] = {connection, listener, now_ns() + knobs_->handshake_timeout_ns};
  return Status::ok;
}

bool ControlPlane::on_open(Channel* channel, const Frame& frame) {
  Open open, reply;
  if (!decode(frame.body, &open)) return false;
  reply.dial = open.dial;
  std::string error;
  const Status status = accept_open(channel, open, &reply, &error);
  if (status != Status::ok) {
    refuse(channel, open.dial, status, error);
    return true;
  }
  channel->send(encode(FrameType::open_reply, reply));
  return true;
}

bool ControlPlane::on_open_reply(Channel* channel, const Frame& frame) {
  Open reply;
  if (!decode(frame.body, &reply)) return false;
  const auto place = dials_.find(reply.dial);
  if (place == dials_.end() || place->second.channel != channel->id()) return true;  // given up meanwhile
  PendingDial pending = std::move(place->second);
  place->second.flows.clear();
  const std::shared_ptr<DialState> dial = pending.state;
  if (reply.flows.size() != pending.flows.size() || reply.addresses.empty() || reply.segment_bytes < 256 ||
      reply.segment_bytes > pending.segment_bytes) {
    setup_.give_back(pending.flows);
    place->second.state = dial;
    finish_dial(dial, Status::refused, "the peer's answer does not fit the offer");
    return true;
  }
  place->second.state = dial;
  std::shared_ptr<ConnectionCore> connection;
  std::string error;
  const Status status = setup_.open(next_connection_++, pending.flows, dial->policies, reply, reply.segment_bytes,
                                    channel->peer_address, notifier_, &connection, &error);
  bool abandoned = false;
  if (status == Status::ok) {
    channel->send(encode(Confirm{dial->id}));
    const std::lock_guard<std::mutex> lock(dial->mutex);
    abandoned = dial->abandoned;
    dial->connection = connection;
  }
  if (abandoned) connection->fail(Status::cancelled);
  finish_dial(dial, status, error);
  return true;
}

bool ControlPlane::on_confirm(Channel* channel, const Frame& frame) {
  Confirm confirm;
  if (!decode(frame.body, &confirm)) return false;
  const auto place = accepts_.find({channel->id(), confirm.dial});
  if (place == accepts_.end()) return true;  // too late
  const PendingAccept accepted = std::move(place->second);
  accepts_.erase(place);
  bool closed = false;
  {
    const std::lock_guard<std::mutex> lock(accepted.listener->mutex);
    closed = accepted.listener->closed;
    if (!closed) accepted.listener->ready.push_back(accepted.connection);
  }
  if (closed) accepted.connection->fail(Status::connection_closed);
  notifier_->notify();
  return true;
}

bool ControlPlane::on_refuse(Channel* channel, const Frame& frame) {
  Refuse refusal;
  if (!decode(frame.body, &refusal)) return false;
  const bool known = refusal.status != 0 && refusal.status <= static_cast<std::uint32_t>(Status::internal_error);
  const Status status = known ? static_cast<Status>(refusal.status) : Status::refused;
  log(LogLevel::warn, channel->peer_address + " refused: " + refusal.text);
  if (!channel->dialled() && channel->state() != Channel::State::ready)
    strangers_.fetch_add(1, std::memory_order_relaxed);
  std::vector<std::shared_ptr<DialState>> refused;
  for (const auto& [id, pending] : dials_) {
    if (pending.channel == channel->id() && (refusal.dial == 0 || refusal.dial == id)) refused.push_back(pending.state);
  }
  for (const auto& dial : refused) finish_dial(dial, status, channel->peer_address + " refused: " + refusal.text);
  return refusal.dial != 0;
}

}  // namespace weft::engine
