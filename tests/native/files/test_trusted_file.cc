// Tests that files which steer the process are used only if no other user can change them, or read a secret.
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "native/files/trusted_file.h"
#include "native/policy/loader.h"
#include "tests/native/check.h"

namespace {

using weft::files::check_library;
using weft::files::read_trusted;
using weft::files::Readers;
namespace fs = std::filesystem;

constexpr uid_t kNobody = 65'534;

// A private directory with a file, removed at the end.
struct Folder {
  fs::path path;
  Folder() {
    std::string name = (fs::temp_directory_path() / "weft_trust_XXXXXX").string();
    CHECK(::mkdtemp(name.data()) != nullptr);
    path = fs::canonical(name);
  }
  ~Folder() { fs::remove_all(path); }
  std::string file(const std::string& name, mode_t mode = 0600) const {
    const std::string made = (path / name).string();
    std::ofstream(made) << "content";
    CHECK_EQUAL(::chmod(made.c_str(), mode), 0);
    return made;
  }
  std::string directory(const std::string& name, mode_t mode) const {
    const std::string made = (path / name).string();
    CHECK_EQUAL(::mkdir(made.c_str(), 0700), 0);
    CHECK_EQUAL(::chmod(made.c_str(), mode), 0);
    return made;
  }
};

// Why the file is not read; empty if it is.
std::string problem(const std::string& file, Readers readers = Readers::anyone) {
  std::string text, error;
  const bool good = read_trusted(file, readers, 1 << 20, &text, &error);
  CHECK_EQUAL(good, error.empty());
  CHECK_EQUAL(text, good ? "content" : "");
  CHECK(error.find('\n') == std::string::npos);
  return error;
}

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

// Whether this process can give files to other users. If not, says that a part of the test is skipped.
bool is_root() {
  if (::geteuid() == 0) return true;
  std::printf("skipped: only root can make files of another user\n");
  return false;
}

void give(const std::string& path, uid_t user) { CHECK_EQUAL(::lchown(path.c_str(), user, user), 0); }

}  // namespace

TEST(trusted_file__ones_own_file_is_read) {
  const Folder folder;
  CHECK_EQUAL(problem(folder.file("a")), "");
  CHECK_EQUAL(problem(folder.file("b", 0644)), "");
  CHECK_EQUAL(problem(folder.file("c"), Readers::owner), "");
  fs::create_symlink("a", folder.path / "link");
  CHECK_EQUAL(problem((folder.path / "link").string()), "");
  fs::create_symlink(folder.path, folder.path / "round");
  CHECK_EQUAL(problem((folder.path / "round/round/../" / folder.path.filename() / "./a").string()), "");
}

TEST(trusted_file__a_relative_path_is_that_of_the_working_directory) {
  const Folder folder;
  folder.file("a");
  const fs::path before = fs::current_path();
  fs::current_path(folder.path);
  const std::string here = problem("a");
  fs::current_path(before);
  CHECK_EQUAL(here, "");
}

TEST(trusted_file__what_is_no_file_is_refused) {
  const Folder folder;
  CHECK_EQUAL(problem((folder.path / "absent").string()), "No such file or directory");
  CHECK_EQUAL(problem(""), "No such file or directory");
  CHECK_EQUAL(problem(folder.path.string()), "it is not a regular file");
  const std::string pipe = (folder.path / "pipe").string();
  CHECK_EQUAL(::mkfifo(pipe.c_str(), 0600), 0);  // nobody writes into it
  CHECK_EQUAL(problem(pipe), "it is not a regular file");
  fs::create_symlink("endless", folder.path / "endless");
  CHECK_EQUAL(problem((folder.path / "endless").string()), "Too many levels of symbolic links");
  std::string text, error;
  CHECK(!read_trusted(folder.file("large"), Readers::anyone, 3, &text, &error));
  CHECK_EQUAL(error, "it is larger than 3 bytes");
}

TEST(trusted_file__what_others_can_write_is_refused) {
  const Folder folder;
  const std::string file = folder.file("a", 0646);
  CHECK(has(problem(file), "it can be written by other users"));
  CHECK(has(problem(file), "mode 0646): chmod go-w " + file));
  const std::string open = folder.directory("open", 0757), inner = folder.file("open/a");
  CHECK(has(problem(inner), "its directory " + open + " can be written by other users"));
  fs::create_directory(folder.path / "open/deeper");
  CHECK(has(problem(folder.file("open/deeper/a")), open));  // who can write there can swap the whole directory
  fs::create_symlink(inner, folder.path / "to_open");
  CHECK(has(problem((folder.path / "to_open").string()), open));
  fs::create_symlink(folder.file("safe"), folder.path / "open/to_safe");
  CHECK(has(problem((folder.path / "open/to_safe").string()), open));
  fs::create_directory_symlink(folder.path, folder.path / "open/up");
  CHECK(has(problem((folder.path / "open/up/safe").string()), open));
  CHECK_EQUAL(::chmod(open.c_str(), 01777), 0);  // as /tmp: others can only add files
  CHECK_EQUAL(problem(inner), "");
}

TEST(trusted_file__the_group_counts_as_others) {
  const Folder folder;
  CHECK(has(problem(folder.file("a", 0664)), "chmod go-w"));
  CHECK(has(problem(folder.file("b", 0640), Readers::owner), "chmod go-rwx"));
  const std::string shared = folder.directory("shared", 0770);
  CHECK(has(problem(folder.file("shared/c")), shared));
}

TEST(trusted_file__a_secret_that_others_can_read_is_refused) {
  const Folder folder;
  const std::string file = folder.file("a", 0604);
  CHECK(has(problem(file, Readers::owner), "it can be read by other users"));
  CHECK(has(problem(file, Readers::owner), "chmod go-rwx " + file));
  CHECK_EQUAL(problem(file), "");
}

TEST(trusted_file__what_belongs_to_another_user_is_refused) {
  if (!is_root()) return;
  const Folder folder;
  const std::string file = folder.file("a");
  give(file, kNobody);
  CHECK(has(problem(file), "it belongs to another user (owner uid 65534, mode 0600)"));
  CHECK(has(problem(file), "root or to uid 0"));
  const std::string theirs = folder.directory("theirs", 0755), inner = folder.file("theirs/a");
  give(theirs, kNobody);
  CHECK(has(problem(inner), "its directory " + theirs + " belongs to another user"));
  // In a directory such as /tmp, another user may have made the link, and can make another.
  const std::string common = folder.directory("common", 01777), link = (folder.path / "common/link").string();
  fs::create_symlink(folder.file("b"), link);
  CHECK_EQUAL(problem(link), "");
  give(link, kNobody);
  CHECK(has(problem(link), "the symbolic link " + link + " belongs to another user"));
}

// Root and the user who runs the process are trusted, and no third one.
TEST(trusted_file__a_process_without_rights_trusts_itself_and_root) {
  if (!is_root()) return;
  const Folder folder;
  CHECK_EQUAL(::chmod(folder.path.c_str(), 0755), 0);
  const std::string of_root = folder.file("root", 0644), own = folder.file("own"), third = folder.file("third", 0644);
  give(own, kNobody);
  give(third, 1);
  const pid_t child = ::fork();
  if (child == 0) {
    std::string text, error;
    const bool lowered = ::setgid(kNobody) == 0 && ::setuid(kNobody) == 0;
    const bool good = read_trusted(of_root, Readers::anyone, 100, &text, &error) &&
                      read_trusted(own, Readers::owner, 100, &text, &error) &&
                      !read_trusted(third, Readers::anyone, 100, &text, &error) && has(error, "owner uid 1,");
    ::_exit(lowered && good ? 0 : 1);
  }
  int status = -1;
  CHECK_EQUAL(::waitpid(child, &status, 0), child);
  CHECK_EQUAL(status, 0);
}

TEST(trusted_file__a_library_is_given_without_links) {
  const Folder folder;
  const std::string file = folder.file("lib.so", 0755);
  fs::create_symlink("lib.so", folder.path / "link.so");
  std::string path, error;
  CHECK(check_library((folder.path / "link.so").string(), &path, &error));
  CHECK_EQUAL(path, file);
  CHECK_EQUAL(::chmod(file.c_str(), 0757), 0);
  CHECK(!check_library(file, &path, &error));
  CHECK(has(error, "can be written by other users"));
}

TEST(trusted_file__a_library_on_a_file_system_without_exec_says_so) {
  if (!is_root()) return;
  const Folder folder;
  const std::string place = folder.directory("mounted", 0755);
  const pid_t child = ::fork();
  if (child == 0) {
    // The mount is only in the child's namespace, and ends with it.
    if (::unshare(CLONE_NEWNS) != 0 || ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
        ::mount("none", place.c_str(), "tmpfs", MS_NOEXEC, nullptr) != 0)
      ::_exit(77);
    const std::string copy = place + "/window_swift.so";
    const fs::path built = fs::read_symlink("/proc/self/exe").parent_path() / "policies/window_swift.so";
    std::ofstream(copy, std::ios::binary) << std::ifstream(built, std::ios::binary).rdbuf();
    std::string error;
    const bool refused = weft::policy::Library::load(copy, &error) == nullptr;
    if (!has(error, "mounted noexec")) std::fprintf(stderr, "%s\n", error.c_str());
    ::_exit(refused && has(error, "mounted noexec") && has(error, copy) ? 0 : 1);
  }
  int status = -1;
  CHECK_EQUAL(::waitpid(child, &status, 0), child);
  if (WIFEXITED(status) && WEXITSTATUS(status) == 77) {
    std::printf("skipped: this process may not mount\n");
    return;
  }
  CHECK_EQUAL(status, 0);
}
