// Detects that this process is a forked child. It reads a page that the kernel wipes at fork, which costs a memory load
// per call instead of a system call.
#include "native/plugin/fork_check.h"

#include <sys/mman.h>
#include <unistd.h>

#include <atomic>

namespace weft::nccl {
namespace {

constexpr int kParent = 1;

std::atomic<std::atomic<int>*> g_page{nullptr};
// The parent's process id, compared with getpid() on each call if the kernel cannot wipe a page at fork.
std::atomic<pid_t> g_parent_pid{0};

}  // namespace

bool mark_parent() noexcept {
  if (g_page.load(std::memory_order_acquire) != nullptr || g_parent_pid.load() != 0) return !in_forked_child();
  const auto page_bytes = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  void* memory = mmap(nullptr, page_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return false;
  if (madvise(memory, page_bytes, MADV_WIPEONFORK) != 0) {
    munmap(memory, page_bytes);
    g_parent_pid.store(getpid());
    return true;
  }
  auto* page = static_cast<std::atomic<int>*>(memory);
  page->store(kParent, std::memory_order_relaxed);
  g_page.store(page, std::memory_order_release);
  return true;
}

bool in_forked_child() noexcept {
  if (const auto* page = g_page.load(std::memory_order_acquire)) {
    return page->load(std::memory_order_relaxed) != kParent;
  }
  const pid_t parent = g_parent_pid.load(std::memory_order_relaxed);
  return parent != 0 && parent != getpid();
}

}  // namespace weft::nccl
