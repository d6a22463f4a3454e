// Tells whether a thread of this process sleeps, so that a test can see that a wait costs no CPU time.
#pragma once

#include <sys/syscall.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <fstream>
#include <string>
#include <thread>

namespace weft::test {

inline std::int32_t this_thread() { return static_cast<std::int32_t>(::syscall(SYS_gettid)); }

// Waits until the thread sleeps. False: it has only run, or waited for a core, for half a minute.
inline bool falls_asleep(std::int32_t thread) {
  const std::string path = "/proc/self/task/" + std::to_string(thread) + "/stat";
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (std::chrono::steady_clock::now() < end) {
    std::ifstream file(path);
    std::string stat;
    std::getline(file, stat);
    const std::size_t name_end = stat.rfind(") ");
    if (name_end != std::string::npos && stat[name_end + 2] == 'S') return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return false;
}

}  // namespace weft::test
