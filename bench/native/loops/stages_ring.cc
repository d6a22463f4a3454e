// Opens an io_uring and moves entries through its two queues.
#include "bench/native/loops/stages_ring.h"

#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <vector>

#include "bench/native/loops/stages_ends.h"

namespace weft::bench::stages {

Ring::~Ring() {
  if (entries_map_ != nullptr) ::munmap(entries_map_, entries_bytes_);
  if (rings_ != nullptr) ::munmap(rings_, rings_bytes_);
  if (descriptor_ >= 0) ::close(descriptor_);
}

bool Ring::open(std::uint8_t opcode, std::string* missing) {
  params_.flags = IORING_SETUP_CQSIZE | kSingleIssuer | kDeferTaskrun;
  params_.cq_entries = kCompletions;
  descriptor_ = static_cast<int>(::syscall(SYS_io_uring_setup, kEntries, &params_));
  if (descriptor_ < 0) {
    *missing = refused("io_uring_setup", errno);
    return false;
  }
  if ((params_.features & IORING_FEAT_SINGLE_MMAP) == 0 || !knows(opcode)) {
    *missing = "io_uring lacks operation " + std::to_string(opcode);
    return false;
  }
  const io_sqring_offsets& sq = params_.sq_off;
  const io_cqring_offsets& cq = params_.cq_off;
  rings_bytes_ =
      std::max(sq.array + params_.sq_entries * sizeof(unsigned), cq.cqes + params_.cq_entries * sizeof(io_uring_cqe));
  entries_bytes_ = params_.sq_entries * sizeof(io_uring_sqe);
  const auto map = [this](std::size_t bytes, off_t where) {
    void* const at = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, descriptor_, where);
    return at == MAP_FAILED ? nullptr : at;
  };
  rings_ = map(rings_bytes_, IORING_OFF_SQ_RING);
  entries_map_ = map(entries_bytes_, IORING_OFF_SQES);
  if (rings_ == nullptr || entries_map_ == nullptr) {
    *missing = refused("mmap of an io_uring", errno);
    return false;
  }
  auto* const base = static_cast<std::uint8_t*>(rings_);
  const auto word = [base](unsigned offset) { return reinterpret_cast<unsigned*>(base + offset); };
  submit_tail_ = word(sq.tail);
  complete_head_ = word(cq.head);
  complete_tail_ = word(cq.tail);
  completions_ = reinterpret_cast<io_uring_cqe*>(base + cq.cqes);
  entries_ = static_cast<io_uring_sqe*>(entries_map_);
  for (unsigned i = 0; i < params_.sq_entries; ++i) word(sq.array)[i] = i;
  return true;
}

bool Ring::knows(std::uint8_t opcode) const {
  std::vector<std::uint8_t> room(sizeof(io_uring_probe) + 256 * sizeof(io_uring_probe_op));
  auto* const probe = reinterpret_cast<io_uring_probe*>(room.data());
  if (::syscall(SYS_io_uring_register, descriptor_, IORING_REGISTER_PROBE, probe, 256) < 0) return false;
  return probe->last_op >= opcode && (probe->ops[opcode].flags & IO_URING_OP_SUPPORTED) != 0;
}

bool Ring::register_with(unsigned what, const void* argument, unsigned count, const char* name, std::string* missing) {
  if (::syscall(SYS_io_uring_register, descriptor_, what, argument, count) >= 0) return true;
  *missing = refused(name, errno);
  return false;
}

io_uring_sqe* Ring::prepare() {
  io_uring_sqe* const entry = &entries_[(*submit_tail_ + prepared_++) & (params_.sq_entries - 1)];
  std::memset(entry, 0, sizeof *entry);
  return entry;
}

int Ring::enter(unsigned wait_for) {
  std::atomic_ref<unsigned>(*submit_tail_).store(*submit_tail_ + prepared_, std::memory_order_release);
  const unsigned submits = prepared_;
  prepared_ = 0;
  for (;;) {
    const long done = ::syscall(SYS_io_uring_enter, descriptor_, submits, wait_for, IORING_ENTER_GETEVENTS, nullptr, 0);
    if (done >= 0) return static_cast<unsigned>(done) == submits ? 0 : -EBUSY;
    if (errno != EINTR) return -errno;
  }
}

const io_uring_cqe* Ring::peek() const {
  const unsigned head = *complete_head_;
  if (head == std::atomic_ref<unsigned>(*complete_tail_).load(std::memory_order_acquire)) return nullptr;
  return &completions_[head & (params_.cq_entries - 1)];
}

void Ring::done() { std::atomic_ref<unsigned>(*complete_head_).store(*complete_head_ + 1, std::memory_order_release); }

}  // namespace weft::bench::stages
