// Reads files of text with a limit on their size.
#include "native/datapath/text_file.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>

namespace weft::datapath {

bool read_text_file(const std::string& file, std::size_t megabytes_max, std::string* out, std::string* error) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> opened(std::fopen(file.c_str(), "rbe"), &std::fclose);
  char buffer[65'536];
  if (opened != nullptr) {
    for (std::size_t got; (got = std::fread(buffer, 1, sizeof buffer, opened.get())) != 0;) {
      out->append(buffer, got);
      if (out->size() > megabytes_max << 20) {
        *error = "it is larger than " + std::to_string(megabytes_max) + " MB";
        return false;
      }
    }
    if (std::ferror(opened.get()) == 0) return true;
  }
  *error = std::strerror(errno);
  return false;
}

}  // namespace weft::datapath
