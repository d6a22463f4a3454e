// Finds and removes telemetry pages by their file names. Only files of this user are touched, and none is opened, so
// that another program's file with such a name does no harm.
#include "native/engine/telemetry_files.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <ctime>
#include <fstream>
#include <sstream>
#include <vector>

namespace weft::engine {
namespace {

constexpr mode_t kMarkedMode = 0400;

// Returns the start time of a process (field 22 of /proc/PID/stat); 0: unknown. Field 2, the name, may contain spaces,
// so fields are counted from its end.
std::uint64_t start_ticks(std::int32_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string text;
  if (!std::getline(file, text, '\0') || text.rfind(')') == std::string::npos) return 0;
  std::istringstream fields(text.substr(text.rfind(')') + 1));
  std::string field;
  for (int number = 3; number <= 22; ++number) {
    if (!(fields >> field)) return 0;
  }
  return std::strtoull(field.c_str(), nullptr, 10);
}

bool is_gone(const PageOwner& owner) {
  if (::kill(owner.pid, 0) != 0 && errno == ESRCH) return true;
  const std::uint64_t start = start_ticks(owner.pid);
  return start != 0 && owner.start_ticks != 0 && start != owner.start_ticks;
}

struct DeadPage {
  std::string path;
  std::int64_t marked_s;
};

}  // namespace

PageOwner this_process() {
  PageOwner owner;
  owner.user = ::geteuid();
  owner.pid = ::getpid();
  owner.start_ticks = start_ticks(owner.pid);
  struct stat space;
  if (::stat("/proc/self/ns/pid", &space) == 0) owner.pid_namespace = space.st_ino;
  return owner;
}

std::string page_name(const PageOwner& owner, std::uint32_t number) {
  std::ostringstream name;
  name << "weft-" << owner.user << '-' << owner.pid_namespace << '-' << owner.pid << '-' << owner.start_ticks << '-'
       << number << ".page";
  return name.str();
}

bool read_page_name(const std::string& name, PageOwner* out) {
  std::uint32_t number = 0;
  // sscanf may misread a number. That is harmless, because the name is compared below with the name made from the
  // numbers. NOLINTNEXTLINE(bugprone-unchecked-string-to-number-conversion)
  if (std::sscanf(name.c_str(), "weft-%" SCNu32 "-%" SCNu64 "-%" SCNd32 "-%" SCNu64 "-%" SCNu32, &out->user,
                  &out->pid_namespace, &out->pid, &out->start_ticks, &number) != 5) {
    return false;
  }
  return out->pid > 0 && name == page_name(*out, number);
}

std::string page_identity(const std::string& path) {
  const std::size_t begin = path.rfind('/') + 1 + std::string("weft-").size();
  return path.substr(begin, path.rfind('.') - begin);
}

std::size_t collect_dead_pages(const std::string& directory, std::int64_t grace_s) {
  const PageOwner self = this_process();
  DIR* listing = self.pid_namespace == 0 ? nullptr : ::opendir(directory.c_str());
  if (listing == nullptr) return 0;
  std::vector<DeadPage> dead;
  const std::int64_t now_s = std::time(nullptr);
  while (const dirent* entry = ::readdir(listing)) {
    PageOwner owner;
    struct stat state;
    const std::string path = directory + "/" + entry->d_name;
    if (!read_page_name(entry->d_name, &owner) || owner.user != self.user) continue;
    if (owner.pid_namespace != self.pid_namespace || !is_gone(owner)) continue;
    if (::lstat(path.c_str(), &state) != 0 || !S_ISREG(state.st_mode) || state.st_uid != self.user) continue;
    if ((state.st_mode & 07777) == kMarkedMode) {
      dead.push_back({path, state.st_mtime});
    } else if (::utimensat(AT_FDCWD, path.c_str(), nullptr, AT_SYMLINK_NOFOLLOW) == 0 &&
               ::chmod(path.c_str(), kMarkedMode) == 0) {
      dead.push_back({path, now_s});
    }
  }
  ::closedir(listing);
  std::sort(dead.begin(), dead.end(), [](const auto& a, const auto& b) { return a.marked_s > b.marked_s; });
  std::size_t removed = 0;
  for (std::size_t i = 0; i < dead.size(); ++i) {
    // The file system's clock may be ahead of time()'s, which is a tick late.
    const bool old = std::max<std::int64_t>(now_s - dead[i].marked_s, 0) >= grace_s;
    if ((old || i >= kDeadPagesMax) && ::unlink(dead[i].path.c_str()) == 0) ++removed;
  }
  return removed;
}

}  // namespace weft::engine
