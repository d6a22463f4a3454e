// Scenarios in which communicators are finalized with open connections. They count the process's descriptors and
// threads, so no other code may open descriptors or start threads meanwhile.
#pragma once

#include "tests/plugin/host_side.h"

namespace host {

// Repeats init, listen, connect and finalize without closing anything.
void finalize_open(Side& side);
// Finalizes one communicator with open connections; a second communicator must not be affected.
void finalize_one_of_two(Side& side);

}  // namespace host
