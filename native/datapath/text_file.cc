// Reads files of text with a limit on their size.
#include "native/datapath/text_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>

namespace weft::datapath {

bool read_text_file(const std::string& file, std::size_t megabytes_max, std::string* out, std::string* error) {
  // Without O_NONBLOCK, opening a named pipe would wait for its writer.
  const int descriptor = ::open(file.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  struct stat found{};
  if (descriptor >= 0 && ::fstat(descriptor, &found) == 0 && !S_ISREG(found.st_mode)) {
    ::close(descriptor);
    *error = "it is not a file";
    return false;
  }
  std::FILE* const stream = descriptor >= 0 ? ::fdopen(descriptor, "rb") : nullptr;
  if (stream == nullptr) {
    *error = std::strerror(errno);
    if (descriptor >= 0) ::close(descriptor);
    return false;
  }
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> opened(stream, &std::fclose);
  char buffer[65'536];
  for (std::size_t got; (got = std::fread(buffer, 1, sizeof buffer, opened.get())) != 0;) {
    out->append(buffer, got);
    if (out->size() > megabytes_max << 20) {
      *error = "it is larger than " + std::to_string(megabytes_max) + " MB";
      return false;
    }
  }
  if (std::ferror(opened.get()) == 0) return true;
  *error = std::strerror(errno);
  return false;
}

}  // namespace weft::datapath
