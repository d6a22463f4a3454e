// Opens files that steer the process (plans, weights, secrets, libraries), if no other user can change their contents.
//
// A file is trusted if its owner is root or the user that this process runs as, and nobody else can write to it. The
// same holds for every directory and symbolic link on the way to it, because who can write to a directory can put
// another file in place. In a directory with the sticky bit, such as /tmp, others can only add files.
// The installation's own files are trusted as much as the code that is running: see trusted_file.cc.
#pragma once

#include <cstddef>
#include <string>

namespace weft::files {

enum class Readers {
  anyone,
  owner,  // nobody else may read the file: it holds a secret
};

// Appends the content of the file to `out`. False, with the reason and the remedy in `error`, if it cannot be read, is
// not trusted or is larger than bytes_max.
bool read_trusted(const std::string& file, Readers readers, std::size_t bytes_max, std::string* out,
                  std::string* error);

// Checks a shared library before dlopen, which runs its constructors. `path` becomes the path to give to dlopen: it has
// no symbolic links, and only root and the user of this process can change what it leads to. False, with the reason and
// the remedy in `error`, if the library is not trusted, or its file system does not allow code to run.
bool check_library(const std::string& file, std::string* path, std::string* error);

}  // namespace weft::files
