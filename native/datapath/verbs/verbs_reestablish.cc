// Re-establishes queue pairs in error state by resetting and joining them again. With UC and UD each end does
// so alone. The two ends of an RC queue pair must start at the same packet number, so one asks the other over the UD
// queue pair, authenticated by the token from the handshake. Meanwhile the path drops its bursts, which the loss and
// path policies see as a silent path.
#include <poll.h>

#include <algorithm>
#include <cstring>

#include "native/datapath/clock.h"
#include "native/datapath/verbs/verbs_datapath.h"

namespace weft::datapath {
namespace {

constexpr std::int64_t kFirstWaitNs = 1'000'000, kLastWaitNs = 1'000'000'000;
constexpr std::int64_t kDownWaitNs = 10'000'000;  // interval between checks whether a failed port is up again
constexpr std::uint8_t kAsk = 1, kAnswer = 2;
constexpr std::uint32_t kGenerationMax = 0xFF;  // 8 bits, as the first packet number (24 bits) is generation << 16

// The packet with which an end asks the other to re-establish a path, or confirms it; 24 bytes. Its magic differs from
// "WF", the magic of the core's packets.
struct ReestablishPacket {
  char magic[2];
  std::uint8_t kind;
  std::uint8_t path;
  std::uint32_t generation;
  std::uint64_t token;
  std::uint64_t check;  // hash of the fields above, so that damaged packets are ignored
};
static_assert(sizeof(ReestablishPacket) == 24);

std::uint64_t check_of(const ReestablishPacket& word) noexcept {
  std::uint64_t fields = 0;
  std::memcpy(&fields, &word, sizeof fields);
  return (fields ^ word.token) * 0x9E3779B97F4A7C15u;
}

}  // namespace

// Calls `change` for all paths that use a queue pair: in UD mode one path of every peer, otherwise a single path.
template <class Change>
void VerbsDatapath::change_paths_over(const QueuePair* pair, std::uint32_t peer, std::uint8_t index,
                                      const Change& change) {
  const bool shared = options_.mode == VerbsMode::ud;
  const std::size_t end = shared ? links_.size() : std::size_t{peer} + 1;
  for (std::uint32_t other = shared ? 0 : peer; other < end; ++other) {
    Link* each = link(other);
    if (each != nullptr && index < each->paths.size() && each->paths[index].pair == pair)
      change(other, &each->paths[index]);
  }
}

void VerbsDatapath::on_broken(std::uint32_t peer, std::uint8_t index) {
  const Link* broken = link(peer);
  if (broken == nullptr || index >= broken->paths.size()) return;
  const std::int64_t broken_ns = now_ns(), due_ns = broken_ns + kFirstWaitNs;
  reestablish_ns_ = std::min(reestablish_ns_, due_ns);
  change_paths_over(broken->paths[index].pair, peer, index, [&](std::uint32_t other, Path* path) {
    if (path->broken) return;
    path->broken = true;
    path->broken_ns = broken_ns;
    ++counters_->paths_broken;
    reestablishments_.push_back({other, index, due_ns, kFirstWaitNs});
  });
}

// Records that a path was re-established. In RC mode this may be at the peer's request only; this end then saw no
// outage.
void VerbsDatapath::on_reestablished(Path* path) {
  if (path->broken) counters_->reestablish_ns_max.raise(now_ns() - path->broken_ns);
  path->broken = false;
  ++counters_->paths_reestablished;
}

bool VerbsDatapath::rejoin(Path* path) {
  if (!path->port->reset_pair(path->pair)) return false;
  records_.give_back_of(path->pair);
  const auto landed = path->port->landed.find(path->pair->number());
  if (landed != path->port->landed.end()) landed->second.fresh = false;
  std::string unused;
  return join(path, &unused);
}

void VerbsDatapath::reestablish_due() {
  const std::int64_t now = now_ns();
  if (now < reestablish_ns_) return;
  reestablish_ns_ = INT64_MAX;
  for (std::size_t i = 0; i < reestablishments_.size();) {
    Reestablishment& entry = reestablishments_[i];
    Link* to = link(entry.peer);
    Path* path = to == nullptr || entry.path >= to->paths.size() ? nullptr : &to->paths[entry.path];
    if (path == nullptr || !path->broken) {
      reestablishments_[i] = reestablishments_.back();
      reestablishments_.pop_back();
      continue;
    }
    if (now >= entry.due_ns) reestablish(now, to, path, &entry);
    reestablish_ns_ =
        std::min(reestablish_ns_, reestablishments_[i].due_ns);  // reestablish() may have scheduled an earlier time
    ++i;
  }
}

void VerbsDatapath::reestablish(std::int64_t now_ns, Link* to, Path* path, Reestablishment* entry) {
  entry->due_ns = now_ns + kDownWaitNs;
  if (path->port->down) return;
  entry->due_ns = now_ns + entry->wait_ns;
  entry->wait_ns = std::min(2 * entry->wait_ns, kLastWaitNs);
  if (options_.mode == VerbsMode::rc) {
    if (path->asked == 0) {
      path->generation = (path->generation + 1) & kGenerationMax;
      path->asked = 1;
      if (!rejoin(path)) path->asked = 0;
    }
    if (path->asked != 0) say(to, kAsk, entry->path, path->generation);
    return;
  }
  path->generation = (path->generation + 1) & kGenerationMax;
  if (!rejoin(path)) return;
  change_paths_over(path->pair, entry->peer, entry->path, [this](std::uint32_t, Path* each) {
    if (each->broken) on_reestablished(each);
  });
}

void VerbsDatapath::say(Link* to, std::uint8_t kind, std::uint8_t path, std::uint32_t generation) {
  ReestablishPacket word{{'W', 'M'}, kind, path, generation, to->remote_token, 0};
  word.check = check_of(word);
  wire::TxBurst burst;
  burst.count = 1;
  burst.header_bytes = sizeof word;
  burst.datagram_bytes = sizeof word;
  std::memcpy(burst.headers, &word, sizeof word);
  const Control& control = to->controls[path % to->controls.size()];
  static_cast<void>(
      send({control.port, &control.port->control, control.address, control.remote_number, nullptr}, burst));
}

bool VerbsDatapath::on_reestablish_packet(const std::uint8_t* at, std::size_t bytes) {
  ReestablishPacket word;
  if (bytes < 2 || at[0] != 'W' || at[1] != 'M') return false;
  if (bytes != sizeof word) return true;
  std::memcpy(&word, at, sizeof word);
  if (word.check != check_of(word) || options_.mode != VerbsMode::rc) return true;
  for (std::uint32_t peer = 0; peer < links_.size(); ++peer) {
    const auto& each = links_[peer];
    if (each == nullptr || each->token != word.token || word.path >= each->paths.size()) continue;
    // The request may arrive before the peer's handshake data. It is ignored, because the peer repeats it.
    if (each->controls.empty()) return true;
    Path& path = each->paths[word.path];
    // Whether the peer's generation is newer than ours, in modulo-256 arithmetic.
    const bool newer = ((word.generation - path.generation) & kGenerationMax) - 1 < kGenerationMax / 2;
    const bool same = word.generation == path.generation;
    if (word.kind == kAsk && newer) {
      path.generation = word.generation & kGenerationMax;
      path.asked = 0;
      if (rejoin(&path)) {
        on_reestablished(&path);
        say(each.get(), kAnswer, word.path, path.generation);
      } else {
        on_broken(peer, word.path);  // from now on this end asks the peer to re-establish the path, until it works
      }
    } else if (word.kind == kAsk && same) {
      say(each.get(), kAnswer, word.path, path.generation);
      if (path.asked != 0) on_reestablished(&path);
      path.asked = 0;
    } else if (word.kind == kAnswer && same && path.broken && path.asked != 0) {
      path.asked = 0;
      on_reestablished(&path);
    }
    return true;
  }
  return true;
}

void VerbsDatapath::take_async(VerbsPort* port) {
  ibv_async_event event{};
  while (ibv_->get_async_event(port->context, &event) == 0) {
    switch (event.event_type) {
      case IBV_EVENT_PORT_ERR:
      case IBV_EVENT_DEVICE_FATAL:
        port->down = true;
        break;
      case IBV_EVENT_PORT_ACTIVE:
        port->down = false;
        break;
      case IBV_EVENT_QP_FATAL:
      case IBV_EVENT_QP_REQ_ERR:
      case IBV_EVENT_QP_ACCESS_ERR:
        for (std::uint32_t peer = 0; peer < links_.size(); ++peer) {
          for (std::size_t i = 0; link(peer) != nullptr && i < link(peer)->paths.size(); ++i) {
            if (link(peer)->paths[i].pair->get() == event.element.qp) on_broken(peer, static_cast<std::uint8_t>(i));
          }
        }
        break;
      default:
        break;
    }
    ibv_->ack_async_event(&event);
  }
}

}  // namespace weft::datapath
