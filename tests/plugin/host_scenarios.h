// The scenarios of the host program by name, and what more than one of its files uses.
// A scenario is played by every side at once; it returns when all of it held and ends the process when not.
#pragma once

#include <filesystem>
#include <map>
#include <set>
#include <string>

#include "tests/plugin/host_side.h"

namespace host {

using Scenario = void (*)(Side&);
using Scenarios = std::map<std::string, Scenario>;

const Scenarios& message_scenarios();
const Scenarios& setup_scenarios();
const Scenarios& process_scenarios();
const Scenarios& trouble_scenarios();

// Starts a side, plays `body` on one link, and ends both in step with the other side.
template <typename Body>
void on_a_link(Side& side, Body&& body) {
  side.start();
  const Link link = side.link();
  body(link);
  side.barrier();
  side.unlink(link);
  side.stop();
}

// Thread ids of this process.
inline std::set<int> threads() {
  std::set<int> found;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/task")) {
    found.insert(std::stoi(entry.path().filename().string()));
  }
  return found;
}

// On a connection whose peer is gone every isend and irecv hands out a request, as often as it is called, and test()
// says what is wrong, as often as it is asked. What the caller does wrong is said at once all the same.
void fails_in_test(Side& side, const Link& link, Result expected);

}  // namespace host
