// Sends a burst as one chain of work requests with one doorbell; only the last is signalled. Payload may be reused once
// its message is acknowledged, even if it was sent without a copy: what a late request reads after that is dropped by
// the receiver, as a duplicate or because the window is closed.
#include <arpa/inet.h>

#include <algorithm>
#include <cstring>

#include "native/datapath/verbs/verbs_clock.h"
#include "native/datapath/verbs/verbs_datapath.h"

namespace weft::datapath {
namespace {

constexpr int kReapBatch = 16;
// How long to wait for a full queue pair, which drains at the speed of its port; waiting longer would hold up other
// paths.
constexpr std::int64_t kFullNsMax = 200'000;
constexpr std::size_t kTypeOffset = 3;  // offset of the field in every packet (docs/PROTOCOL.md)

// Whether the packet must be sent on its path's queue pair: data and probes. Others use the control queue pair, where
// nothing is queued before them.
bool takes_its_path(const wire::TxBurst& burst) noexcept {
  const auto type = static_cast<wire::Type>(burst.headers[kTypeOffset]);
  return type == wire::Type::data || type == wire::Type::probe || type == wire::Type::probe_reply;
}

double uniform(std::uint64_t* state) noexcept {
  *state ^= *state << 13;
  *state ^= *state >> 7;
  *state ^= *state << 17;
  return static_cast<double>(*state >> 11) * 0x1.0p-53;
}

}  // namespace

void VerbsDatapath::tx_burst(wire::TxBurst* const* bursts, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    const wire::TxBurst& burst = *bursts[i];
    Link* to = link(burst.peer);
    if (to == nullptr || to->controls.empty() || burst.path >= to->paths.size()) continue;
    bool sent = false;
    const Control& control = to->controls[burst.path % to->controls.size()];
    // On Ethernet with an MTU of 1,500 a UD message is at most 1,024 bytes. Longer acknowledgments go over the path's
    // queue pair, which splits messages into packets.
    const bool fits = burst.header_bytes <= control.port->datagram_bytes_max;
    if (takes_its_path(burst) || (!fits && options_.mode != VerbsMode::ud)) {
      sent = send_on_path(to, burst);
    } else {
      sent = fits && !control.port->down &&
             send({control.port, &control.port->control, control.address, control.far_number, nullptr}, burst);
    }
    (sent ? counters_->datagrams_sent : counters_->host_drops) += burst.count;
  }
}

bool VerbsDatapath::send_on_path(Link* to, const wire::TxBurst& burst) {
  Path& path = to->paths[burst.path];
  if (path.broken || path.port->down) return false;
  if (options_.fault_qp_error > 0 && uniform(&random_) < options_.fault_qp_error) {
    static_cast<void>(path.pair->to_error());
  }
  if (send({path.port, path.pair, path.address, path.far.number, &path}, burst)) return true;
  return false;
}

VerbsDatapath::Record* VerbsDatapath::take_record(VerbsPort* port, QueuePair* pair, std::size_t requests,
                                                  std::size_t slots) {
  const auto short_of_something = [&] {
    return free_records_.empty() || port->free_sends.size() < slots ||
           pair->sends_under_way + requests > pair->sends_max();
  };
  if (short_of_something()) reap(port);
  // Reads the clock only if it has to wait, as reading it for every burst would add measurable cost per segment.
  for (std::int64_t until_ns = 0; short_of_something(); reap(port)) {
    const std::int64_t now = now_ns();
    if (until_ns == 0) until_ns = now + kFullNsMax;
    if (now > until_ns) return nullptr;
  }
  Record& record = records_[free_records_.back()];
  free_records_.pop_back();
  record.pair = pair;
  record.port = port;
  record.memory = 0;
  record.requests = static_cast<std::uint16_t>(requests);
  record.slot_count = static_cast<std::uint16_t>(slots);
  for (std::size_t i = 0; i < slots; ++i) {
    record.slots[i] = port->free_sends.back();
    port->free_sends.pop_back();
  }
  pair->sends_under_way += record.requests;
  return &record;
}

void VerbsDatapath::give_back(Record* record) noexcept {
  record->pair->sends_under_way -= record->requests;
  for (std::size_t i = 0; i < record->slot_count; ++i) record->port->free_sends.push_back(record->slots[i]);
  record->pair = nullptr;
  ++record->generation;
  free_records_.push_back(static_cast<std::uint32_t>(record - records_.data()));
}

void VerbsDatapath::give_back_of(const QueuePair* pair) noexcept {
  for (std::size_t i = 0; i < records_.size() && pair->sends_under_way != 0; ++i) {
    if (records_[i].pair == pair) give_back(&records_[i]);
  }
}

// Sends registered payload in place; other payload is copied behind its header.
bool VerbsDatapath::send(const Way& way, const wire::TxBurst& burst) {
  VerbsPort* const port = way.port;
  const std::uint32_t first_bytes = burst.header_bytes + burst.payload[0].bytes;
  const bool in_line = burst.count == 1 && burst.payload[0].bytes == 0 && first_bytes <= way.pair->inline_bytes_max();
  const bool may_write = options_.direct && options_.mode != VerbsMode::ud && way.path != nullptr;
  const auto is_written = [&](const wire::Payload& payload) { return may_write && payload.remote_key != 0; };
  std::size_t count = burst.count;
  for (std::size_t i = 0; may_write && i < burst.count; ++i) count += is_written(burst.payload[i]) ? 1 : 0;
  Record* record = take_record(port, way.pair, count, in_line ? 0 : burst.count);
  if (record == nullptr) return false;
  record->peer = burst.peer;
  record->path = burst.path;
  ibv_send_wr requests[2 * wire::kMaxBurstSegments];
  ibv_sge pieces[2 * wire::kMaxBurstSegments];
  const auto index = static_cast<std::uint64_t>(record - records_.data());
  std::size_t used = 0, piece = 0;
  const auto next_request = [&](ibv_wr_opcode opcode) -> ibv_send_wr& {
    ibv_send_wr& request = requests[used++];
    request = {};
    request.wr_id = std::uint64_t{record->generation} << 32 | index;
    request.opcode = opcode;
    request.sg_list = &pieces[piece];
    request.num_sge = 1;
    request.next = used < count ? &request + 1 : nullptr;
    if (way.address != nullptr) {
      request.wr.ud.ah = way.address;
      request.wr.ud.remote_qpn = way.far_number;
      request.wr.ud.remote_qkey = kQkey;
    }
    return request;
  };
  std::uint32_t memory = 0;
  ibv_mr* region = nullptr;
  for (std::size_t i = 0; i < burst.count; ++i) {
    const wire::Payload& payload = burst.payload[i];
    if (in_line) {
      next_request(IBV_WR_SEND).send_flags = IBV_SEND_INLINE;
      pieces[piece++] = {reinterpret_cast<std::uintptr_t>(burst.header(0)), first_bytes, 0};
      continue;
    }
    if (payload.memory != memory) {
      region = region_or_null(memory = payload.memory, port);
      if (region != nullptr) record->memory = record->memory == 0 ? memory : kSeveral;
    }
    std::uint8_t* const slot = port->send_slots.at(record->slots[i]);
    std::memcpy(slot, burst.header(i), burst.header_bytes);
    ibv_sge body{reinterpret_cast<std::uintptr_t>(payload.data), payload.bytes, 0};
    if (region != nullptr) {
      body.lkey = region->lkey;
    } else if (payload.bytes != 0 && lies_on_device(payload.memory)) {
      // This port's NIC has not registered the memory and no CPU can copy it, so the bytes must take another path.
      give_back(record);
      if (way.path != nullptr) on_broken(burst.peer, burst.path);
      return false;
    } else if (payload.bytes != 0) {
      std::uint8_t* const copy = slot + burst.header_bytes;
      std::memcpy(copy, payload.data, payload.bytes);
      counters_->payload_copied_bytes += payload.bytes;
      body = {reinterpret_cast<std::uintptr_t>(copy), payload.bytes, port->send_slots.key()};
    }
    const ibv_sge header{reinterpret_cast<std::uintptr_t>(slot), burst.header_bytes, port->send_slots.key()};
    if (is_written(payload)) {
      const std::uint32_t immediate = htonl(immediate_of(way.path->generation, way.path->writes++));
      ibv_send_wr& write = next_request(IBV_WR_RDMA_WRITE_WITH_IMM);
      write.imm_data = immediate;
      write.wr.rdma.remote_addr = payload.remote_address;
      write.wr.rdma.rkey = payload.remote_key;
      pieces[piece++] = body;
      next_request(IBV_WR_SEND_WITH_IMM).imm_data = immediate;
      pieces[piece++] = header;
      counters_->payload_written_bytes += payload.bytes;
    } else if (region != nullptr && payload.bytes != 0) {
      next_request(IBV_WR_SEND).num_sge = 2;
      pieces[piece++] = header;
      pieces[piece++] = body;
    } else {
      next_request(IBV_WR_SEND);
      pieces[piece++] = {header.addr, burst.header_bytes + payload.bytes, header.lkey};
    }
  }
  requests[used - 1].send_flags |= IBV_SEND_SIGNALED;
  ibv_send_wr* bad = nullptr;
  ++counters_->calls;
  if (ibv_post_send(way.pair->get(), requests, &bad) == 0) return true;
  // Requests before the bad one are in progress without a signal, and use the record's slots until the queue pair is
  // reset.
  if (way.path == nullptr) {
    give_back(record);
    port->down = true;
    return false;
  }
  if (port->reset_pair(way.pair)) give_back_of(way.pair);
  on_broken(burst.peer, burst.path);
  return false;
}

void VerbsDatapath::reap(VerbsPort* port) {
  ibv_wc done[kReapBatch];
  for (int got = kReapBatch; got == kReapBatch;) {
    got = ibv_poll_cq(port->send_cq, kReapBatch, done);
    for (int i = 0; i < got; ++i) {
      const std::uint64_t index = done[i].wr_id & 0xFFFF'FFFF;
      if (index >= records_.size()) {
        ++counters_->foreign_completions;
        continue;
      }
      Record& record = records_[index];
      // Flushed requests of a chain complete separately with the same id; the first has released the record.
      if (record.pair == nullptr || record.generation != done[i].wr_id >> 32) continue;
      const bool on_path = record.pair != &port->control;
      const std::uint32_t peer = record.peer;
      const std::uint8_t path = record.path;
      give_back(&record);
      if (done[i].status == IBV_WC_SUCCESS) continue;
      if (on_path) {
        on_broken(peer, path);
      } else {
        port->down = true;  // without acknowledgments the port is useless; others may work
      }
    }
  }
}

}  // namespace weft::datapath
