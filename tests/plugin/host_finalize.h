// Scenarios of communicators that end with everything open. They count the descriptors and threads
// of the process, so no other code may open or close any meanwhile.
#pragma once

#include "tests/plugin/host_side.h"

namespace host {

// Cycles of init, listen, connect and finalize without any close.
void finalize_open(Side& side);
// The same with a second communicator, which must not be affected.
void finalize_one_of_two(Side& side);

}  // namespace host
