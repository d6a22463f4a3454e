// Opens AF_XDP sockets and makes the system calls that move their packets (Documentation/networking/af_xdp.rst).
#include "native/datapath/xdp/socket.h"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "native/datapath/fork_registry.h"

namespace weft::datapath::xdp {
namespace {

constexpr int kBindTries = 60;
constexpr unsigned kBindPauseUs = 10'000;
constexpr int kKicksMax = 2 * kRingEntries / 32;  // in copy mode one call sends at least 32 packets
constexpr int kSendBufferBytes = 32 << 20;        // in copy mode a packet that is being sent is charged to the socket

std::string refusal(const char* what) { return std::string(what) + ": " + std::strerror(errno); }

bool set(int descriptor, SocketOption option, const void* value, std::size_t bytes) noexcept {
  return ::setsockopt(descriptor, kLevel, option, value, static_cast<socklen_t>(bytes)) == 0;
}

}  // namespace

bool Socket::open(const SocketPlan& plan, Umem* umem, std::string* error) {
  plan_ = plan;
  umem_ = umem;
  descriptor_ = open_socket(kFamily, SOCK_RAW);
  if (descriptor_ < 0) {
    *error = refusal("cannot create an AF_XDP socket");
    return false;
  }
  UmemRegistration memory;
  memory.address = reinterpret_cast<std::uintptr_t>(umem->at(0));
  memory.bytes = umem->bytes();
  memory.chunk_bytes = kChunkBytes;
  if (plan.shared_with < 0 && !set(descriptor_, kUmemRegister, &memory, sizeof memory)) {
    *error = refusal("cannot register memory for AF_XDP");
    if (errno == ENOBUFS || errno == ENOMEM) {
      *error +=
          "; " + std::to_string(umem->bytes() >> 20) + " MiB must be locked: give CAP_IPC_LOCK or raise ulimit -l";
    }
    return false;
  }
  if (!map_rings(error)) return false;
  const int budget = static_cast<int>(kRingEntries);
  set(descriptor_, kTxBudget, &budget, sizeof budget);
  ::setsockopt(descriptor_, SOL_SOCKET, SO_SNDBUFFORCE, &kSendBufferBytes, sizeof kSendBufferBytes);
  if (!bind(error)) return false;
  for (std::uint32_t i = 0; i < plan.rx_chunks && umem->free_chunks() > 0; ++i) fill_.next() = umem->take();
  refill();
  return true;
}

bool Socket::map_rings(std::string* error) {
  const std::uint32_t entries = kRingEntries;
  for (const SocketOption ring : {kRxRing, kTxRing, kUmemFillRing, kUmemCompletionRing}) {
    if (!set(descriptor_, ring, &entries, sizeof entries)) {
      *error = refusal("cannot create a ring of an AF_XDP socket");
      return false;
    }
  }
  MmapOffsets offsets;
  socklen_t length = sizeof offsets;
  const bool mapped = ::getsockopt(descriptor_, kLevel, kMmapOffsets, &offsets, &length) == 0 &&
                      length == sizeof offsets && rx.map(descriptor_, kRxOffset, offsets.rx, entries) &&
                      tx.map(descriptor_, kTxOffset, offsets.tx, entries) &&
                      fill_.map(descriptor_, kFillOffset, offsets.fill, entries) &&
                      completion_.map(descriptor_, kCompletionOffset, offsets.completion, entries);
  if (!mapped) *error = refusal("cannot map the rings of an AF_XDP socket");
  return mapped;
}

bool Socket::bind(std::string* error) {
  BindAddress address;
  address.interface_index = plan_.interface_index;
  address.queue = plan_.queue;
  if (plan_.shared_with >= 0) {  // the other flags are those of the first socket
    address.flags = kBindShared;
    address.shared_with = static_cast<std::uint32_t>(plan_.shared_with);
  } else {
    // Without a flag for either, the kernel takes zero-copy mode if the driver has it.
    address.flags = kBindNeedWakeup;
    if (plan_.segments) address.flags = static_cast<std::uint16_t>(address.flags | kBindSegments);
  }
  int result = -1;
  for (int tried = 0; tried < kBindTries && result != 0; ++tried) {
    if (tried != 0) ::usleep(kBindPauseUs);
    result = ::bind(descriptor_, reinterpret_cast<const sockaddr*>(&address), sizeof address);
    if (result != 0 && errno != EBUSY) break;
  }
  if (result != 0) {
    *error = refusal("cannot bind an AF_XDP socket");
    if (errno == EBUSY) *error = "another socket has it";
    return false;
  }
  std::uint32_t options = 0;
  socklen_t length = sizeof options;
  ::getsockopt(descriptor_, kLevel, kOptions, &options, &length);
  zero_copy_ = (options & kOptionZeroCopy) != 0;
  return true;
}

Socket::~Socket() {
  rx.unmap();
  tx.unmap();
  fill_.unmap();
  completion_.unmap();
  close_socket(descriptor_);
}

void Socket::reap() noexcept {
  std::uint32_t ready = completion_.ready();
  if (ready == 0) return;
  for (; ready > 0; --ready) {
    // The kernel wrote the ring, but this end can be wrong about what it reads there: take nothing that is not ours.
    if (completion_.front() < umem_->bytes()) umem_->give_back(completion_.front());
    completion_.pop();
  }
  completion_.release();
}

int Socket::kick() noexcept {
  int calls = 0;
  std::uint32_t left = tx.queued();
  while (left != 0 && (!zero_copy_ || tx.kernel_sleeps()) && calls < kKicksMax) {
    ++calls;
    const ssize_t sent = ::sendto(descriptor_, nullptr, 0, MSG_DONTWAIT | MSG_NOSIGNAL, nullptr, 0);
    const bool again = sent < 0 && (errno == EAGAIN || errno == EINTR);
    const std::uint32_t now = tx.queued();
    if (!again || now == left) break;  // all sent; a driver in zero-copy mode has begun to; or nothing moves
    left = now;
  }
  return calls;
}

void Socket::refill() noexcept {
  fill_.publish();
  wake();
}

void Socket::wake() const noexcept {
  if (!fill_.kernel_sleeps()) return;
  ::recvfrom(descriptor_, nullptr, 0, MSG_DONTWAIT, nullptr, nullptr);
}

std::int64_t Socket::take_drops() noexcept {
  Statistics found;
  socklen_t length = sizeof found;
  if (::getsockopt(descriptor_, kLevel, kStatistics, &found, &length) != 0) return 0;
  const std::uint64_t drops = found.rx_dropped + found.rx_ring_full;
  return static_cast<std::int64_t>(drops - std::exchange(drops_seen_, drops));
}

}  // namespace weft::datapath::xdp
