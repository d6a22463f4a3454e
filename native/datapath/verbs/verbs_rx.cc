// Receives from the slots that the NIC filled: control packets first, then data. A slot is posted again after the sink
// returns, so the sink must copy what it keeps.
#include <arpa/inet.h>

#include <algorithm>

#include "native/datapath/verbs/verbs_datapath.h"

namespace weft::datapath {
namespace {

constexpr int kRxBatch = 32;
constexpr std::uint32_t kHousekeepingRounds = 256;
constexpr std::size_t kPathOffset = 20;  // byte offset of the path number in every packet (docs/PROTOCOL.md)

// Polls a completion queue; completions that were kept earlier come first.
int poll(ibv_cq* queue, std::vector<ibv_wc>* kept, ibv_wc* out) noexcept {
  int first = 0;
  if (!kept->empty()) {
    first = static_cast<int>(std::min<std::size_t>(kept->size(), kRxBatch));
    std::copy_n(kept->begin(), first, out);
    kept->erase(kept->begin(), kept->begin() + first);
  }
  const int got = first == kRxBatch ? 0 : ibv_poll_cq(queue, kRxBatch - first, out + first);
  return first + std::max(got, 0);
}

}  // namespace

std::size_t VerbsDatapath::rx_burst(RxSink* sink) {
  std::size_t seen = 0;
  for (std::size_t i = 0; i < ports_.size(); ++i) seen += poll_control(ports_[i].get(), sink);
  for (std::size_t i = 0; i < ports_.size(); ++i) seen += poll_data(ports_[i].get(), sink);
  if (++rounds_ % kHousekeepingRounds == 0) {
    for (std::size_t i = 0; i < ports_.size(); ++i) {
      reap(ports_[i].get());
      take_async(ports_[i].get());
    }
  }
  if (!reestablishments_.empty()) reestablish_due();
  // Nothing arrived: releases the datagrams held back by fault injection, which would otherwise wait for later ones.
  if (seen == 0 && faults_.holds()) faults_.release_all(sink);
  counters_->datagrams_received += static_cast<std::int64_t>(seen);
  return seen;
}

void VerbsDatapath::pass(const wire::RxDatagram& datagram, RxSink* sink) {
  const std::uint32_t path = datagram.header_bytes > kPathOffset ? datagram.header[kPathOffset] : 0;
  if (faults_.active()) {
    faults_.offer(path, datagram, sink);
  } else {
    sink->on_datagram(path, datagram);
  }
}

void VerbsDatapath::on_write(VerbsPort* port, const ibv_wc& done) noexcept {
  const auto pair = port->landed.find(done.qp_num);
  if (pair == port->landed.end()) {
    ++counters_->foreign_completions;
    return;
  }
  pair->second = {ntohl(done.imm_data), done.byte_len, true};
}

// Builds the datagram of a header whose payload was sent by RDMA write. The payload counts as present only if that
// write arrived directly before the header.
wire::RxDatagram VerbsDatapath::written(VerbsPort* port, const ibv_wc& done, const std::uint8_t* header) noexcept {
  wire::RxDatagram datagram;
  datagram.header = header;
  datagram.header_bytes = done.byte_len;
  const auto pair = port->landed.find(done.qp_num);
  if (pair != port->landed.end() && pair->second.fresh && pair->second.immediate == ntohl(done.imm_data)) {
    pair->second.fresh = false;
    datagram.body = wire::RxDatagram::Body::written;
    datagram.payload_bytes = pair->second.bytes;
  } else {
    datagram.body = wire::RxDatagram::Body::missing;
    datagram.payload_bytes = wire::claimed_body_bytes(header, done.byte_len);
  }
  return datagram;
}

std::size_t VerbsDatapath::poll_control(VerbsPort* port, RxSink* sink) {
  ibv_wc done[kRxBatch];
  std::uint32_t slots[kRxBatch];
  const int got = poll(port->control_cq, &port->kept_control, done);
  std::size_t used = 0, seen = 0;
  for (int i = 0; i < got; ++i) {
    // A failed completion has no valid field but wr_id.
    const bool arrived = done[i].status == IBV_WC_SUCCESS;
    if (done[i].wr_id >= port->control_slots.count() ||
        (arrived && done[i].byte_len > port->control_slots.slot_bytes())) {
      ++counters_->foreign_completions;
      continue;
    }
    const auto slot = static_cast<std::uint32_t>(done[i].wr_id);
    slots[used++] = slot;
    if (!arrived || done[i].byte_len <= kGrhBytes) continue;
    const std::uint8_t* at = port->control_slots.at(slot) + kGrhBytes;
    const std::size_t bytes = done[i].byte_len - kGrhBytes;
    if (on_reestablish_packet(at, bytes)) continue;
    pass(wire::datagram_at(at, bytes, false), sink);
    ++seen;
  }
  if (used != 0) port->repost_control(slots, used);
  return seen;
}

std::size_t VerbsDatapath::poll_data(VerbsPort* port, RxSink* sink) {
  ibv_wc done[kRxBatch];
  std::uint32_t slots[kRxBatch];
  const std::uint32_t before = options_.mode == VerbsMode::ud ? kGrhBytes : 0;
  const int got = poll(port->data_cq, &port->kept_data, done);
  std::size_t used = 0, seen = 0;
  for (int i = 0; i < got; ++i) {
    const bool arrived = done[i].status == IBV_WC_SUCCESS;
    const bool is_write = arrived && done[i].opcode == IBV_WC_RECV_RDMA_WITH_IMM;
    if (done[i].wr_id >= port->data_slots.count() ||
        (arrived && !is_write && done[i].byte_len > port->data_slots.slot_bytes())) {
      ++counters_->foreign_completions;
      continue;
    }
    const auto slot = static_cast<std::uint32_t>(done[i].wr_id);
    slots[used++] = slot;
    if (is_write) {
      on_write(port, done[i]);
      continue;
    }
    if (!arrived || done[i].byte_len <= before) continue;
    const std::uint8_t* const at = port->data_slots.at(slot) + before;
    const bool by_write = (done[i].wc_flags & IBV_WC_WITH_IMM) != 0;
    pass(by_write && before == 0 ? written(port, done[i], at) : wire::datagram_at(at, done[i].byte_len - before, false),
         sink);
    ++seen;
  }
  if (used != 0) port->repost_data(slots, used);
  return seen;
}

}  // namespace weft::datapath
