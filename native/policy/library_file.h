// Whether a file can be given to dlopen, which believes all it reads: a cut or damaged one would end the process.
// Judges the shape of a library, not what its code does; opens nothing for running.
#pragma once

#include <cstddef>
#include <span>
#include <string>

namespace weft::policy {

// What is wrong with the file, in words and with a remedy; empty when dlopen may have it.
std::string file_complaint(const std::string& path);

// The same of its bytes: a shared object for this machine whose segments, sections and dynamic entries lie within it
// and say the same of each other.
std::string image_complaint(std::span<const std::byte> image);

}  // namespace weft::policy
