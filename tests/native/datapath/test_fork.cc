// Tests that a forked child has no sockets of control and data connections, because with them the kernel would not tell
// peers when the parent dies.
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <thread>

#include "tests/native/check.h"
#include "tests/native/runtime_pair.h"

namespace {

using namespace weft;
using namespace weft::engine;
using namespace weft::control;
using namespace weft::message;
using weft::test::RuntimePair;

constexpr int kDescriptorsMax = 1024;
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr int kForks = 20;
#else
constexpr int kForks = 300;
#endif

int sockets() noexcept {
  int count = 0;
  for (int descriptor = 0; descriptor < kDescriptorsMax; ++descriptor) {
    // Do not count sockets without a peer, which weft opens briefly to query the kernel (netlink, if_nametoindex).
    sockaddr_storage own{};
    socklen_t length = sizeof own;
    const bool is_socket = ::getsockname(descriptor, reinterpret_cast<sockaddr*>(&own), &length) == 0;
    count += is_socket && (own.ss_family == AF_INET || own.ss_family == AF_INET6) ? 1 : 0;
  }
  return count;
}

}  // namespace

TEST(fork__at_any_moment_leaves_the_child_without_sockets) {
  const int before = sockets();  // sockets that this program inherited
  RuntimePair pair{Knobs{}};
  CHECK(sockets() > before);
  std::atomic<bool> over{false};
  // Open and close runtimes, so that sockets are created, accepted and closed all the time.
  std::thread dialler([&] {
    while (!over) RuntimePair{Knobs{}};
  });
  int kept = 0;
  for (int i = 0; i < kForks; ++i) {
    const pid_t child = ::fork();
    if (child == 0) ::_exit(std::min(sockets() - before, 100));
    int status = 0;
    CHECK(child > 0 && ::waitpid(child, &status, 0) == child && WIFEXITED(status));
    kept += WEXITSTATUS(status);
  }
  over = true;
  dialler.join();
  CHECK_EQUAL(kept, 0);
}

// The child is like a daemon, which closes inherited descriptors, opens files of its own, and forks again.
TEST(fork__leaves_the_files_of_a_child_alone_when_it_forks_too) {
  RuntimePair pair{Knobs{}};
  const pid_t child = ::fork();
  if (child == 0) {
    for (int descriptor = 3; descriptor < kDescriptorsMax; ++descriptor) ::close(descriptor);
    int ends[2];
    while (::pipe(ends) == 0 && ends[1] < 200) {
    }
    const pid_t grandchild = ::fork();
    if (grandchild == 0) {
      for (int descriptor = 3; descriptor < ends[1]; ++descriptor) {
        struct stat found{};
        if (::fstat(descriptor, &found) != 0 || !S_ISFIFO(found.st_mode)) ::_exit(1);
      }
      ::_exit(0);
    }
    int status = 1;
    ::waitpid(grandchild, &status, 0);
    ::_exit(WIFEXITED(status) ? WEXITSTATUS(status) : 2);
  }
  int status = 0;
  CHECK(child > 0 && ::waitpid(child, &status, 0) == child && WIFEXITED(status));
  CHECK_EQUAL(WEXITSTATUS(status), 0);
}
