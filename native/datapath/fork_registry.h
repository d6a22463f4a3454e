// Tracks sockets that a forked child must not keep open: while the child holds them, the kernel does not tell peers
// that the parent has died. In the child each one is replaced by /dev/null and leaves the registry. A lock that fork()
// also takes makes creating and registering a socket one step, and likewise closing.
#pragma once

#include <sys/socket.h>

namespace weft::datapath {

// Like socket() and accept4(), non-blocking and close-on-exec: a descriptor, or -1 with errno.
int open_socket(int family, int type) noexcept;
int accept_socket(int listening, sockaddr* from, socklen_t* length) noexcept;
// Closes a socket from these functions; preserves errno. Does nothing for -1.
void close_socket(int descriptor) noexcept;

}  // namespace weft::datapath
