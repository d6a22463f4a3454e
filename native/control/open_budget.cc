// Keeps the order in which sessions are ended for lack of room, for each address and for all addresses together. A
// session whose peers have all answered is in neither order, and is not ended.
#include "native/control/open_budget.h"

#include <cstring>

namespace weft::control {

OpenBudget::Host OpenBudget::host_of(const datapath::SocketAddress& address) noexcept {
  Host host{};
  if (!address.is_v6()) {
    std::memcpy(host.data() + 12, &address.v4.sin_addr, 4);
    host[10] = host[11] = 0xFF;
    return host;
  }
  const bool mapped = IN6_IS_ADDR_V4MAPPED(&address.v6.sin6_addr) != 0;
  std::memcpy(host.data(), &address.v6.sin6_addr, mapped || datapath::is_link_local(address) ? 16 : 8);
  return host;
}

void OpenBudget::begin(std::uint64_t session, const datapath::SocketAddress& from, std::int64_t now_ns) {
  Entry& entry = entries_[session];
  entry.host = host_of(from);
  entry.begun_ns = now_ns;
  set(session, Holding{});
}

void OpenBudget::take_out(std::uint64_t session, Entry* entry) noexcept {
  if (!entry->goes) return;
  entry->goes = false;
  const auto place = std::tuple{entry->answered, entry->since_ns, session};
  order_.erase(place);
  accounts_.at(entry->host).order.erase(place);
}

void OpenBudget::set(std::uint64_t session, const Holding& holding) {
  const auto found = entries_.find(session);
  if (found == entries_.end()) return;
  Entry& entry = found->second;
  Account& account = accounts_[entry.host];
  take_out(session, &entry);
  const std::int64_t bytes = bytes_of(holding);
  bytes_ += bytes - entry.bytes;
  account.bytes += bytes - entry.bytes;
  entry.bytes = bytes;
  entry.answered = holding.peers > holding.silent_peers;
  if (entry.answered && holding.silent_peers == 0) return;
  entry.since_ns = entry.answered ? holding.silent_since_ns : entry.begun_ns;
  const auto place = std::tuple{entry.answered, entry.since_ns, session};
  order_.insert(place);
  account.order.insert(place);
  entry.goes = true;
}

void OpenBudget::forget(std::uint64_t session) noexcept {
  const auto found = entries_.find(session);
  if (found == entries_.end()) return;
  take_out(session, &found->second);
  const auto account = accounts_.find(found->second.host);
  bytes_ -= found->second.bytes;
  account->second.bytes -= found->second.bytes;
  if (account->second.bytes == 0) accounts_.erase(account);  // no session is left: each holds some bytes
  entries_.erase(found);
}

std::uint64_t OpenBudget::first_of(const Order& order, std::uint64_t spared, std::int64_t now_ns) noexcept {
  for (const auto& [answered, since_ns, session] : order) {
    if (session == spared) continue;
    return answered && now_ns - since_ns < kPatienceNs ? 0 : session;
  }
  return 0;
}

OpenBudget::Answer OpenBudget::ask(std::uint64_t session, const datapath::SocketAddress& from, std::int64_t bytes,
                                   std::int64_t now_ns, std::uint64_t* in_the_way) const noexcept {
  const auto account = accounts_.find(host_of(from));
  const std::int64_t held = account == accounts_.end() ? 0 : account->second.bytes;
  if (held + bytes > limits_.bytes_per_address) {
    *in_the_way = account == accounts_.end() ? 0 : first_of(account->second.order, session, now_ns);
    return *in_the_way == 0 ? Answer::address_is_full : Answer::in_the_way;
  }
  if (bytes_ + bytes <= limits_.bytes) return Answer::fits;
  *in_the_way = first_of(order_, session, now_ns);
  return *in_the_way == 0 ? Answer::full : Answer::in_the_way;
}

std::int64_t OpenBudget::bytes_from(const datapath::SocketAddress& from) const noexcept {
  const auto account = accounts_.find(host_of(from));
  return account == accounts_.end() ? 0 : account->second.bytes;
}

}  // namespace weft::control
