// Writes the XDP program, attaches it through a link, and keeps its maps. The link goes with the process, however it
// ends, and the program with it.
#include "native/datapath/xdp/steering.h"

#include <net/if.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <map>
#include <mutex>
#include <utility>

#include "native/datapath/clock.h"
#include "native/datapath/xdp/assembler.h"
#include "native/datapath/xdp/netlink.h"

namespace weft::datapath::xdp {
namespace {

constexpr std::int32_t kPass = 2;  // XDP_PASS
constexpr std::int32_t kMapLookup = 1, kTimeNs = 5, kRedirectMap = 51,
                       kAdjustMeta = 54;  // helpers bpf_map_lookup_elem(), bpf_redirect_map()
constexpr std::int16_t kData = 0, kDataEnd = 4, kDataMeta = 8, kRxQueue = 16;  // fields of struct xdp_md
constexpr std::int16_t kKey = -24, kKeyPort = -8, kKeyVersion = -6;            // on the stack
constexpr int kAttachTries = 50;
constexpr std::int64_t kRefusedNs = 10'000'000'000;
constexpr unsigned kAttachPauseUs = 10'000;

// Offsets in an Ethernet frame. IPv4 has no options, IPv6 no extension headers.
constexpr std::int16_t kEtherType = 12, kIp = 14;
constexpr std::int16_t kV4Fragment = kIp + 6, kV4Protocol = kIp + 9, kV4To = kIp + 16, kV4Udp = kIp + 20;
constexpr std::int16_t kV6Next = kIp + 6, kV6To = kIp + 24, kV6Udp = kIp + 40;
constexpr std::int16_t kUdpTo = 2, kUdpBytes = 8;

std::int32_t network_order(std::uint16_t value) noexcept { return htons(value); }

// Jumps to "pass" unless the packet has `bytes` bytes.
void require(Assembler* code, std::int16_t bytes) {
  code->move(Register::r1, Register::r7);
  code->add(Register::r1, bytes);
  code->jump_if(Register::r1, Test::greater, Register::r8, "pass");
}

void read_v4(Assembler* code) {
  require(code, kV4Udp + kUdpBytes);
  code->store(Size::half, Register::stack, kKeyVersion, 4);
  code->load(Register::r2, Size::byte, Register::r7, kIp);
  code->jump_if(Register::r2, Test::not_equal, 0x45, "pass");
  code->load(Register::r2, Size::byte, Register::r7, kV4Protocol);
  code->jump_if(Register::r2, Test::not_equal, IPPROTO_UDP, "pass");
  code->load(Register::r2, Size::half, Register::r7, kV4Fragment);
  code->bit_and(Register::r2, network_order(0x3FFF));  // the offset, and the bit that more fragments follow
  code->jump_if(Register::r2, Test::not_equal, 0, "pass");
  code->load(Register::r2, Size::word, Register::r7, kV4To);
  code->store(Size::word, Register::stack, kKey, Register::r2);
  code->load(Register::r2, Size::half, Register::r7, kV4Udp + kUdpTo);
  code->store(Size::half, Register::stack, kKeyPort, Register::r2);
}

void read_v6(Assembler* code) {
  require(code, kV6Udp + kUdpBytes);
  code->store(Size::half, Register::stack, kKeyVersion, 6);
  code->load(Register::r2, Size::byte, Register::r7, kV6Next);
  code->jump_if(Register::r2, Test::not_equal, IPPROTO_UDP, "pass");
  for (std::int16_t at = 0; at < 16; at = static_cast<std::int16_t>(at + 4)) {
    code->load(Register::r2, Size::word, Register::r7, static_cast<std::int16_t>(kV6To + at));
    code->store(Size::word, Register::stack, static_cast<std::int16_t>(kKey + at), Register::r2);
  }
  code->load(Register::r2, Size::half, Register::r7, kV6Udp + kUdpTo);
  code->store(Size::half, Register::stack, kKeyPort, Register::r2);
}

// Puts an ArrivalStamp in front of the packet, if there is room. Changes all registers but r6 and r9.
void stamp(Assembler* code) {
  code->move(Register::r1, Register::r6);
  code->move(Register::r2, -static_cast<std::int32_t>(sizeof(ArrivalStamp)));
  code->call(kAdjustMeta);
  code->jump_if(Register::r0, Test::not_equal, 0, "redirect");
  code->load(Register::r7, Size::word, Register::r6, kDataMeta);
  code->load(Register::r8, Size::word, Register::r6, kData);
  code->move(Register::r1, Register::r7);
  code->add(Register::r1, static_cast<std::int32_t>(sizeof(ArrivalStamp)));
  code->jump_if(Register::r1, Test::greater, Register::r8, "redirect");
  code->call(kTimeNs);
  code->store(Size::two_words, Register::r7, offsetof(ArrivalStamp, stamp_ns), Register::r0);
  code->store(Size::two_words, Register::r7, offsetof(ArrivalStamp, mark), static_cast<std::int32_t>(kStampMark));
}

// The process's programs by interface. Threads may be in different network namespaces, where indices repeat.
using NamespacedInterface = std::pair<std::uint64_t, unsigned>;
struct Known {
  std::weak_ptr<Steering> program;
  std::int64_t refused_ns = INT64_MIN;  // when attaching one last failed
};
struct Programs {
  std::mutex mutex;
  std::map<NamespacedInterface, Known> by_interface;
};

std::uint64_t network_namespace() noexcept {
  struct stat found{};
  return ::stat("/proc/thread-self/ns/net", &found) == 0 ? found.st_ino : 0;
}

Programs& programs() {
  static Programs* const made = new Programs;  // never destroyed: an engine may end after static destructors have run
  return *made;
}

}  // namespace

PortKey port_key(const SocketAddress& address) noexcept {
  PortKey key{};
  if (address.is_v6()) {
    std::memcpy(key.address, &address.v6.sin6_addr, 16);
  } else {
    std::memcpy(key.address, &address.v4.sin_addr, 4);
  }
  key.port = htons(address.port());
  key.ip_version = address.is_v6() ? 6 : 4;
  return key;
}

std::vector<BpfInstruction> steering_program(int ports, int sockets) {
  Assembler code;
  code.move(Register::r6, Register::r1);
  code.load(Register::r7, Size::word, Register::r6, kData);
  code.load(Register::r8, Size::word, Register::r6, kDataEnd);
  code.store(Size::two_words, Register::stack, kKey, 0);
  code.store(Size::two_words, Register::stack, kKey + 8, 0);
  code.store(Size::word, Register::stack, kKeyPort, 0);
  require(&code, kIp);
  code.load(Register::r2, Size::half, Register::r7, kEtherType);
  code.jump_if(Register::r2, Test::equal, network_order(0x86DD), "v6");
  code.jump_if(Register::r2, Test::not_equal, network_order(0x0800), "pass");
  read_v4(&code);
  code.jump("look up");
  code.label("v6");
  read_v6(&code);
  code.label("look up");
  code.load_map(Register::r1, ports);
  code.move(Register::r2, Register::stack);
  code.add(Register::r2, kKey);
  code.call(kMapLookup);
  code.jump_if(Register::r0, Test::equal, 0, "pass");
  code.load(Register::r9, Size::word, Register::r0, 0);
  code.load(Register::r3, Size::word, Register::r6, kRxQueue);
  code.jump_if(Register::r3, Test::at_least, static_cast<std::int32_t>(kQueuesMax), "pass");
  code.add(Register::r9, Register::r3);
  stamp(&code);
  code.label("redirect");
  code.move(Register::r2, Register::r9);
  code.load_map(Register::r1, sockets);
  code.move(Register::r3, kPass);  // what the helper returns if there is no socket
  code.call(kRedirectMap);
  code.leave();
  code.label("pass");
  code.move(Register::r0, kPass);
  code.leave();
  return code.finish();
}

bool Steering::start(unsigned interface_index, int tries, std::string* error) {
  char name[IF_NAMESIZE] = "?";
  ::if_indextoname(interface_index, name);
  std::string log;
  ports_ = create_map(kHashMap, sizeof(PortKey), sizeof(std::uint32_t), kPortsMax);
  if (ports_) sockets_ = create_map(kSocketMap, sizeof(std::uint32_t), sizeof(std::uint32_t), kQueuesMax * kRowsMax);
  if (sockets_) program_ = load_xdp_program(steering_program(ports_.get(), sockets_.get()), &log);
  if (!program_) {
    *error = std::string("cannot load the XDP program: ") + std::strerror(errno);
    if (!log.empty()) *error += " (" + log.substr(0, log.find('\n')) + ")";
    return false;
  }
  for (int tried = 0; !link_ && tried < tries; ++tried) {
    if (tried != 0) ::usleep(kAttachPauseUs);
    link_ = attach_xdp(program_, interface_index);
    if (!link_ && errno != EBUSY && errno != EEXIST) break;
  }
  if (link_) return true;
  const int problem = errno;
  const std::uint32_t other = attached_program(interface_index);
  *error = std::string("cannot attach an XDP program to ") + name + ": ";
  if (other != 0) {
    *error += "program " + std::to_string(other) + " of another process is attached, and an interface takes one";
  } else {
    *error += std::string(std::strerror(problem)) +
              ": its driver may have no XDP, or only with a smaller MTU or fewer "
              "queues (the kernel's log may say so: dmesg)";
  }
  return false;
}

std::shared_ptr<Steering> Steering::of(unsigned interface_index, std::string* error) {
  Programs& all = programs();
  const std::lock_guard<std::mutex> lock(all.mutex);
  Known& known = all.by_interface[{network_namespace(), interface_index}];
  if (std::shared_ptr<Steering> found = known.program.lock()) return found;
  std::shared_ptr<Steering> made(new Steering);
  const bool waited = known.refused_ns > now_ns() - kRefusedNs;  // for another engine
  if (!made->start(interface_index, waited ? 1 : kAttachTries, error)) {
    known.refused_ns = now_ns();
    return nullptr;
  }
  known.program = made;
  return made;
}

Steering::~Steering() = default;

bool Steering::take_row(std::uint32_t* row) noexcept {
  const std::lock_guard<std::mutex> lock(programs().mutex);
  for (std::uint32_t i = 0; i < kRowsMax; ++i) {
    if (rows_[i]) continue;
    rows_[i] = true;
    *row = i;
    return true;
  }
  return false;
}

void Steering::give_back(std::uint32_t row) noexcept {
  const std::lock_guard<std::mutex> lock(programs().mutex);
  rows_[row] = false;
}

bool Steering::add_socket(std::uint32_t row, std::uint32_t queue, int socket) noexcept {
  const std::uint32_t key = row * kQueuesMax + queue;
  return update_map(sockets_, &key, &socket);
}

bool Steering::add_port(const SocketAddress& address, std::uint32_t row) noexcept {
  const PortKey key = port_key(address);
  const std::uint32_t first = row * kQueuesMax;
  return update_map(ports_, &key, &first);
}

void Steering::remove_port(const SocketAddress& address) noexcept {
  const PortKey key = port_key(address);
  delete_from_map(ports_, &key);
}

}  // namespace weft::datapath::xdp
