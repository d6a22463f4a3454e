// Accounts for the memory of sessions whose peers are not authenticated, by source address and in all, and names the
// session that must end when there is no room for more. A pure state machine: it reads no clock and ends no session.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <tuple>

#include "native/datapath/address.h"

namespace weft::control {

// What a session that the remote process opened makes this process hold.
struct Holding {
  std::size_t peers = 0, paths = 0, flows = 0;
  std::size_t silent_peers = 0;       // those that have never answered over a data path
  std::int64_t silent_since_ns = -1;  // time at which the oldest silent peer was opened; -1: there is none
};

class OpenBudget {
 public:
  struct Limits {
    std::int64_t bytes_per_address = 0, bytes = 0;
  };
  enum class Answer : std::uint8_t {
    fits,
    in_the_way,       // there is room once the session that ask() names has ended
    address_is_full,  // the address is at its limit, and the peers of all its sessions have answered
    full,             // all addresses together are at the limit, and the peers of all sessions have answered
  };
  // Memory that each session, peer, path and flow takes, rounded up; the constants were measured
  // (tests/native/control/test_open_budget.cc).
  static constexpr std::int64_t kSessionBytes = 8192, kPeerBytes = 4096, kPathBytes = 512, kFlowBytes = 4096;
  // A session in which a peer has answered may have another silent peer for this long before it can be ended for lack
  // of room.
  static constexpr std::int64_t kPatienceNs = 1'000'000'000;

  explicit OpenBudget(const Limits& limits) noexcept : limits_(limits) {}

  static std::int64_t bytes_of(const Holding& holding) noexcept {
    return kSessionBytes + static_cast<std::int64_t>(holding.peers) * kPeerBytes +
           static_cast<std::int64_t>(holding.paths) * kPathBytes +
           static_cast<std::int64_t>(holding.flows) * kFlowBytes;
  }
  void begin(std::uint64_t session, const datapath::SocketAddress& from, std::int64_t now_ns);
  void set(std::uint64_t session, const Holding& holding);
  void forget(std::uint64_t session) noexcept;
  // Whether the session may hold `bytes` more memory, or if `session` is 0, whether a new session from the address
  // `from` may. `in_the_way`: a session that must end first. Those that never answered go first, the oldest before the
  // others; a session that has answered goes only if it has had a silent peer for kPatienceNs.
  Answer ask(std::uint64_t session, const datapath::SocketAddress& from, std::int64_t bytes, std::int64_t now_ns,
             std::uint64_t* in_the_way) const noexcept;
  // The session to end first, even if there is room for more; 0: none. Never `spared`.
  std::uint64_t first_to_go(std::uint64_t spared, std::int64_t now_ns) const noexcept {
    return first_of(order_, spared, now_ns);
  }
  bool any_silent() const noexcept { return !order_.empty(); }  // whether a session waits for a first answer
  bool holds(std::uint64_t session) const noexcept { return entries_.count(session) != 0; }
  std::int64_t bytes() const noexcept { return bytes_; }
  std::int64_t bytes_from(const datapath::SocketAddress& from) const noexcept;

 private:
  // An IP address. Of an IPv6 address that is not link-local only the first 64 bits count, because a host chooses the
  // others.
  using Host = std::array<std::uint8_t, 16>;
  // (has answered before, silent since, session id), sorted by the order in which sessions are ended.
  using Order = std::set<std::tuple<bool, std::int64_t, std::uint64_t>>;
  struct Entry {
    Host host{};
    std::int64_t bytes = 0, begun_ns = 0;
    bool goes = false;  // the session may be ended: it is in order_ and in its address's Account::order
    bool answered = false;
    std::int64_t since_ns = 0;
  };
  struct Account {
    std::int64_t bytes = 0;
    Order order;
  };
  static Host host_of(const datapath::SocketAddress& address) noexcept;
  static std::uint64_t first_of(const Order& order, std::uint64_t spared, std::int64_t now_ns) noexcept;
  void take_out(std::uint64_t session, Entry* entry) noexcept;

  Limits limits_;
  std::int64_t bytes_ = 0;
  std::map<std::uint64_t, Entry> entries_;
  std::map<Host, Account> accounts_;
  Order order_;
};

}  // namespace weft::control
