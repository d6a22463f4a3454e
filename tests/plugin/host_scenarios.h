// The scenarios of the host program by name, and shared helpers. All sides run a scenario at once;
// it returns if all checks pass, and otherwise ends the process.
#pragma once

#include <fcntl.h>

#include <filesystem>
#include <map>
#include <set>
#include <string>

#include "tests/plugin/host_side.h"

namespace host {

using Scenario = void (*)(Side&);
using Scenarios = std::map<std::string, Scenario>;

const Scenarios& message_scenarios();
const Scenarios& group_scenarios();
const Scenarios& setup_scenarios();
const Scenarios& process_scenarios();
const Scenarios& trouble_scenarios();

// Starts a side, runs `body` on one link, and closes both after the other side has finished.
template <typename Body>
void on_a_link(Side& side, Body&& body) {
  side.start();
  const Link link = side.link();
  body(link);
  side.barrier();
  side.unlink(link);
  side.stop();
}

// The thread ids of this process.
inline std::set<int> threads() {
  std::set<int> found;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/task")) {
    found.insert(std::stoi(entry.path().filename().string()));
  }
  return found;
}

// The open descriptors of this process.
inline std::set<int> open_descriptors() {
  std::set<int> found;
  for (int each = 0; each < 4096; ++each) {
    if (fcntl(each, F_GETFD) >= 0) found.insert(each);
  }
  return found;
}

// On a connection whose peer is gone every isend and irecv returns a request, and every test() of
// it returns the error. Wrong arguments are still reported at once.
void fails_in_test(Side& side, const Link& link, Result expected);

}  // namespace host
