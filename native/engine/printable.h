// Makes text that a peer sent safe for log lines, error messages and terminals.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace weft::engine {

// Returns the first `most` bytes of `text`, with bytes other than printable ASCII (0x20 to 0x7e) replaced by '?'.
std::string printable(std::string_view text, std::size_t most);

}  // namespace weft::engine
