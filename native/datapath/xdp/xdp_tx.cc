// Sends bursts: writes a frame for each datagram into free chunks, queues them, and wakes the kernel once for each
// socket. Bursts whose next hop is unknown are left to the UDP sockets, for which the kernel finds it out.
#include <time.h>

#include <algorithm>

#include "native/datapath/clock.h"
#include "native/datapath/xdp/xdp_datapath.h"

namespace weft::datapath {
namespace {

constexpr std::int64_t kRoomWaitNs = 1'000'000, kRoomPauseNs = 50'000;

void pause(std::int64_t ns) noexcept {
  const timespec time{0, ns};
  ::nanosleep(&time, nullptr);
}

}  // namespace

static_assert(wire::kDataBytes % 2 == 0, "the checksum of a payload begins at a whole word");

// The burst's path, if its datagrams can leave past the kernel.
XdpDatapath::Path* XdpDatapath::sendable(const wire::TxBurst& burst) noexcept {
  if (burst.peer >= paths_.size() || burst.path >= paths_[burst.peer].size()) return nullptr;
  Path& path = paths_[burst.peer][burst.path];
  if (path.queue == nullptr) return nullptr;
  Neighbour& neighbour = neighbours_[path.neighbour];
  if (!neighbour.hop.known || neighbour.ask) {
    neighbour.ask = false;
    return nullptr;
  }
  if (path.version != neighbour.version) {
    path.headers.set_macs(neighbour.hop.from, neighbour.hop.to);
    path.version = neighbour.version;
  }
  return &path;
}

void XdpDatapath::tx_burst(wire::TxBurst* const* bursts, std::size_t count) {
  follow_changes(now_ns());
  kernel_bursts_.clear();
  for (std::size_t i = 0; i < count; ++i) {
    if (Path* const path = sendable(*bursts[i])) {
      send(path, *bursts[i]);
    } else {
      kernel_bursts_.push_back(bursts[i]);
    }
  }
  for (const auto& queue : queues_) {
    if (queue->unsent != 0) flush(queue.get());
  }
  if (!kernel_bursts_.empty()) udp_.tx_burst(kernel_bursts_.data(), kernel_bursts_.size());
}

void XdpDatapath::send(Path* path, const wire::TxBurst& burst) {
  Queue* const queue = path->queue;
  for (std::size_t i = 0; i < burst.count; ++i) {
    const std::size_t bytes = path->headers.bytes() + burst.header_bytes + burst.payload[i].bytes;
    const auto chunks = static_cast<std::uint32_t>((bytes + xdp::kChunkBytes - 1) / xdp::kChunkBytes);
    const bool has_room = umem_.free_chunks() >= chunks && queue->socket.tx.has_room(chunks);
    if (!has_room && !make_room(queue, chunks)) {
      counters_->host_drops += static_cast<std::int64_t>(burst.count - i);
      return;
    }
    put_frame(*path, burst, i);
    ++queue->unsent;
  }
}

void XdpDatapath::put_frame(const Path& path, const wire::TxBurst& burst, std::size_t index) noexcept {
  xdp::Ring<xdp::Descriptor>& ring = path.queue->socket.tx;
  const wire::Payload& payload = burst.payload[index];
  const std::size_t datagram_bytes = burst.header_bytes + payload.bytes;
  std::uint64_t chunk = umem_.take();
  std::uint8_t* const first = umem_.at(chunk);
  path.headers.write(datagram_bytes, first);
  std::size_t at = path.headers.bytes();
  std::uint64_t sum = xdp::copy_and_sum(first + at, burst.header(index), burst.header_bytes);
  at += burst.header_bytes;
  for (std::size_t done = 0; done < payload.bytes;) {
    if (at == xdp::kChunkBytes) {
      ring.next() = {chunk, static_cast<std::uint32_t>(at), xdp::kContinues};
      chunk = umem_.take();
      at = 0;
    }
    const std::size_t bytes = std::min(xdp::kChunkBytes - at, payload.bytes - done);
    sum += xdp::copy_and_sum(umem_.at(chunk) + at, payload.data + done, bytes);
    done += bytes;
    at += bytes;
  }
  ring.next() = {chunk, static_cast<std::uint32_t>(at), 0};
  path.headers.write_checksum(datagram_bytes, sum, first);
}

// Waits up to a millisecond until packets have left and their chunks are free again.
bool XdpDatapath::make_room(Queue* queue, std::uint32_t chunks) noexcept {
  const std::int64_t end_ns = now_ns() + kRoomWaitNs;
  for (bool first = true;; first = false) {
    for (const auto& each : queues_) each->socket.reap();
    if (umem_.free_chunks() >= chunks && queue->socket.tx.has_room(chunks)) return true;
    for (const auto& each : queues_) {
      if (each->unsent != 0 || !first) flush(each.get());
    }
    if (!first && now_ns() >= end_ns) return false;
    if (!first) pause(kRoomPauseNs);
  }
}

// Lets the kernel send what is queued.
void XdpDatapath::flush(Queue* queue) noexcept {
  queue->socket.tx.publish();
  counters_->calls += queue->socket.kick();
  if (queue->unsent == 0) return;
  counters_->datagrams_sent += queue->unsent;
  counters_->bypass_sent += queue->unsent;
  counters_->batch_datagrams.record(queue->unsent);
  queue->unsent = 0;
}

}  // namespace weft::datapath
