// The emulated wire: a socket on which this process receives packets from other processes of the same user and host,
// and a socket to each of them. Packets arrive whole and in order, or are lost. Packets to a dead process are lost.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "tests/softverbs/native/packet.h"

namespace weft::softverbs {

// Every process counts as a separate host: the host part of its GIDs is a random number, chosen when it opens its first
// device.
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

  // full: the peer's socket buffer is full. lost: the peer process does not exist, or has ended.
  enum class Sent { taken, full, lost };
  Sent send(std::int64_t now_ns, const Packet& packet, const std::uint8_t* payload) noexcept;
  // Takes the next packet that has arrived. Returns false if there is none. `payload` must have room for kMtuBytesMax
  // bytes.
  bool receive(Packet* packet, std::uint8_t* payload) noexcept;

  // Waits until a packet arrives, a full peer has room, wake() is called, or the timeout has passed (< 0: no timeout).
  // Other threads may call send(), receive() and wake() meanwhile.
  void wait(std::int64_t timeout_ns) noexcept;
  void wake() noexcept;

 private:
  struct Peer {
    int socket = -1;
    std::int64_t retry_ns = 0;
  };
  bool reach(std::int64_t now_ns, std::uint64_t host, Peer* peer) noexcept;
  void ask_for_room(const Peer& peer) noexcept;
  bool accept_all() noexcept;  // returns true if it accepted new connections
  bool take(Packet* packet, std::uint8_t* payload) noexcept;

  std::uint64_t host_ = 0;
  int listener_ = -1, epoll_ = -1, bell_ = -1;
  std::map<std::uint64_t, Peer> peers_;  // sockets to send to each host
  std::vector<int> sources_;             // sockets to receive from
  std::size_t turn_ = 0;
};

}  // namespace weft::softverbs
