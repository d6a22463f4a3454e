// The wire: a socket of this process that others of the same user and host send to, and one to each of them.
// Carries packets whole and in order, or not at all; a peer that has died takes nothing. Judges no packet.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "native/softverbs/packet.h"

namespace weft::softverbs {

// Every process is a host of its own: its part of a GID is drawn when it opens its first device.
ibv_gid gid_of(std::uint64_t host, std::uint32_t device) noexcept;
std::uint64_t host_of(const ibv_gid& gid) noexcept;
std::uint32_t device_of(const ibv_gid& gid) noexcept;

class Link {
 public:
  Link() = default;
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;
  ~Link() { close(); }

  bool open(std::string* error);
  void close() noexcept;
  std::uint64_t host() const noexcept { return host_; }

  // full: the peer has not taken what came before; lost: there is no such peer (any more).
  enum class Sent { taken, full, lost };
  Sent send(std::int64_t now_ns, const Packet& packet, const std::uint8_t* payload) noexcept;
  // The next packet that has come; false: none. `payload` holds kMtuBytesMax.
  bool receive(Packet* packet, std::uint8_t* payload) noexcept;

  // Until something arrives, a full peer takes packets again, somebody calls wake(), or the time is over (< 0: never).
  // The one call that another thread's send, receive and wake may overtake.
  void wait(std::int64_t timeout_ns) noexcept;
  void wake() noexcept;

 private:
  struct Peer {
    int socket = -1;
    std::int64_t retry_ns = 0;
  };
  bool reach(std::int64_t now_ns, std::uint64_t host, Peer* peer) noexcept;
  void ask_for_room(const Peer& peer) noexcept;
  bool accept_all() noexcept;  // true: there are new ones
  bool take(Packet* packet, std::uint8_t* payload) noexcept;

  std::uint64_t host_ = 0;
  int listener_ = -1, epoll_ = -1, bell_ = -1;
  std::map<std::uint64_t, Peer> peers_;  // by host: we send to these
  std::vector<int> sources_;             // and receive from these
  std::size_t turn_ = 0;
};

}  // namespace weft::softverbs
