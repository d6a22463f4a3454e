// Validates the structure of a shared library before dlopen, which trusts its input: a truncated or damaged file could
// crash the process. The code in the library is not examined.
#pragma once

#include <cstddef>
#include <span>
#include <string>

namespace weft::policy {

// Returns what is wrong with the file and what to do about it; empty if it may be passed to dlopen.
std::string file_complaint(const std::string& path);

// Like file_complaint(), for a file's content: it must be a shared object for this machine whose segments, sections and
// dynamic entries lie within the file and agree with each other.
std::string image_complaint(std::span<const std::byte> image);

}  // namespace weft::policy
