// Tells ranks with different tuning rules apart before they choose differently, after which NCCL would hang.
#pragma once

#include <cstdint>
#include <vector>

#include "native/plugin/tuner/table.h"

namespace weft::nccl {

// A number of the rules, equal for equal rules; 0: there are none.
std::uint64_t digest_of(const std::vector<Rule>& rules) noexcept;

// The digest of WEFT_TUNE's file, which is read once; 0: there is no file. 1: it cannot be read. Only ranks that
// connect over weft are told apart by it, and a file must not change while its job starts.
std::uint64_t rules_digest() noexcept;

}  // namespace weft::nccl
