// Scenarios of communicators that end with everything still open; host.cc plays them by name.
// They count the descriptors and threads of the process, so nothing else may start or end any meanwhile.
#pragma once

#include "tests/plugin/host_side.h"

namespace host {

// Cycles of init, listen, connect and finalize in which nothing is ever closed.
void finalize_open(Side& side);
// The same with a second communicator that goes on: only what belongs to the first one ends.
void finalize_one_of_two(Side& side);

}  // namespace host
