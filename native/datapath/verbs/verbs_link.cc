// Sets up links: creates queue pairs, describes them for the handshake, and connects them to the queue pairs that the
// peer describes. All lengths in the peer's description are checked; a wrong queue pair number only disables that path.
#include <sys/epoll.h>
#include <sys/random.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "native/datapath/verbs/verbs_datapath.h"

namespace weft::datapath {
namespace {

constexpr std::size_t kWordsPathsMax = 256, kPlacesMax = 16;
constexpr std::uint8_t kWordsVersion = 1;

// What one end tells the other about its queue pairs in the handshake.
struct LinkParams {
  VerbsMode mode = VerbsMode::uc;
  std::uint32_t mtu_bytes = 0;
  std::uint64_t token = 0;  // authenticates requests to this end to re-establish a path of this link
  struct Port {
    ibv_gid gid{};
    std::uint16_t lid = 0;
    std::uint32_t control = 0;
  };
  std::vector<Port> ports;
  std::vector<std::uint32_t> numbers;  // queue pair number of each path
};

template <class T>
void put(std::string* out, T value) {
  out->append(reinterpret_cast<const char*>(&value), sizeof value);
}

template <class T>
bool get(const std::string& params, std::size_t* at, T* out) {
  if (params.size() - *at < sizeof *out) return false;
  std::memcpy(out, params.data() + *at, sizeof *out);
  *at += sizeof *out;
  return true;
}

std::string encode(char kind, const LinkParams& params) {
  std::string out(1, kind);
  put(&out, kWordsVersion);
  put(&out, static_cast<std::uint8_t>(params.mode));
  put(&out, params.mtu_bytes);
  put(&out, params.token);
  put(&out, static_cast<std::uint16_t>(params.ports.size()));
  for (const LinkParams::Port& port : params.ports) {
    put(&out, port.gid);
    put(&out, port.lid);
    put(&out, port.control);
  }
  put(&out, static_cast<std::uint16_t>(params.numbers.size()));
  for (const std::uint32_t number : params.numbers) put(&out, number);
  return out;
}

bool decode(const std::string& text, LinkParams* out) {
  std::size_t at = 1;
  std::uint8_t version = 0, mode = 0;
  std::uint16_t count = 0;
  if (!get(text, &at, &version) || version != kWordsVersion || !get(text, &at, &mode) || mode > 2) return false;
  out->mode = static_cast<VerbsMode>(mode);
  if (!get(text, &at, &out->mtu_bytes) || !get(text, &at, &out->token) || !get(text, &at, &count)) return false;
  if (count == 0 || count > kPlacesMax || out->mtu_bytes < 256 || out->mtu_bytes > 4096) return false;
  out->ports.resize(count);
  for (LinkParams::Port& port : out->ports) {
    if (!get(text, &at, &port.gid) || !get(text, &at, &port.lid) || !get(text, &at, &port.control)) return false;
  }
  if (!get(text, &at, &count) || count == 0 || count > kWordsPathsMax) return false;
  out->numbers.resize(count);
  for (std::uint32_t& number : out->numbers) {
    if (!get(text, &at, &number) || number > kPsnMask) return false;
  }
  return at == text.size();
}

std::uint64_t random_token() {
  std::uint64_t token = 0;
  while (::getrandom(&token, sizeof token, 0) != sizeof token) {
  }
  return token;
}

}  // namespace

VerbsPort* VerbsDatapath::port_of(const Place& place, std::string* error) {
  for (const auto& port : ports_) {
    if (port->place.port == place.port) return port.get();
  }
  auto port = std::make_unique<VerbsPort>();
  if (!port->open(ibv_, place, options_, error)) return nullptr;
  if (!watch(port->channel->fd) || !watch(port->context->async_fd)) {
    *error = "cannot watch RDMA port " + place.port + " with epoll: " + std::strerror(errno);
    return nullptr;
  }
  port->index = static_cast<std::uint32_t>(ports_.size());
  // Registers the existing memory with the new port now, not only when the port first sends from that memory.
  for (auto& [id, memory] : memories_) static_cast<void>(region_of(&memory, port.get(), nullptr));
  ports_.push_back(std::move(port));
  return ports_.back().get();
}

bool VerbsDatapath::make_paths(const LinkPlan& plan, Link* link, std::string* error) {
  std::deque<QueuePair>& shared = shared_[plan.device];
  link->paths.resize(plan.path_count);
  for (std::size_t i = 0; i < link->paths.size(); ++i) {
    Path& path = link->paths[i];
    path.port = link->ports[i % link->ports.size()];
    bool made = true;
    if (options_.mode != VerbsMode::ud) {
      made = path.port->make_data_qp(&path.own, error);
      path.pair = &path.own;
    } else {
      if (shared.size() == i) {
        QueuePair pair;
        made = path.port->make_data_qp(&pair, error) && pair.join(path.port->traits, {}, 0, error);
        if (made) shared.push_back(std::move(pair));
      }
      if (made) path.pair = &shared[i];
    }
    if (made && options_.direct) path.port->landed[path.pair->number()] = {};
    if (!made) {
      link->paths.resize(i);  // a link may have fewer paths than planned
      break;
    }
  }
  return !link->paths.empty();
}

bool VerbsDatapath::open_link(const LinkPlan& plan, std::string* params, std::string* error) {
  close_link(plan.peer);
  auto made = std::make_unique<Link>();
  made->device = plan.device;
  made->token = random_token();
  for (const Place& place : *plan.places) {
    VerbsPort* port = port_of(place, error);
    if (port == nullptr) return false;
    made->ports.push_back(port);
  }
  if (!make_paths(plan, made.get(), error)) return false;
  *params = params_of(*made);
  if (links_.size() <= plan.peer) {
    links_.resize(plan.peer + 1);
  }
  links_[plan.peer] = std::move(made);
  return true;
}

std::string VerbsDatapath::params_of(const Link& link) const {
  LinkParams params;
  params.mode = options_.mode;
  params.mtu_bytes = 4096;
  params.token = link.token;
  for (const VerbsPort* port : link.ports) {
    params.ports.push_back({port->gid, port->lid, port->control.number()});
    params.mtu_bytes = std::min(params.mtu_bytes, port->mtu_bytes);
  }
  for (const Path& path : link.paths) params.numbers.push_back(path.pair->number());
  return encode(kind(), params);
}

// Joins the path's queue pair with the peer's. It uses the MTU agreed with this peer, since a port serves several
// peers.
bool VerbsDatapath::join(Path* path, std::string* error) {
  QpTraits traits = path->port->traits;
  if (options_.mode != VerbsMode::ud) traits.mtu = path->mtu;
  return path->pair->join(traits, path->remote, path->generation << 16, error);
}

bool VerbsDatapath::join_path(Link* link, std::size_t index, std::string* error) {
  Path& path = link->paths[index];
  if (options_.mode != VerbsMode::ud) return join(&path, error);
  if (path.address == nullptr) path.address = path.port->make_address(path.remote);
  if (path.address == nullptr) {
    *error = std::string("cannot create an address handle (ibv_create_ah) for the peer: ") + std::strerror(errno) +
             "; check that this port reaches the peer's GID";
  }
  return path.address != nullptr;
}

bool VerbsDatapath::connect_link(std::uint32_t peer, const RemoteEnds& theirs, std::uint16_t* path_count,
                                 std::string* error) {
  Link* ours = link(peer);
  LinkParams params;
  if (ours == nullptr) {
    *error = "internal error: no link to this peer is open";
    return false;
  }
  if (theirs.params->empty() || theirs.params->front() != kind()) {
    *error = kind_mismatch();
    return false;
  }
  if (!decode(*theirs.params, &params)) {
    *error = "cannot parse the peer's description of its queue pairs: run the same version of weft at both ends";
    return false;
  }
  if (params.mode != options_.mode) {
    *error = std::string("this end uses ") + mode_name(options_.mode) + " queue pairs, the peer " +
             mode_name(params.mode) + ": give both the same WEFT_RDMA=mode";
    return false;
  }
  const std::size_t count = std::min(ours->paths.size(), params.numbers.size());
  ours->paths.resize(count);
  std::uint32_t mtu_bytes = params.mtu_bytes;
  for (const VerbsPort* port : ours->ports) mtu_bytes = std::min(mtu_bytes, port->mtu_bytes);
  for (std::size_t i = 0; i < count; ++i) {
    const LinkParams::Port& port = params.ports[i % params.ports.size()];
    Path& path = ours->paths[i];
    path.remote.number = params.numbers[i];
    path.remote.gid = port.gid;
    path.remote.lid = port.lid;
    // Each end picks its own UDP source ports, so the routes of the two directions may differ.
    if (options_.spread_source_ports) path.remote.flow_label = static_cast<std::uint32_t>((i + 1) * 0x9E3779B1u >> 12);
    path.mtu = mtu_of(std::min(mtu_bytes, path.port->mtu_bytes));
    if (!join_path(ours, i, error)) return false;
  }
  for (std::size_t i = 0; i < ours->ports.size(); ++i) {
    const LinkParams::Port& port = params.ports[i % params.ports.size()];
    RemoteQp remote;
    remote.gid = port.gid;
    remote.lid = port.lid;
    ibv_ah* address = ours->ports[i]->make_address(remote);
    if (address == nullptr) {
      *error = std::string("cannot create an address handle for the peer: ") + std::strerror(errno);
      return false;
    }
    ours->controls.push_back({ours->ports[i], address, port.control});
  }
  ours->remote_token = params.token;
  *path_count = static_cast<std::uint16_t>(count);
  return true;
}

void VerbsDatapath::close_link(std::uint32_t peer) noexcept {
  Link* gone = link(peer);
  if (gone == nullptr) return;
  for (Path& path : gone->paths) {
    if (path.own.get() != nullptr) path.port->forget_received(path.own.number());
    path.own.reset();
    records_.give_back_of(&path.own);  // its posted requests will never complete
    if (path.address != nullptr) static_cast<void>(ibv_->destroy_ah(path.address));
  }
  for (Control& control : gone->controls) static_cast<void>(ibv_->destroy_ah(control.address));
  links_[peer].reset();  // entries of reestablishments_ for this link are dropped when they are due
}

}  // namespace weft::datapath
