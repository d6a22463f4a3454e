// Sends probes, replies to probes, and keepalives. A keepalive is a probe that is sent when a flow waits and the peer
// was not heard for a quarter of the silence limit, or when the owner asks whether the peer is alive.
#include "native/core/peer.h"

namespace weft::core {

namespace {

constexpr u8 kPadding[0xFFFF] = {};

}  // namespace

// Writes a probe or a reply. `bytes`: size of the datagram to which it is padded; 0: no padding.
void Peer::write_probe(wire::Type type, u8 path, const wire::Probe& probe, u16 bytes, TxBurst* out) const noexcept {
  wire::Common common;
  common.token = config_.remote_token;
  common.flow = config_.remote_peer;
  common.type = type;
  common.path = path;
  out->peer = index_;
  out->path = path;
  out->count = 1;
  out->payload[0] = {};
  if (bytes > wire::kProbeBytes) {
    out->payload[0].data = kPadding;
    out->payload[0].bytes = static_cast<u32>(bytes - wire::kProbeBytes);
  }
  out->header_bytes = static_cast<u16>(wire::encode_probe(out->headers, common, probe, out->payload[0].bytes));
  out->datagram_bytes = out->header_bytes + out->payload[0].bytes;
}

// Path of the next keepalive. Each round of keepalives starts with the path last heard from; then usable paths follow
// in rotation, or all paths if none is usable.
u8 Peer::keepalive_path() noexcept {
  if (keepalive_known_) {
    keepalive_known_ = false;
    return paths_.heard_path();
  }
  const u16 count = paths_.count();
  for (u16 i = 1; i <= count; ++i) {
    const auto path = static_cast<u8>((keepalive_path_ + i) % count);
    if (paths_.any_usable() && !paths_.path(path).usable) continue;
    return keepalive_path_ = path;
  }
  return keepalive_path_ = static_cast<u8>((keepalive_path_ + 1u) % count);
}

bool Peer::on_keepalive_reply(i64 now_ns, u8 path, u64 probe_id) noexcept {
  if (keepalives_ == nullptr || probe_id == 0) return false;
  for (u64& id : keepalives_->ids) {
    if (id != probe_id) continue;
    id = 0;
    paths_.on_heard(now_ns, path);
    on_heard(now_ns);
    keepalives_due_ = 0;
    return true;
  }
  return false;
}

bool Peer::poll_transmit(i64 now_ns, TxBurst* out) noexcept {
  if (reply_count_ != 0) {
    const Reply& reply = replies_[--reply_count_];
    ++counters_->probes_answered;
    write_probe(wire::Type::probe_reply, reply.path, reply.probe, 0, out);
    return true;
  }
  if (dead_) return false;
  u64 probe_id = 0;
  u16 bytes = 0;
  const int path = paths_.poll_probe(now_ns, &probe_id, &bytes);
  if (path >= 0) {
    paths_.on_probe_sent(static_cast<u8>(path));
    if (!paths_.path(static_cast<std::size_t>(path)).usable) {
      Event event{};
      event.kind = Event::Kind::path_probed;
      event.peer = index_;
      event.path = static_cast<u8>(path);
      shared_->trace.emit(event);
    }
    write_probe(wire::Type::probe, static_cast<u8>(path), {probe_id, now_ns}, bytes, out);
    return true;
  }
  if (waiting_flows_ != 0 && now_ns >= keepalive_ns_) {
    const i64 silence_ns = shared_->config.peer_silence_ns;
    const i64 quiet_ns = quiet_since_ns() + silence_ns / 4;
    keepalive_ns_ = now_ns < quiet_ns ? quiet_ns : now_ns + std::max<i64>(silence_ns / kKeepaliveRounds, 1);
    if (now_ns >= quiet_ns) keepalives_due_ = std::max(keepalives_due_, kKeepalivePaths);
    keepalive_known_ = true;
  }
  if (keepalives_due_ == 0) return false;
  --keepalives_due_;
  if (keepalives_ == nullptr) keepalives_.reset(new (std::nothrow) Keepalives);
  if (keepalives_ == nullptr) return false;
  do probe_id = shared_->random.next();
  while (probe_id == 0);
  keepalives_->ids[keepalives_->next++ % keepalives_->ids.size()] = probe_id;
  ++counters_->keepalives_sent;
  write_probe(wire::Type::probe, keepalive_path(), {probe_id, now_ns}, 0, out);
  return true;
}

}  // namespace weft::core
