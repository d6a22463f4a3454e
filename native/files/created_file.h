// Creates output files at paths that another user may have prepared.
#pragma once

#include <string>

namespace weft::files {

// Creates a file for writing with mode 0644, or empties an existing one, if it is a regular file that belongs to the
// user of this process and has no further hard links. Returns the descriptor, or -1 with the reason and the remedy in
// `error`: no file is then changed. Symbolic links are not followed.
int create_file(const std::string& path, std::string* error);

}  // namespace weft::files
