// Text that a peer sent, made fit for a log line or an error: one line of plain ASCII, of bounded length.
// Everything else becomes '?': no newline forges a line, no escape reaches a terminal.
#pragma once

#include <cstddef>
#include <string>

namespace weft::engine {

inline std::string printable(const std::string& text, std::size_t most) {
  std::string plain = text.substr(0, most);
  for (char& each : plain) {
    if (each < 0x20 || each > 0x7e) each = '?';
  }
  return plain;
}

}  // namespace weft::engine
