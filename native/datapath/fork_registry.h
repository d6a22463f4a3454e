// Tracks sockets that a forked child must not keep open: while the child holds them, the kernel does not tell peers
// that the parent has died. The child replaces each socket by /dev/null and forgets it. A lock that fork() also takes
// makes it one atomic step to create and register a socket, or to close and unregister one.
#pragma once

#include <sys/socket.h>

namespace weft::datapath {

// Like socket() and accept4(), but the new socket is registered, non-blocking and close-on-exec. Both return a
// descriptor, or -1 with errno.
int open_socket(int family, int type) noexcept;
int accept_socket(int listening, sockaddr* from, socklen_t* length) noexcept;
// Calls `open`, which returns a close-on-exec descriptor of another kind or -1, and registers it. Returns as above.
int open_registered(int (*open)(void* argument), void* argument) noexcept;
// Closes a descriptor that one of these functions returned; preserves errno. Does nothing for -1.
void close_socket(int descriptor) noexcept;

}  // namespace weft::datapath
