// Splits the lists of device names in knobs.
#include "native/datapath/device.h"

namespace weft::datapath {

std::vector<std::string> split_names(const std::string& text, char separator) {
  std::vector<std::string> parts;
  std::string part;
  for (const char c : text + separator) {
    if (c != separator) {
      if (c != ' ') part += c;
      continue;
    }
    if (!part.empty()) parts.push_back(part);
    part.clear();
  }
  return parts;
}

}  // namespace weft::datapath
