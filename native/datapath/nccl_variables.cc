// Reads NCCL's variables from the environment.
#include "native/datapath/nccl_variables.h"

#include <cctype>
#include <cerrno>
#include <cstdlib>

namespace weft::datapath {

std::string nccl_variable(const char* name) {
  const char* const text = std::getenv(name);
  return text == nullptr ? "" : text;
}

bool nccl_number(const char* name, int most, int* out, std::string* error) {
  const std::string text = nccl_variable(name);
  if (text.empty()) return true;
  char* end = nullptr;
  errno = 0;
  const long long value = std::strtoll(text.c_str(), &end, 0);  // as NCCL: also 0x6a
  while (std::isspace(static_cast<unsigned char>(*end)) != 0) ++end;
  const bool whole = end != text.c_str() && *end == '\0' && errno == 0;
  if (whole && value < 0) return true;
  if (whole && value <= most) {
    *out = static_cast<int>(value);
    return true;
  }
  *error = std::string(name) + "=" + text + " is not a number from 0 to " + std::to_string(most);
  return false;
}

}  // namespace weft::datapath
