// Makes and maps the memory that two processes share.
#include "native/local/segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <new>

namespace weft::local {
namespace {

constexpr std::uint64_t kMagic = 0x33304c5446455721;  // differs with each layout of Shared
constexpr std::uint64_t kReserveBytes = 32 * 1024;
static_assert(kRingBytes % kReserveBytes == 0);
constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

Shared* map(int descriptor) noexcept {
  void* const at = ::mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
  return at == MAP_FAILED ? nullptr : static_cast<Shared*>(at);
}

std::string failed(const char* what) { return std::string(what) + ": " + std::strerror(errno); }

}  // namespace

const Mark& own_mark() noexcept {
  static const Mark mark = [] {
    Mark made;
    while (::getrandom(made.words.data(), sizeof made.words, 0) != static_cast<ssize_t>(sizeof made.words)) {
    }
    return made;
  }();
  return mark;
}

std::unique_ptr<Segment> Segment::make(int* descriptor, std::string* error) noexcept {
  const int made = ::memfd_create("weft-local", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (made < 0) {
    *error = failed("memfd_create");
    return nullptr;
  }
  // Takes memory for all but the rings now: lack of it must be an error here, not a signal at a later access.
  const bool ready = ::ftruncate(made, sizeof(Shared)) == 0 && ::fallocate(made, 0, 0, offsetof(Shared, rings)) == 0 &&
                     ::fcntl(made, F_ADD_SEALS, kSeals) == 0;
  Shared* const shared = ready ? map(made) : nullptr;
  std::unique_ptr<Segment> segment(shared == nullptr ? nullptr : new (std::nothrow) Segment(shared));
  if (segment == nullptr) {
    *error = failed("shared memory");
    if (shared != nullptr) ::munmap(shared, sizeof(Shared));
    ::close(made);
    return nullptr;
  }
  shared->magic.store(kMagic, std::memory_order_release);
  *descriptor = made;
  return segment;
}

std::unique_ptr<Segment> Segment::adopt(int descriptor, std::string* error) noexcept {
  struct stat facts{};
  const int seals = ::fcntl(descriptor, F_GET_SEALS);
  const bool whole = seals >= 0 && (seals & kSeals) == kSeals && ::fstat(descriptor, &facts) == 0 &&
                     facts.st_size == static_cast<off_t>(sizeof(Shared));
  Shared* const shared = whole ? map(descriptor) : nullptr;
  ::close(descriptor);
  if (shared == nullptr) {
    *error = "the peer's memory is not of the agreed size, or not sealed";
    return nullptr;
  }
  std::unique_ptr<Segment> segment(new (std::nothrow) Segment(shared));
  if (segment == nullptr) ::munmap(shared, sizeof(Shared));
  if (segment == nullptr || shared->magic.load(std::memory_order_acquire) != kMagic) {
    *error = "the peer's memory has another layout";
    return nullptr;
  }
  return segment;
}

bool Segment::reserve(std::size_t ring, std::uint64_t bytes) noexcept {
  std::uint64_t& reserved = reserved_[ring];
  while (reserved < std::min(bytes, kRingBytes)) {
    constexpr int kPopulateWrite = 23;  // MADV_POPULATE_WRITE, since Linux 5.14
    const int result = ::madvise(&shared_->rings[ring][reserved], kReserveBytes, kPopulateWrite);
    if (result != 0 && errno != EINVAL) return false;  // EINVAL: an older kernel, which takes pages as they are written
    reserved += kReserveBytes;
  }
  return true;
}

void Segment::part() noexcept {
  const std::uint32_t sleepers[] = {shared_->sides[0].sleepers.load(), shared_->sides[1].sleepers.load()};
  const std::int32_t bells[] = {shared_->sides[0].bell.load(), shared_->sides[1].bell.load()};
  constexpr int kFlags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE;
  // Not by mmap(), which the thread sanitizer takes for a write of all that others read there. The kernel puts each
  // page in its place as a whole.
  if (::syscall(SYS_mmap, shared_, sizeof(Shared), PROT_READ | PROT_WRITE, kFlags, -1, 0) == -1) return;
  for (std::size_t i = 0; i < 2; ++i) {
    // Who sleeps from now on must see that the bell was rung.
    shared_->sides[i].bell.store(bells[i] + 1);
    shared_->sides[i].sleepers.fetch_add(sleepers[i]);
  }
}

Segment::~Segment() { ::munmap(shared_, sizeof(Shared)); }

}  // namespace weft::local
