// Tests that output files are made or emptied only where nothing of anyone else is lost.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "native/files/created_file.h"
#include "tests/native/check.h"

namespace {

namespace fs = std::filesystem;

struct Folder {
  fs::path path;
  Folder() {
    std::string name = (fs::temp_directory_path() / "weft_create_XXXXXX").string();
    CHECK(::mkdtemp(name.data()) != nullptr);
    path = name;
  }
  ~Folder() { fs::remove_all(path); }
  std::string file(const std::string& name) const {
    const std::string made = (path / name).string();
    std::ofstream(made) << "precious";
    return made;
  }
};

std::string content(const std::string& file) {
  std::ifstream in(file);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

// Why the file is not made; empty if it is, and then it holds "new".
std::string problem(const std::string& file) {
  std::string error;
  const int made = weft::files::create_file(file, &error);
  CHECK_EQUAL(made >= 0, error.empty());
  if (made < 0) return error;
  CHECK_EQUAL(::write(made, "new", 3), 3);
  CHECK_EQUAL(::close(made), 0);
  CHECK_EQUAL(content(file), "new");
  return "";
}

}  // namespace

TEST(created_file__is_made_or_replaced) {
  const Folder folder;
  CHECK_EQUAL(problem((folder.path / "new").string()), "");
  CHECK_EQUAL(problem(folder.file("own")), "");
  CHECK_EQUAL(problem((folder.path / "absent/new").string()), "No such file or directory");
}

TEST(created_file__follows_no_link) {
  const Folder folder;
  const std::string target = folder.file("target"), link = (folder.path / "link").string();
  fs::create_symlink(target, link);
  CHECK_EQUAL(problem(link), "it is a symbolic link: name the file itself");
  CHECK_EQUAL(content(target), "precious");
  const std::string dangling = (folder.path / "dangling").string();
  fs::create_symlink(folder.path / "made", dangling);
  CHECK_EQUAL(problem(dangling), "it is a symbolic link: name the file itself");
  CHECK(!fs::exists(folder.path / "made"));
  fs::create_hard_link(target, folder.path / "other_name");
  CHECK(problem((folder.path / "other_name").string()).find("hard links") != std::string::npos);
  CHECK_EQUAL(content(target), "precious");
}

TEST(created_file__writes_into_no_pipe_and_no_device) {
  const Folder folder;
  const std::string pipe = (folder.path / "pipe").string();
  CHECK_EQUAL(::mkfifo(pipe.c_str(), 0600), 0);
  CHECK_EQUAL(problem(pipe), "No such device or address");  // nobody reads it
  const int reader = ::open(pipe.c_str(), O_RDONLY | O_NONBLOCK);
  CHECK_EQUAL(problem(pipe), "it is not a regular file: name another file");
  ::close(reader);
  CHECK_EQUAL(problem("/dev/null"), "it is not a regular file: name another file");
  CHECK_EQUAL(problem(folder.path.string()), "Is a directory");
}

TEST(created_file__empties_no_file_of_another_user) {
  if (::geteuid() != 0) {
    std::printf("skipped: only root can make files of another user\n");
    return;
  }
  const Folder folder;
  const std::string file = folder.file("theirs");
  CHECK_EQUAL(::chown(file.c_str(), 65'534, 65'534), 0);
  CHECK_EQUAL(problem(file),
              "it belongs to uid 65534, and this process runs as uid 0: remove it, or name another file");
  CHECK_EQUAL(content(file), "precious");
}
