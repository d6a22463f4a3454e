// NCCL's own variables, which count where weft's knobs say nothing.
#pragma once

#include <string>

namespace weft::datapath {

// The variable's text; empty: it is not set.
std::string nccl_variable(const char* name);

// The number from 0 to `most` of a variable, in NCCL's syntax (106, 0x6a). If it is not set or negative, *out stays.
// Returns false with one line in `error` for any other text.
bool nccl_number(const char* name, int most, int* out, std::string* error);

}  // namespace weft::datapath
