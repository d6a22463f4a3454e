// When a runtime starts, counts the open descriptors and adds those that earlier runtimes may still open. The soft
// limit protects programs that use select(), which cannot handle descriptors above 1023 (see OPERATING.md).
#include "native/engine/setup/descriptor_budget.h"

#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <limits>
#include <new>
#include <utility>

#include "native/engine/log.h"

namespace weft::engine {
namespace {

// The control plane's epoll, eventfd and reserved descriptor, the event descriptor for callers, and /dev/null for
// forked children.
constexpr std::int64_t kControlDescriptors = 5;
// Control sockets of the first eight peer processes, two each if both ends dial. Further ones use the descriptors that
// are left to the program.
constexpr std::int64_t kControlSockets = 16;
constexpr std::int64_t kEngineDescriptors = 2;  // an engine's epoll instance and eventfd
constexpr std::int64_t kTableMin = 1024;        // descriptors that the process's table gets room for
constexpr std::int64_t kTableMax = 64 * 1024;   // 1 MB
constexpr std::int64_t kUnlimited = std::numeric_limits<std::int64_t>::max() / 2;
constexpr std::int64_t kCountedMax = 1 << 16;  // maximum number of descriptors checked if /proc cannot be read

std::atomic<std::int64_t> g_promised{0};
std::atomic<std::uint32_t> g_process{0};  // number of forks; a child ignores its parent's descriptor grants
std::atomic<std::int64_t> g_raised_from{0}, g_raised_to{0};  // soft limit before and after the raise; 0: not raised

std::int64_t number_of(rlim_t limit) noexcept {
  return limit == RLIM_INFINITY || limit > static_cast<rlim_t>(kUnlimited) ? kUnlimited
                                                                           : static_cast<std::int64_t>(limit);
}

std::int64_t count_open(std::int64_t soft) noexcept {
  std::int64_t count = 0;
  if (DIR* const directory = ::opendir("/proc/self/fd")) {
    while (const dirent* entry = ::readdir(directory)) count += entry->d_name[0] != '.' ? 1 : 0;
    ::closedir(directory);
    return count - 1;  // does not count the descriptor of `directory`
  }
  for (int descriptor = 0; descriptor < std::min(soft, kCountedMax); ++descriptor) {
    count += ::fcntl(descriptor, F_GETFD) >= 0 ? 1 : 0;
  }
  return count;
}

// Restores the soft limit in a forked child. Children made by posix_spawn or vfork run no fork handlers and inherit the
// raised limit.
void restore_limit_in_child() noexcept {
  const std::int64_t from = g_raised_from.load(), to = g_raised_to.exchange(0);
  rlimit limit{};
  if (to == 0 || ::getrlimit(RLIMIT_NOFILE, &limit) != 0 || number_of(limit.rlim_cur) != to) return;
  limit.rlim_cur = static_cast<rlim_t>(from);
  static_cast<void>(::setrlimit(RLIMIT_NOFILE, &limit));
}

void forget_promises_in_child() noexcept {
  g_promised.store(0);
  g_process.fetch_add(1);
}

// Makes the process's table of descriptors as large as it will have to be. Linux makes it twice as large when it is
// full, and a process that has threads waits for that, on a busy host for tens of milliseconds.
void widen_table(std::int64_t descriptors) noexcept {
  const int any = ::open("/", O_PATH | O_CLOEXEC);
  if (any < 0) return;
  const int last = ::fcntl(any, F_DUPFD_CLOEXEC, static_cast<int>(descriptors - 1));
  if (last >= 0) ::close(last);
  ::close(any);
}

std::string plural(std::int64_t count, const char* what) {
  return std::to_string(count) + " " + what + (count == 1 ? "" : "s");
}

std::string state_text(const DescriptorState& state, std::int64_t promised) {
  std::string text = "the limit is " + std::to_string(state.soft) + ", " + std::to_string(state.open) + " are open";
  if (promised != 0) text += ", " + std::to_string(promised) + " are reserved for other endpoints";
  return text + ", " + std::to_string(state.left_to_program()) + " are left to the program";
}

}  // namespace

std::int64_t DescriptorNeed::besides_paths() const noexcept {
  // Each device has one listening socket.
  return kControlDescriptors + kControlSockets + engines * kEngineDescriptors + devices;
}

std::int64_t DescriptorState::left_to_program() const noexcept { return std::min(kProgramDescriptorsMax, soft / 4); }

std::int64_t soft_descriptor_limit() noexcept {
  rlimit limit{};
  return ::getrlimit(RLIMIT_NOFILE, &limit) == 0 ? number_of(limit.rlim_cur) : kUnlimited;
}

DescriptorState descriptor_state() noexcept {
  DescriptorState state;
  rlimit limit{};
  const bool known = ::getrlimit(RLIMIT_NOFILE, &limit) == 0;
  state.soft = known ? number_of(limit.rlim_cur) : kUnlimited;
  state.hard = known ? number_of(limit.rlim_max) : kUnlimited;
  state.open = count_open(state.soft);
  return state;
}

bool raise_descriptor_limit() noexcept {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return false;
  const std::int64_t from = number_of(limit.rlim_cur);
  const std::int64_t to = std::min(number_of(limit.rlim_max), kDescriptorsRaisedMax);
  if (from >= to) return false;
  limit.rlim_cur = static_cast<rlim_t>(to);
  if (::setrlimit(RLIMIT_NOFILE, &limit) != 0) return false;
  g_raised_from.store(from);
  g_raised_to.store(to);
  static const bool restores = ::pthread_atfork(nullptr, nullptr, restore_limit_in_child) == 0;
  static_cast<void>(restores);
  try {
    log(LogLevel::info, "raised the soft limit on file descriptors from " + std::to_string(from) + " to " +
                            std::to_string(to) + " for the sockets of paths and peers");
  } catch (const std::bad_alloc&) {  // no memory for the log line; the limit is raised anyway
  }
  return true;
}

bool is_out_of_descriptors(int problem) noexcept { return problem == EMFILE || problem == ENFILE; }

std::string raise_limit_advice() { return "raise the limit (ulimit -n, LimitNOFILE= of a service)"; }

std::atomic<std::int64_t>* DescriptorGrant::promised() noexcept { return &g_promised; }

DescriptorGrant::~DescriptorGrant() {
  if (process_ == g_process.load()) g_promised.fetch_sub(fixed_ + paths_);
}

void DescriptorGrant::on_started() noexcept { g_promised.fetch_sub(std::exchange(fixed_, 0)); }

bool DescriptorGrant::take(DescriptorNeed* need, std::string* error) {
  const std::int64_t a_path = need->engines * need->devices, wanted = need->paths;
  const std::int64_t fixed = need->besides_paths();
  static const bool forgets = ::pthread_atfork(nullptr, nullptr, forget_promises_in_child) == 0;
  static_cast<void>(forgets);
  for (;;) {
    std::int64_t promised = g_promised.load();
    DescriptorState state = descriptor_state();
    if (need->total() > state.free() - promised && raise_descriptor_limit()) state = descriptor_state();
    const std::int64_t free = state.free() - promised - fixed;
    const std::int64_t paths = wanted == 0 ? 0 : std::min(wanted, std::max<std::int64_t>(free, 0) / a_path);
    if (free < 0 || (wanted != 0 && paths == 0)) {
      *error = plural(need->engines, "engine") + " on " + plural(need->devices, "device") +
               " with one path would take " + std::to_string(fixed + (wanted == 0 ? 0 : a_path)) +
               " file descriptors, more than there are: " + state_text(state, promised) + "; " + raise_limit_advice() +
               ", lower WEFT_ENGINES, or name fewer devices in WEFT_INTERFACES";
      return false;
    }
    if (!g_promised.compare_exchange_strong(promised, promised + fixed + a_path * paths)) continue;
    process_ = g_process.load();
    fixed_ = fixed;
    paths_ = a_path * paths;
    need->paths = paths;
    const std::int64_t used = state.open + promised + need->total();
    widen_table(std::min({std::max(used, kTableMin), kTableMax, state.soft}));
    if (paths < wanted) {
      log(LogLevel::warn, "using " + plural(paths, "path") + " instead of " + std::to_string(wanted) +
                              ", because there are too few file descriptors: " + state_text(state, promised) + "; " +
                              plural(need->engines, "engine") + " on " + plural(need->devices, "device") +
                              " with all paths take " + std::to_string(fixed + a_path * wanted) + "; " +
                              raise_limit_advice());
    }
    return true;
  }
}

}  // namespace weft::engine
