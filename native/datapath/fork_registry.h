// Sockets that a forked child must not keep: while it holds them the kernel tells nobody that the parent has died.
// In the child each becomes /dev/null under the same number, so that a destructor that closes it there does no harm.
#pragma once

namespace weft::datapath {

void close_in_child(int descriptor) noexcept;
// Before the descriptor is closed: its number may be another file's from then on.
void keep_in_child(int descriptor) noexcept;

}  // namespace weft::datapath
