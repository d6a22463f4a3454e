// Opens an existing file without O_TRUNC, and empties it only after fstat() has shown that it belongs to this user.
#include "native/files/created_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace weft::files {
namespace {

std::string complaint(const struct stat& found) {
  if (!S_ISREG(found.st_mode)) return "it is not a regular file: name another file";
  if (found.st_uid != ::geteuid()) {
    return "it belongs to uid " + std::to_string(found.st_uid) + ", and this process runs as uid " +
           std::to_string(::geteuid()) + ": remove it, or name another file";
  }
  if (found.st_nlink > 1) return "it has several names (hard links): remove it, or name another file";
  return "";
}

}  // namespace

int create_file(const std::string& path, std::string* error) {
  constexpr int kFlags = O_WRONLY | O_NOFOLLOW | O_CLOEXEC;
  int file = ::open(path.c_str(), kFlags | O_CREAT | O_EXCL, 0644);
  if (file >= 0) return file;
  // Without O_NONBLOCK, opening a named pipe would wait for its reader.
  if (errno == EEXIST) file = ::open(path.c_str(), kFlags | O_NONBLOCK);
  if (file < 0) {
    *error = errno == ELOOP ? "it is a symbolic link: name the file itself" : std::strerror(errno);
    return -1;
  }
  struct stat found{};
  *error = ::fstat(file, &found) != 0 ? std::strerror(errno) : complaint(found);
  if (error->empty() && ::ftruncate(file, 0) != 0) *error = std::strerror(errno);
  if (error->empty()) return file;
  ::close(file);
  return -1;
}

}  // namespace weft::files
