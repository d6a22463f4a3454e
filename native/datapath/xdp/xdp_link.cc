// Opens an interface's program and sockets when a link first needs them, and keeps the paths' headers up to date.
#include <net/if.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "native/datapath/clock.h"
#include "native/datapath/xdp/xdp_datapath.h"

namespace weft::datapath {
namespace {

constexpr std::size_t kJoinedBytes = 66'000;  // of the longest packet
constexpr std::int64_t kFollowNs = 10'000'000, kAllNs = 5'000'000'000;
constexpr int kLookUpsMax = 16;  // per kFollowNs, each of about 10 us

std::string ip_key(const SocketAddress& address) {
  const xdp::PortKey key = xdp::port_key(address);
  return {reinterpret_cast<const char*>(key.address), sizeof key.address};
}

}  // namespace

bool XdpDatapath::open_link(const LinkPlan& plan, std::string* params, std::string* error) {
  if (!udp_.open_link(plan, params, error)) return false;
  for (const Place& place : *plan.places) {
    if (place.port != kXdpPlace || interfaces_.count(place.interface_index) != 0) continue;
    char name[IF_NAMESIZE] = "?";
    ::if_indextoname(place.interface_index, name);
    open_interface(place.interface_index, name);
  }
  steer_ports();
  return true;
}

void XdpDatapath::open_interface(unsigned index, const std::string& name) {
  Interface& interface = interfaces_[index];
  const std::uint32_t queues = std::min(xdp::queue_count(index), xdp::kQueuesMax);
  std::string error;
  if (options_.engine >= queues) {
    note(name + " has " + std::to_string(queues) + (queues == 1 ? " queue" : " queues") + " for " +
         std::to_string(options_.engines) +
         " engines, so this engine uses UDP sockets only: set WEFT_ENGINES=" + std::to_string(queues));
    return;
  }
  std::shared_ptr<xdp::Steering> steering = xdp::Steering::of(index, &error);
  if (steering && !steering->take_row(&interface.row)) {
    steering.reset();
    error = "too many engines of this process use it";
  }
  if (!steering) {
    note("UDP sockets are used instead of AF_XDP on " + name + ": " + error);
    return;
  }
  interface.steering = std::move(steering);
  for (std::uint32_t queue = options_.engine; queue < queues; queue += options_.engines) {
    if (queues_.size() >= options_.queues) break;  // the NIC has more queues now than there is memory for
    if (open_queue(index, queue, &interface, &error)) continue;
    note("UDP sockets are used instead of AF_XDP on queue " + std::to_string(queue) + " of " + name + ": " + error);
    break;
  }
  if (!interface.queues.empty()) return;
  interface.steering->give_back(interface.row);
  interface.steering.reset();
}

bool XdpDatapath::open_queue(unsigned interface_index, std::uint32_t queue, Interface* out, std::string* error) {
  auto made = std::make_unique<Queue>();
  xdp::SocketPlan plan;
  plan.interface_index = interface_index;
  plan.queue = queue;
  plan.rx_chunks = rx_chunks_;
  plan.segments = options_.segment_bytes + xdp::kHeadersBytesMax > xdp::kChunkBytes - xdp::kHeadroomBytes;
  plan.shared_with = queues_.empty() ? -1 : queues_.front()->socket.descriptor();
  if (plan.segments) made->joined.resize(kJoinedBytes);
  if (!made->socket.open(plan, &umem_, error)) return false;
  if (!out->steering->add_socket(out->row, queue, made->socket.descriptor()) ||
      !udp_.watch(made->socket.descriptor())) {
    *error = std::string("cannot watch an AF_XDP socket: ") + std::strerror(errno);
    return false;
  }
  out->queues.push_back(made.get());
  queues_.push_back(std::move(made));
  return true;
}

// Tells the programs of the ports that have been opened since the last call.
void XdpDatapath::steer_ports() {
  next_port_.resize(udp_.port_count());
  for (; steered_ < udp_.port_count(); ++steered_) {
    const SocketAddress& address = udp_.port_address(steered_);
    const auto found = interfaces_.find(udp_.port_interface(steered_));
    if (found == interfaces_.end() || !found->second.steering) continue;
    next_port_[steered_] = std::exchange(first_port_[address.port()], static_cast<std::uint32_t>(steered_) + 1);
    if (!found->second.steering->add_port(address, found->second.row)) {
      note(std::string("datagrams to a port pass through the kernel, as the map of ports is full: ") +
           std::strerror(errno));
    }
  }
}

bool XdpDatapath::connect_link(std::uint32_t peer, const RemoteEnds& theirs, std::uint16_t* path_count,
                               std::string* error) {
  if (!udp_.connect_link(peer, theirs, path_count, error)) return false;
  const int traffic_class = options_.udp.dscp << 2 | (options_.udp.ecn ? 2 : 0);
  forget_paths(peer);
  if (paths_.size() <= peer) paths_.resize(peer + 1);
  std::vector<Path>& paths = paths_[peer];
  paths.resize(udp_.path_count(peer));
  for (std::size_t i = 0; i < paths.size(); ++i) {
    const std::uint32_t port = udp_.path_port(peer, i);
    const auto found = interfaces_.find(udp_.port_interface(port));
    if (found == interfaces_.end() || found->second.queues.empty()) continue;
    const SocketAddress &from = udp_.port_address(port), &to = udp_.path_target(peer, i);
    Path& path = paths[i];
    path.headers.set(from, to, static_cast<std::uint8_t>(traffic_class));
    path.neighbour = neighbour_of(found->first, from, to);
    path.version = neighbours_[path.neighbour].version - 1;
    path.queue = found->second.queues[i % found->second.queues.size()];
  }
  return true;
}

void XdpDatapath::close_link(std::uint32_t peer) noexcept {
  udp_.close_link(peer);
  forget_paths(peer);
}

void XdpDatapath::forget_paths(std::uint32_t peer) noexcept {
  if (peer >= paths_.size()) return;
  for (const Path& path : paths_[peer]) {
    if (path.queue != nullptr) --neighbours_[path.neighbour].users;
  }
  paths_[peer].clear();
}

std::uint32_t XdpDatapath::neighbour_of(unsigned interface_index, const SocketAddress& from, const SocketAddress& to) {
  const auto next = static_cast<std::uint32_t>(neighbours_.size());
  const auto [at, is_new] = neighbour_index_.try_emplace({interface_index, ip_key(from), ip_key(to)}, next);
  if (is_new) neighbours_.push_back({from, to, interface_index, 0, {}, 0, false});
  Neighbour& neighbour = neighbours_[at->second];
  if (neighbour.users++ == 0) look_up(&neighbour);
  return at->second;
}

void XdpDatapath::look_up(Neighbour* neighbour) {
  neighbour->hop = netlink_.next_hop(neighbour->from, neighbour->to, neighbour->interface_index);
  neighbour->ask = neighbour->hop.known && !neighbour->hop.confirmed;
  ++neighbour->version;
}

void XdpDatapath::follow_changes(std::int64_t now_ns) {
  if (now_ns < follow_due_ns_) return;
  follow_due_ns_ = now_ns + kFollowNs;
  const bool all_due = now_ns >= all_due_ns_;
  if (netlink_.changed() || all_due) stale_ = neighbours_.size();
  if (all_due) {
    all_due_ns_ = now_ns + kAllNs;
    for (const auto& queue : queues_) counters_->host_drops += queue->socket.take_drops();
  }
  for (int done = 0; stale_ > 0 && done < kLookUpsMax; ++done) {
    --stale_;
    if (neighbours_[stale_].users > 0) look_up(&neighbours_[stale_]);
  }
}

}  // namespace weft::datapath
