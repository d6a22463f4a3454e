// Description of a policy in use, as callers get it, and the kinds of policy change.
#pragma once

#include <cstdint>
#include <string>

namespace weft::engine {

// A policy that a connection uses, or the process's default policy.
struct PolicyInfo {
  std::string family, name, source_sha256;
  std::string params_fields;  // a line per parameter: name, i (int64) or f (float64), byte offset, array length
  std::string params;         // the bytes of the struct that holds the parameters' values
};

// What a change replaces: the policy, or only the parameters of the present policy, which then keeps its state.
enum class PolicyChange : std::int32_t { policy, params };

}  // namespace weft::engine
