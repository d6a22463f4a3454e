// A digest by which ranks detect that their tuning rules differ, before they choose different algorithms and NCCL
// hangs.
#pragma once

#include <cstdint>
#include <vector>

#include "native/plugin/tuner/table.h"

namespace weft::nccl {

// A hash of the tuning rules; 0: there are none.
std::uint64_t digest_of(const std::vector<Rule>& rules) noexcept;

// The digest of WEFT_TUNE's file, which is read once; 0: there is no file. 1: it cannot be read. Only ranks that
// connect over weft compare it. The file must not change while the job starts.
std::uint64_t rules_digest() noexcept;

}  // namespace weft::nccl
