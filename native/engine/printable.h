// Text that a peer sent, made safe for a log line, an error or a terminal.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace weft::engine {

// The first `most` bytes of `text`, with bytes other than printable ASCII (0x20 to 0x7e) replaced by '?'.
std::string printable(std::string_view text, std::size_t most);

}  // namespace weft::engine
