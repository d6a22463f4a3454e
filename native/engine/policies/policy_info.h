// What a caller is told of a policy in force, and how it asks for another one.
#pragma once

#include <cstdint>
#include <string>

namespace weft::engine {

// A policy that decides for a connection, or for those without a choice of their own.
struct PolicyInfo {
  std::string family, name, source_sha256;
  std::string params_fields;  // a line for each: name, i or f, offset in bytes, count
  std::string params;         // the record, as bytes
};

// Another policy, or the one in force with other parameters (its state stays).
enum class PolicyChange : std::int32_t { policy, params };

}  // namespace weft::engine
