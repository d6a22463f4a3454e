// Walks a path component by component, and checks each before it follows the next: what was checked can then be changed
// only by root and the user of this process, so nothing can be swapped before the file is opened.
#include "native/files/trusted_file.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>
#include <string_view>

namespace weft::files {
namespace {

constexpr int kLinksMax = 40;  // symbolic links in one path: the limit of the Linux kernel
// Access of the group counts as access of others: the members of the group are not known here, and if the file has an
// ACL, the group's bits show what the ACL permits at most.
constexpr mode_t kOthersWrite = S_IWGRP | S_IWOTH, kOthersRead = S_IRGRP | S_IROTH;

class Descriptor {
 public:
  explicit Descriptor(int number) noexcept : number_(number) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() {
    if (number_ >= 0) ::close(number_);
  }
  operator int() const noexcept { return number_; }

 private:
  int number_;
};

// Whether a user id is the overflow uid, and so stands for a user that does not exist in this user namespace, who may
// be root of the host. False if the namespace has a user with this id.
bool is_unmapped(uid_t user) {
  std::ifstream overflow("/proc/sys/kernel/overflowuid"), map("/proc/self/uid_map");
  uid_t stands_for_all = 65'534;
  overflow >> stands_for_all;
  if (user != stands_for_all) return false;
  for (unsigned long long inside, outside, count; map >> inside >> outside >> count;) {
    if (inside <= user && user - inside < count) return false;
  }
  return map.eof();
}

bool is_own(uid_t user) noexcept { return user == 0 || user == ::geteuid(); }

std::string owner_and_mode(const struct stat& found) {
  char mode[8];
  std::snprintf(mode, sizeof mode, "%04o", static_cast<unsigned>(found.st_mode & 07777));
  return "owner uid " + std::to_string(found.st_uid) + ", mode " + mode;
}

std::string foreign(const std::string& what, const struct stat& found) {
  const std::string us = std::to_string(::geteuid());
  return what + " belongs to another user (" + owner_and_mode(found) + "); it must belong to root or to uid " + us +
         ", which runs this process: use a copy of your own";
}

std::string open_to_others(const std::string& what, const char* can, const std::string& path, const char* remedy,
                           const struct stat& found) {
  return what + " can be " + can + " by other users (" + owner_and_mode(found) + "): chmod " + remedy + " " + path;
}

std::string directory_complaint(const std::string& path, const struct stat& found) {
  const std::string what = "its directory " + path;
  if (!is_own(found.st_uid) && !is_unmapped(found.st_uid)) return foreign(what, found);
  if ((found.st_mode & S_ISVTX) == 0 && (found.st_mode & kOthersWrite) != 0)
    return open_to_others(what, "written", path, "go-w", found);
  return "";
}

// The directory that this code was loaded from. A user who can write to that directory can replace the code itself, so
// files in and below it are trusted if only such users can write to them. So an installation that belongs to an
// administrator, or to a group of administrators, works for all users.
struct Installation {
  std::string directory;  // empty: unknown
  uid_t owner = 0;
  mode_t writable = 0;  // bits of kOthersWrite that the code's directory has
};

const Installation& installation() {
  static const Installation found = [] {
    Installation made;
    Dl_info here{};
    if (::dladdr(reinterpret_cast<const void*>(&check_library), &here) == 0 || here.dli_fname == nullptr) return made;
    const std::unique_ptr<char, void (*)(void*)> file(::realpath(here.dli_fname, nullptr), &std::free);
    if (file == nullptr) return made;
    const std::string_view path(file.get());
    const std::string directory(path.substr(0, path.rfind('/')));
    struct stat code{}, place{};
    if (directory.empty() || ::stat(file.get(), &code) != 0 || ::stat(directory.c_str(), &place) != 0) return made;
    made.directory = directory;
    made.owner = code.st_uid;
    made.writable = (place.st_mode & S_ISVTX) != 0 ? 0 : place.st_mode & kOthersWrite;
    return made;
  }();
  return found;
}

// Whether a file belongs to the installation, and only users who can replace the code can write to it. `path` has no
// symbolic links.
bool is_installed(const std::string& path) {
  const Installation& ours = installation();
  if (ours.directory.empty() || path.rfind(ours.directory + "/", 0) != 0) return false;
  for (std::size_t slash = ours.directory.size(); slash != std::string::npos;) {
    slash = path.find('/', slash + 1);
    struct stat found{};
    if (::lstat(path.substr(0, slash).c_str(), &found) != 0 || S_ISLNK(found.st_mode)) return false;
    if (!is_own(found.st_uid) && found.st_uid != ours.owner) return false;
    if ((found.st_mode & kOthersWrite & ~ours.writable) != 0) return false;
  }
  return true;
}

// Removes the first component from a path and returns it; empty at the end of the path.
std::string take_component(std::string* rest) {
  const std::size_t from = rest->find_first_not_of('/');
  if (from == std::string::npos) {
    rest->clear();
    return "";
  }
  const std::size_t until = std::min(rest->find('/', from), rest->size());
  std::string taken = rest->substr(from, until - from);
  rest->erase(0, until);
  return taken;
}

bool read_link(const std::string& path, std::string* target) {
  char text[PATH_MAX];
  const ssize_t bytes = ::readlink(path.c_str(), text, sizeof text);
  if (bytes <= 0 || bytes == sizeof text) return false;
  target->assign(text, static_cast<std::size_t>(bytes));
  return true;
}

// Checks every directory and symbolic link on the way to a file. `out` becomes the file's path without symbolic links.
bool walk(std::string rest, std::string* out, std::string* error) {
  std::string at;  // the directory reached; empty: the root
  struct stat found{};
  if (::stat("/", &found) == 0) *error = directory_complaint("/", found);
  for (int links = 0; error->empty();) {
    const std::string name = take_component(&rest);
    if (name.empty()) {
      *out = at.empty() ? "/" : at;
      return true;
    }
    if (name == ".") continue;
    if (name == "..") {
      at.resize(at.empty() ? 0 : at.rfind('/'));
      continue;
    }
    const std::string next = at + "/" + name;
    if (::lstat(next.c_str(), &found) != 0) {
      *error = std::strerror(errno);
    } else if (S_ISLNK(found.st_mode)) {
      std::string target;
      if (!is_own(found.st_uid) && !is_unmapped(found.st_uid)) {
        *error = foreign("the symbolic link " + next, found);
      } else if (++links > kLinksMax || !read_link(next, &target)) {
        *error = std::strerror(ELOOP);
      } else {
        if (target.front() == '/') at.clear();
        rest = target + "/" + rest;
      }
    } else {
      at = next;
      if (S_ISDIR(found.st_mode)) *error = directory_complaint(at, found);
    }
  }
  return false;
}

// Sets `out` to the path of a file without symbolic links; false if a directory or link on the way is not trusted.
bool resolve(const std::string& file, bool* installed, std::string* out, std::string* error) {
  error->clear();
  const std::unique_ptr<char, void (*)(void*)> real(::realpath(file.c_str(), nullptr), &std::free);
  if (real == nullptr) {
    *error = std::strerror(errno);
    return false;
  }
  *installed = is_installed(real.get());
  if (*installed) {
    *out = real.get();
    return true;
  }
  if (file.front() == '/') return walk(file, out, error);
  const std::unique_ptr<char, void (*)(void*)> here(::realpath(".", nullptr), &std::free);
  if (here != nullptr) return walk(std::string(here.get()) + "/" + file, out, error);
  *error = std::strerror(errno);
  return false;
}

std::string file_complaint(const std::string& file, Readers readers, bool installed, const struct stat& found) {
  if (!S_ISREG(found.st_mode)) return "it is not a regular file";
  if (installed && readers == Readers::anyone) return "";
  if (!is_own(found.st_uid)) return foreign("it", found);
  if ((found.st_mode & kOthersWrite) != 0) return open_to_others("it", "written", file, "go-w", found);
  if (readers == Readers::owner && (found.st_mode & kOthersRead) != 0)
    return open_to_others("it", "read", file, "go-rwx", found);
  return "";
}

// Opens a file for reading, or returns -1. Without O_NONBLOCK, opening a named pipe would wait for its writer.
int open_trusted(const std::string& file, Readers readers, std::string* path, std::string* error) {
  bool installed = false;
  if (!resolve(file, &installed, path, error)) return -1;
  const int opened = ::open(path->c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
  struct stat found{};
  if (opened < 0 || ::fstat(opened, &found) != 0) {
    *error = std::strerror(errno);
  } else {
    *error = file_complaint(*path, readers, installed, found);
    if (error->empty()) return opened;
  }
  if (opened >= 0) ::close(opened);
  return -1;
}

}  // namespace

bool read_trusted(const std::string& file, Readers readers, std::size_t bytes_max, std::string* out,
                  std::string* error) {
  std::string path;
  const Descriptor opened(open_trusted(file, readers, &path, error));
  if (opened < 0) return false;
  std::size_t total = 0;
  char buffer[65'536];
  for (;;) {
    const ssize_t got = ::read(opened, buffer, sizeof buffer);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) {
      *error = std::strerror(errno);
      return false;
    }
    if (got == 0) return true;
    total += static_cast<std::size_t>(got);
    if (total > bytes_max) {
      *error = "it is larger than " +
               (bytes_max < 1 << 20 ? std::to_string(bytes_max) + " bytes" : std::to_string(bytes_max >> 20) + " MB");
      return false;
    }
    out->append(buffer, static_cast<std::size_t>(got));
  }
}

bool check_library(const std::string& file, std::string* path, std::string* error) {
  const Descriptor opened(open_trusted(file, Readers::anyone, path, error));
  if (opened < 0) return false;
  struct statvfs system{};
  if (::fstatvfs(opened, &system) == 0 && (system.f_flag & ST_NOEXEC) != 0) {
    *error =
        "its file system is mounted noexec, so its code may not run: keep it in a directory of another file "
        "system, or remount that one with exec";
    return false;
  }
  return true;
}

}  // namespace weft::files
