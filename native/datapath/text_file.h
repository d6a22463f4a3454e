// Reads a whole file of text.
#pragma once

#include <cstddef>
#include <string>

namespace weft::datapath {

// Appends the content to `out`. False, with the reason in `error`, if it cannot be read or is larger than
// megabytes_max.
bool read_text_file(const std::string& file, std::size_t megabytes_max, std::string* out, std::string* error);

}  // namespace weft::datapath
