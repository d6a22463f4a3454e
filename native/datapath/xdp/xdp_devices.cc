// Opens and closes what AF_XDP needs, to find out what is missing, and says it in words.
#include "native/datapath/xdp/xdp_devices.h"

#include <sys/socket.h>
#include <sys/utsname.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <utility>
#include <vector>

#include "native/datapath/fork_registry.h"
#include "native/datapath/xdp/bpf.h"
#include "native/datapath/xdp/frames.h"
#include "native/datapath/xdp/steering.h"
#include "native/datapath/xdp/umem.h"

namespace weft::datapath {
namespace {

// Numbers of linux/capability.h.
constexpr int kNetAdmin = 12, kNetRaw = 13, kSysAdmin = 21, kBpf = 39;

bool has(std::uint64_t mask, int capability) { return (mask >> capability & 1) != 0; }

std::uint64_t effective_capabilities() {
  std::ifstream file("/proc/self/status");
  for (std::string line; std::getline(file, line);) {
    if (line.rfind("CapEff:", 0) == 0) return std::strtoull(line.c_str() + 7, nullptr, 16);
  }
  return 0;
}

std::string lacking(const char* what) {
  const int problem = errno;
  std::string text = std::string("AF_XDP cannot be used: ") + what + ": " + std::strerror(problem);
  const std::string missing = missing_capabilities(effective_capabilities());
  if (problem != EPERM && problem != EACCES) {
    return text + "; it needs Linux 5.10 or later with CONFIG_XDP_SOCKETS and CONFIG_BPF_SYSCALL";
  }
  if (missing.empty())
    return text + "; a security policy (seccomp, a user namespace, lockdown) or a limit (ulimit -l) forbids it";
  return text + "; this process lacks " + missing +
         ": run it as root, give a container --cap-add NET_RAW --cap-add NET_ADMIN --cap-add BPF, or the program "
         "setcap "
         "cap_net_raw,cap_net_admin,cap_bpf+ep";
}

}  // namespace

std::string missing_capabilities(std::uint64_t effective) {
  std::vector<std::string> names;
  if (!has(effective, kNetRaw)) names.emplace_back("CAP_NET_RAW");
  if (!has(effective, kNetAdmin)) names.emplace_back("CAP_NET_ADMIN");
  if (!has(effective, kBpf) && !has(effective, kSysAdmin)) names.emplace_back("CAP_BPF");
  std::string text;
  for (std::size_t i = 0; i < names.size(); ++i) {
    text += (i == 0 ? "" : i + 1 == names.size() ? " and " : ", ") + names[i];
  }
  return text;
}

bool probe_xdp(std::string* error) {
  const int socket = open_socket(xdp::kFamily, SOCK_RAW);
  if (socket < 0) {
    *error = lacking("no socket");
    return false;
  }
  close_socket(socket);
  const xdp::BpfHandle ports = xdp::create_map(xdp::kHashMap, sizeof(xdp::PortKey), 4, 1);
  const xdp::BpfHandle sockets = ports ? xdp::create_map(xdp::kSocketMap, 4, 4, 1) : xdp::BpfHandle();
  if (!sockets) {
    *error = lacking("no map for the XDP program");
    return false;
  }
  const xdp::BpfHandle program = xdp::load_xdp_program(xdp::steering_program(ports.get(), sockets.get()), nullptr);
  if (!program) *error = lacking("the XDP program is not loaded");
  return static_cast<bool>(program);
}

std::string why_not_xdp(const Interface& interface) {
  if (interface.loopback) {
    return interface.name +
           " is loopback, where AF_XDP has no use: name a NIC in WEFT_INTERFACES, or unset "
           "WEFT_DATAPATH";
  }
  if (interface.kind.empty() || interface.kind == "veth") return {};
  return interface.name + " is a " + interface.kind +
         " interface, which has no queues of its own: name the NIC below "
         "it in WEFT_INTERFACES, or unset WEFT_DATAPATH";
}

bool has_segments(const std::string& release) {
  char* end = nullptr;
  const long major = std::strtol(release.c_str(), &end, 10);
  const long minor = *end == '.' ? std::strtol(end + 1, nullptr, 10) : 0;
  return major > 6 || (major == 6 && minor >= 6);
}

bool has_segments() {
  utsname system{};
  return ::uname(&system) == 0 && has_segments(system.release);
}

std::int64_t usable_mtu_bytes(std::int64_t mtu_bytes, bool segments) noexcept {
  constexpr std::size_t kIpUdpBytes = 20 + xdp::kUdpHeaderBytes;
  constexpr auto kOneChunk = xdp::kChunkBytes - xdp::kHeadroomBytes - xdp::kHeadersBytesMax + kIpUdpBytes;
  return segments ? mtu_bytes : std::min<std::int64_t>(mtu_bytes, kOneChunk);
}

}  // namespace weft::datapath
