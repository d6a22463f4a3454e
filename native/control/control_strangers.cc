// Bounds what peers that are not authenticated can make this process hold: sessions, peers and flows are charged to
// their address (open_budget.h), and a session ends if one of its peers never answers over a data path.
#include <algorithm>

#include "native/control/control_plane.h"
#include "native/engine/clock.h"

namespace weft::control {
namespace {

constexpr std::int64_t kCountNsMin = 20'000'000, kCountNsMax = 250'000'000;
// Before an unauthenticated peer is refused for lack of room in the budget, the flows that such peers hold are counted
// again, but at most once in this time.
constexpr std::int64_t kRecountNs = 20'000'000;

std::string megabytes(std::int64_t bytes) { return std::to_string(bytes >> 20) + " MiB"; }

}  // namespace

// Charges the memory of an unauthenticated peer's new session to the peer's IP address. If the budget has no room for
// it, the session is removed.
bool ControlPlane::admit_session(Session* session, const datapath::SocketAddress& from, std::string* error) {
  if (session->is_authenticated()) return true;
  if (!make_room_for(0, from, OpenBudget::kSessionBytes, error)) {
    sessions_.erase(session->id);
    return false;
  }
  budget_.begin(session->id, from, engine::now_ns());
  return true;
}

// Whether the budget has room for the flows of an open request. `peers`: the peer of each flow.
bool ControlPlane::admit_open(const Session& session, const std::vector<PeerKey>& peers, std::string* error) {
  const std::int64_t held = OpenBudget::bytes_of(setup_.holding(session.id));
  const std::int64_t wanted = OpenBudget::bytes_of(setup_.holding(session.id, peers));
  return make_room_for(session.id, session.proved.front(), wanted - held, error);
}

bool ControlPlane::make_room_for(std::uint64_t session, const datapath::SocketAddress& from, std::int64_t bytes,
                                 std::string* error) {
  const std::int64_t now = engine::now_ns();
  while (true) {
    std::uint64_t first = 0;
    const OpenBudget::Answer answer = budget_.ask(session, from, bytes, now, &first);
    if (answer == OpenBudget::Answer::fits) return true;
    if (answer == OpenBudget::Answer::in_the_way) {
      static_cast<void>(drop_if_silent(first, now));
      continue;
    }
    if (now - counted_ns_ >= kRecountNs) {
      count_strangers(now);
      continue;
    }
    const bool address = answer == OpenBudget::Answer::address_is_full;
    *error = "the peers " + (address ? "of " + from.text() : std::string("of all addresses")) +
             " that are not authenticated hold " + megabytes(address ? budget_.bytes_from(from) : budget_.bytes()) +
             " of this process's memory, and none of them can be dropped, because all have answered: raise " +
             (address ? "WEFT_OPEN_BYTES=address" : "WEFT_OPEN_BYTES=all") +
             ", or let them authenticate: authenticated peers have no limit";
    return false;
  }
}

// Ends a session of an unauthenticated remote process, unless all its peers have answered by now.
bool ControlPlane::drop_if_silent(std::uint64_t session, std::int64_t now_ns) {
  setup_.count(now_ns, session);
  const Holding holding = setup_.holding(session);
  budget_.set(session, holding);
  Session* found = find_session(session);
  if (found == nullptr || (holding.peers != 0 && holding.silent_peers == 0)) return false;
  ++counters_.strangers_refused;
  end_session(found, Status::refused,
              "the session was ended to make room for another peer, because none of its data paths has ever answered",
              true);
  return true;
}

// Ends a session of an unauthenticated remote process to make room, but never the session `spared`. Returns false if
// none can be ended, because the peers of all have answered.
bool ControlPlane::drop_a_stranger(std::uint64_t spared) {
  const std::int64_t now = engine::now_ns();
  for (std::uint64_t first = 0; (first = budget_.first_to_go(spared, now)) != 0;) {
    if (drop_if_silent(first, now)) return true;
  }
  return false;
}

void ControlPlane::count_strangers(std::int64_t now_ns) {
  counted_ns_ = now_ns;
  setup_.count(now_ns);
  for (const auto& [id, session] : sessions_) {
    if (budget_.holds(id)) budget_.set(id, setup_.holding(id));
  }
}

// Ends sessions with a peer that has never answered over a data path. A peer that is authenticated is waited for: its
// process may be stopped.
void ControlPlane::let_silent_go(std::int64_t now_ns) {
  const std::int64_t pause_ns = std::clamp(knobs_->peer_silence_ns / 64, kCountNsMin, kCountNsMax);
  if (budget_.bytes() == 0 || now_ns - counted_ns_ < pause_ns) return;
  count_strangers(now_ns);
  std::vector<std::uint64_t> late;
  for (const auto& [id, session] : sessions_) {
    if (!budget_.holds(id)) continue;
    const std::int64_t since_ns = setup_.holding(id).silent_since_ns;
    if (since_ns >= 0 && now_ns - since_ns >= knobs_->peer_silence_ns) late.push_back(id);
  }
  for (const std::uint64_t id : late) {
    Session* session = find_session(id);
    ++counters_.strangers_refused;
    end_session(session, Status::peer_silent,
                "no data path to the peer has carried an answer since it connected (WEFT_PEER_TIMEOUT=silence)", true);
  }
}

}  // namespace weft::control
