// Sends a burst as one chain of work requests with one doorbell; only the last request is signalled. A program may
// reuse a message's memory once the message is acknowledged, even if it was sent without a copy: if a work request
// reads the memory later, the receiver drops those bytes, as a duplicate or because the memory window is closed.
#include <arpa/inet.h>

#include <cstring>

#include "native/datapath/clock.h"
#include "native/datapath/verbs/verbs_datapath.h"

namespace weft::datapath {
namespace {

constexpr int kReapBatch = 16;
// How long to wait for room in a full queue pair, which drains at the speed of its port. A longer wait would delay
// other paths.
constexpr std::int64_t kFullNsMax = 200'000;
constexpr std::size_t kTypeOffset = 3;  // byte offset of the packet type in every packet (docs/PROTOCOL.md)

// Whether a packet must be sent on its path's queue pair, which holds for data and probes. Other packets use the
// control queue pair, so that they do not queue behind data.
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
             send({control.port, &control.port->control, control.address, control.remote_number, nullptr}, burst);
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
  if (send({path.port, path.pair, path.address, path.remote.number, &path}, burst)) return true;
  return false;
}

SendRecord* VerbsDatapath::take_record(VerbsPort* port, QueuePair* pair, std::size_t requests, std::size_t slots) {
  if (!records_.has_room(*port, *pair, requests, slots)) reap(port);
  // Reads the clock only if it has to wait, because reading it for every burst would be measurable.
  for (std::int64_t until_ns = 0; !records_.has_room(*port, *pair, requests, slots); reap(port)) {
    const std::int64_t now = now_ns();
    if (until_ns == 0) until_ns = now + kFullNsMax;
    if (now > until_ns) return nullptr;
  }
  return records_.take(port, pair, requests, slots);
}

bool VerbsDatapath::is_written(const Destination& destination, const wire::Payload& payload) const noexcept {
  return options_.direct && options_.mode != VerbsMode::ud && destination.path != nullptr && payload.remote_key != 0;
}

// Appends the requests of a burst. Registered payload is sent in place; other payload is copied behind its header.
// Returns false if payload is in GPU memory that this port's NIC has not registered: no CPU can copy it, so another
// path must send it.
bool VerbsDatapath::append_segments(const Destination& destination, const wire::TxBurst& burst, SendRecord* record,
                                    WorkRequests* requests) {
  const SlotArray& slots = destination.port->send_slots;
  std::uint32_t memory = 0;
  ibv_mr* region = nullptr;
  for (std::size_t i = 0; i < burst.count; ++i) {
    const wire::Payload& payload = burst.payload[i];
    if (payload.memory != memory) {
      region = region_or_null(memory = payload.memory, destination.port);
      if (region != nullptr) record->reads_from(memory);
    }
    std::uint8_t* const slot = slots.at(record->slots[i]);
    std::memcpy(slot, burst.header(i), burst.header_bytes);
    ibv_sge header{reinterpret_cast<std::uintptr_t>(slot), burst.header_bytes, slots.key()};
    ibv_sge body{reinterpret_cast<std::uintptr_t>(payload.data), payload.bytes, 0};
    if (region != nullptr) {
      body.lkey = region->lkey;
    } else if (payload.bytes != 0) {
      if (lies_on_device(payload.memory)) return false;
      body = {header.addr + burst.header_bytes, payload.bytes, slots.key()};
      std::memcpy(slot + burst.header_bytes, payload.data, payload.bytes);
      counters_->payload_copied_bytes += payload.bytes;
    }
    if (is_written(destination, payload)) {
      const std::uint32_t immediate = htonl(immediate_of(destination.path->generation, destination.path->writes++));
      ibv_send_wr& write = requests->append(IBV_WR_RDMA_WRITE_WITH_IMM, body);
      write.imm_data = immediate;
      write.wr.rdma.remote_addr = payload.remote_address;
      write.wr.rdma.rkey = payload.remote_key;
      requests->append(IBV_WR_SEND_WITH_IMM, header).imm_data = immediate;
      counters_->payload_written_bytes += payload.bytes;
    } else if (region != nullptr && payload.bytes != 0) {
      requests->append(IBV_WR_SEND, header);
      requests->append_piece(body);
    } else {
      header.length += payload.bytes;
      requests->append(IBV_WR_SEND, header);
    }
  }
  return true;
}

bool VerbsDatapath::send(const Destination& destination, const wire::TxBurst& burst) {
  const std::uint32_t first_bytes = burst.header_bytes + burst.payload[0].bytes;
  const bool in_line =
      burst.count == 1 && burst.payload[0].bytes == 0 && first_bytes <= destination.pair->inline_bytes_max();
  std::size_t count = burst.count;
  for (std::size_t i = 0; i < burst.count; ++i) count += is_written(destination, burst.payload[i]) ? 1 : 0;
  SendRecord* record = take_record(destination.port, destination.pair, count, in_line ? 0 : burst.count);
  if (record == nullptr) return false;
  record->peer = burst.peer;
  record->path = burst.path;
  WorkRequests requests(records_.id_of(*record), destination.address, destination.remote_number, kQkey);
  if (in_line) {
    const auto header = reinterpret_cast<std::uintptr_t>(burst.header(0));
    requests.append(IBV_WR_SEND, {header, first_bytes, 0}).send_flags = IBV_SEND_INLINE;
  } else if (!append_segments(destination, burst, record, &requests)) {
    records_.give_back(record);
    if (destination.path != nullptr) on_broken(burst.peer, burst.path);
    return false;
  }
  ++counters_->calls;
  if (requests.post(destination.pair->get())) {
    counters_->batch_datagrams.record(static_cast<std::int64_t>(burst.count));
    return true;
  }
  if (destination.path == nullptr) {
    records_.give_back(record);
    destination.port->down = true;
    return false;
  }
  // Requests of the chain before the one that failed are in progress and use the record's slots. None of them is
  // signalled, so only a reset of the queue pair shows that they have ended.
  if (destination.port->reset_pair(destination.pair)) records_.give_back_of(destination.pair);
  on_broken(burst.peer, burst.path);
  return false;
}

void VerbsDatapath::reap(VerbsPort* port) {
  ibv_wc done[kReapBatch];
  for (int got = kReapBatch; got == kReapBatch;) {
    got = ibv_poll_cq(port->send_cq, kReapBatch, done);
    for (int i = 0; i < got; ++i) {
      bool foreign = false;
      // The requests of a flushed chain complete one by one with the same id; the first completion has released the
      // record.
      SendRecord* const record = records_.completed(done[i].wr_id, &foreign);
      if (foreign) ++counters_->foreign_completions;
      if (record == nullptr) continue;
      const bool on_path = record->pair != &port->control;
      const std::uint32_t peer = record->peer;
      const std::uint8_t path = record->path;
      records_.give_back(record);
      if (done[i].status == IBV_WC_SUCCESS) continue;
      if (on_path) {
        on_broken(peer, path);
      } else {
        port->down = true;  // a port that cannot send acknowledgments is useless; other ports may work
      }
    }
  }
}

}  // namespace weft::datapath
