// Probes and their replies. A keepalive is a probe on the next path in turn, sent only while a flow waits for the peer
// and nothing has been heard for a quarter of the silence that means death.
#include "native/core/peer.h"

namespace weft::core {

namespace {

constexpr u8 kPadding[0xFFFF] = {};

}  // namespace

// `bytes`: of the datagram, 0: no more than it needs.
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

bool Peer::poll_transmit(i64 now_ns, TxBurst* out) noexcept {
  if (reply_count_ != 0) {
    const Reply& reply = replies_[--reply_count_];
    write_probe(wire::Type::probe_reply, reply.path, reply.probe, 0, out);
    return true;
  }
  if (dead_) return false;
  u64 probe_id = 0;
  u16 bytes = 0;
  const int path = paths_.poll_probe(now_ns, &probe_id, &bytes);
  if (path >= 0) {
    write_probe(wire::Type::probe, static_cast<u8>(path), {probe_id, now_ns}, bytes, out);
    return true;
  }
  if (waiting_flows_ == 0 || now_ns < keepalive_ns_) return false;
  keepalive_ns_ = now_ns + shared_->config.peer_silence_ns / 4;
  if (now_ns - heard_ns_ < shared_->config.peer_silence_ns / 4) return false;
  keepalive_path_ = static_cast<u8>((keepalive_path_ + 1u) % paths_.count());
  write_probe(wire::Type::probe, keepalive_path_, {0, now_ns}, 0, out);
  return true;
}

}  // namespace weft::core
