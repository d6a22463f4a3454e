// The XDP program of an interface, which hands the datagrams of weft's UDP ports to AF_XDP sockets and leaves every
// other packet to the kernel. All engines of the process share it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "native/datapath/address.h"
#include "native/datapath/xdp/bpf.h"

namespace weft::datapath::xdp {

// An engine's sockets of one interface have a row in the map of sockets, with a place for each queue.
inline constexpr std::uint32_t kQueuesMax = 128, kRowsMax = 64;
inline constexpr std::uint32_t kPortsMax = 16'384;

// Key of the map of ports. `address`: of IPv4 the first four bytes. Both as in the packet.
struct PortKey {
  std::uint8_t address[16];
  std::uint16_t port;
  std::uint16_t ip_version;  // 4 or 6, in host order
};
static_assert(sizeof(PortKey) == 20);

PortKey port_key(const SocketAddress& address) noexcept;

// The program puts this in front of a packet that it redirects, where the driver leaves room for it.
struct ArrivalStamp {
  std::uint64_t mark;     // kStampMark; the reader clears it, as chunks are used again
  std::int64_t stamp_ns;  // CLOCK_MONOTONIC
};
inline constexpr std::uint64_t kStampMark = 0x57454654;
static_assert(sizeof(ArrivalStamp) == 16);

// The program. A packet goes to the kernel unless it is a whole UDP datagram over IPv4 without options, or over IPv6
// without extension headers, to an address and port of `ports` whose row in `sockets` has a socket for the packet's
// queue.
std::vector<BpfInstruction> steering_program(int ports, int sockets);

class Steering {
 public:
  ~Steering();
  Steering(const Steering&) = delete;
  Steering& operator=(const Steering&) = delete;

  // The interface's program, which is attached when the process first asks for it, and goes with the last owner. Null
  // with `error` set on failure. Waits up to half a second for a program that a process leaves behind that has ended,
  // unless it has just waited in vain for another engine.
  static std::shared_ptr<Steering> of(unsigned interface_index, std::string* error);

  // Takes a row; false: all are taken.
  bool take_row(std::uint32_t* row) noexcept;
  void give_back(std::uint32_t row) noexcept;
  bool add_socket(std::uint32_t row, std::uint32_t queue, int socket) noexcept;
  bool add_port(const SocketAddress& address, std::uint32_t row) noexcept;
  void remove_port(const SocketAddress& address) noexcept;

 private:
  Steering() = default;
  bool start(unsigned interface_index, int tries, std::string* error);

  BpfHandle ports_, sockets_, program_, link_;
  std::vector<bool> rows_ = std::vector<bool>(kRowsMax);
};

}  // namespace weft::datapath::xdp
