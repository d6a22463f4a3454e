// Reads NCCL's variables from the environment.
#include "native/datapath/nccl_variables.h"

#include <charconv>
#include <cstdlib>

namespace weft::datapath {

std::string nccl_variable(const char* name) {
  const char* const text = std::getenv(name);
  return text == nullptr ? "" : text;
}

bool nccl_number(const char* name, int most, int* out, std::string* error) {
  const std::string text = nccl_variable(name);
  if (text.empty() || text == "-1") return true;
  int value = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, code] = std::from_chars(text.data(), end, value);
  if (code == std::errc() && stop == end && value >= 0 && value <= most) {
    *out = value;
    return true;
  }
  *error = std::string(name) + "=" + text + " is not a number from 0 to " + std::to_string(most);
  return false;
}

}  // namespace weft::datapath
