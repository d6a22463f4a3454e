// Sockets that a forked child must not keep: while it holds them the kernel tells nobody that the parent has died.
// In the child each descriptor becomes /dev/null and is no longer in the registry, so nothing here closes it there.
// A lock that fork() takes too makes creating and registering a socket one step, and so unregistering and closing it.
#pragma once

#include <sys/socket.h>

namespace weft::datapath {

// As socket() and accept4(), non-blocking and closed by exec(): a descriptor, or -1 and errno.
int open_socket(int family, int type) noexcept;
int accept_socket(int listening, sockaddr* from, socklen_t* length) noexcept;
// Of these two; errno stays as it is. Nothing for -1.
void close_socket(int descriptor) noexcept;

}  // namespace weft::datapath
