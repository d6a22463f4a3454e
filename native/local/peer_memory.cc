// Copies with process_vm_readv, which reads one address space from the beginning of the call to its end.
#include "native/local/peer_memory.h"

#include <sys/uio.h>

#include <cerrno>

namespace weft::local {

bool PeerMemory::open(const Side& peer) noexcept {
  mark_address_ = peer.mark_address.load(std::memory_order_acquire);
  for (std::size_t i = 0; i < mark_.words.size(); ++i) mark_.words[i] = peer.mark[i].load(std::memory_order_relaxed);
  if (process_ <= 0 || mark_address_ == 0) return false;
  const Copied copied = copy(nullptr, 0, 0);
  if (copied == Copied::unreadable) error_ = errno;
  return copied == Copied::whole;
}

PeerMemory::Copied PeerMemory::copy(void* to, std::uint64_t address, std::uint64_t bytes) const noexcept {
  Mark seen;
  // The mark comes last: the kernel ends the call at the first address that it cannot read.
  const iovec here[] = {{to, bytes}, {seen.words.data(), sizeof seen.words}};
  const iovec there[] = {{reinterpret_cast<void*>(address), bytes},
                         {reinterpret_cast<void*>(mark_address_), sizeof seen.words}};
  errno = EFAULT;  // for a call that ends early
  const ssize_t copied = ::process_vm_readv(process_, here, 2, there, 2, 0);
  if (copied == static_cast<ssize_t>(bytes + sizeof seen.words))
    return seen.words == mark_.words ? Copied::whole : Copied::gone;
  const int why = errno;
  // Another program has other memory at these addresses, or none.
  const bool gone = why == ESRCH || (why == EFAULT && (bytes == 0 || copy(nullptr, 0, 0) != Copied::whole));
  errno = why;
  return gone ? Copied::gone : Copied::unreadable;
}

}  // namespace weft::local
