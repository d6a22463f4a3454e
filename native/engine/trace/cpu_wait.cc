// The second number of a thread's schedstat is the time in ns that it has waited on a run queue; time for which a quota
// throttled its cgroup is part of it.
#include "native/engine/trace/cpu_wait.h"

#include <dirent.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <string_view>
#include <system_error>
#include <utility>

namespace weft::engine {
namespace {

// Returns the number that a text begins with; -1: it begins with none, or with a negative one.
std::int64_t number(std::string_view text) noexcept {
  std::int64_t found = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), found);
  return error == std::errc() && found >= 0 ? found : -1;
}

// Returns the time that a thread has waited; -1: it has ended, or the kernel does not count it.
std::int64_t waited_ns(int tasks, const char* thread) noexcept {
  char path[32], bytes[128];
  if (std::snprintf(path, sizeof path, "%s/schedstat", thread) >= static_cast<int>(sizeof path)) return -1;
  const int file = ::openat(tasks, path, O_RDONLY | O_CLOEXEC);
  if (file < 0) return -1;
  const ssize_t count = ::read(file, bytes, sizeof bytes);
  ::close(file);
  const std::string_view text(bytes, count > 0 ? static_cast<std::size_t>(count) : 0);
  const std::size_t second = text.find(' ');
  return second == text.npos ? -1 : number(text.substr(second + 1));
}

}  // namespace

CpuWait::CpuWait(std::string tasks) : tasks_(std::move(tasks)) {
  before_.reserve(kThreadsMax);
  now_.reserve(kThreadsMax);
}

void CpuWait::read() noexcept {
  before_.swap(now_);
  now_.clear();
  DIR* const tasks = ::opendir(tasks_.c_str());
  if (tasks == nullptr) return;
  while (now_.size() < kThreadsMax) {
    const dirent* const entry = ::readdir(tasks);
    if (entry == nullptr) break;
    const std::int64_t id = number(entry->d_name);
    const std::int64_t waited = id > 0 ? waited_ns(::dirfd(tasks), entry->d_name) : -1;
    if (waited >= 0) now_.push_back({id, waited});
  }
  ::closedir(tasks);
  std::sort(now_.begin(), now_.end(), [](const Thread& one, const Thread& other) { return one.id < other.id; });
}

std::int64_t CpuWait::longest_ns() noexcept {
  read();
  std::int64_t longest = -1;
  for (const Thread& thread : now_) {
    const auto same = std::lower_bound(before_.begin(), before_.end(), thread.id,
                                       [](const Thread& one, std::int64_t id) { return one.id < id; });
    if (same == before_.end() || same->id != thread.id) continue;
    // A thread that has begun since may have the id of one that has ended, and has waited less.
    longest = std::max(longest, std::max<std::int64_t>(thread.waited_ns - same->waited_ns, 0));
  }
  return longest;
}

}  // namespace weft::engine
