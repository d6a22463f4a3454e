// Replaces unprintable bytes one by one, whatever the locale: a character of several bytes becomes several question
// marks.
#include "native/engine/printable.h"

#include <algorithm>

namespace weft::engine {

std::string printable(std::string_view text, std::size_t most) {
  std::string shown(text.substr(0, most));
  std::replace_if(shown.begin(), shown.end(), [](char byte) { return byte < 0x20 || byte > 0x7e; }, '?');
  return shown;
}

}  // namespace weft::engine
