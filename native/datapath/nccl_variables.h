// NCCL's own variables, which count where weft's knobs say nothing.
#pragma once

#include <string>

namespace weft::datapath {

// The variable's text; empty: it is not set.
std::string nccl_variable(const char* name);

// The number from 0 to `most` of a variable; -1, NCCL's text for "unset", or an empty one: *out stays. Returns false
// with one line in `error` for any other text.
bool nccl_number(const char* name, int most, int* out, std::string* error);

}  // namespace weft::datapath
