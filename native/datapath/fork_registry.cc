// Closes the registered sockets in forked children. It uses pthread_atfork handlers, since FD_CLOEXEC only takes effect
// at exec(). The lock is held across the fork, so that the child finds the table in a consistent state.
#include "native/datapath/fork_registry.h"

#include <fcntl.h>
#include <pthread.h>
#include <unistd.h>

#include <cerrno>
#include <mutex>
#include <new>
#include <set>

namespace weft::datapath {
namespace {

struct Registry {
  std::mutex mutex;
  std::set<int> descriptors;
  int null = -1;
};

// Never destroyed: a fork may happen after static destructors have started.
Registry& registry() noexcept {
  static Registry* const made = new Registry;
  return *made;
}

void before_fork() { registry().mutex.lock(); }
void after_fork_in_parent() { registry().mutex.unlock(); }
void after_fork_in_child() {
  Registry& table = registry();
  for (const int descriptor : table.descriptors) {
    if (table.null >= 0) {
      ::dup3(table.null, descriptor, O_CLOEXEC);
    } else {
      ::close(descriptor);
    }
  }
  if (table.null >= 0) ::close(table.null);
  // Forgets the sockets, because the child may reuse their descriptor numbers for files of its own.
  table.descriptors.clear();
  table.null = -1;
  table.mutex.unlock();
}

// Returns the table of open sockets, after installing, once, the fork handlers that lock it and that close the sockets
// in the child.
Registry& watched() noexcept {
  static const bool handles = ::pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child) == 0;
  static_cast<void>(handles);
  return registry();
}

// Adds a socket to the table of those that a forked child closes. The table's lock must be held.
int noted(Registry& table, int descriptor) noexcept {
  if (descriptor < 0) return -1;
  if (table.null < 0) table.null = ::open("/dev/null", O_RDWR | O_CLOEXEC);
  try {
    table.descriptors.insert(descriptor);
    return descriptor;
  } catch (const std::bad_alloc&) {
    ::close(descriptor);
    errno = ENOMEM;
    return -1;
  }
}

}  // namespace

int open_socket(int family, int type) noexcept {
  Registry& table = watched();
  const std::lock_guard<std::mutex> lock(table.mutex);
  return noted(table, ::socket(family, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
}

int accept_socket(int listening, sockaddr* from, socklen_t* length) noexcept {
  Registry& table = watched();
  const std::lock_guard<std::mutex> lock(table.mutex);
  return noted(table, ::accept4(listening, from, length, SOCK_CLOEXEC | SOCK_NONBLOCK));
}

int open_registered(int (*open)(void* argument), void* argument) noexcept {
  Registry& table = watched();
  const std::lock_guard<std::mutex> lock(table.mutex);
  return noted(table, open(argument));
}

void close_socket(int descriptor) noexcept {
  if (descriptor < 0) return;
  const int problem = errno;
  Registry& table = registry();
  const std::lock_guard<std::mutex> lock(table.mutex);
  // A socket inherited from the parent is not in the table; its number may belong to another file by now, so it is not
  // closed.
  if (table.descriptors.erase(descriptor) != 0) ::close(descriptor);
  errno = problem;
}

}  // namespace weft::datapath
