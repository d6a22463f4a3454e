// Reads how long threads of this process were ready to run and had no CPU core, as the kernel counts it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace weft::engine {

class CpuWait {
 public:
  // tasks: folder with one folder per thread, which has a file schedstat (proc_pid_schedstat(5)).
  explicit CpuWait(std::string tasks = "/proc/self/task");

  // Returns for how many ns the thread that waited most has waited for a core since the previous call. -1: the kernel
  // does not count this, or no thread was there at the previous call. Reads at most kThreadsMax threads, and allocates
  // nothing but what opendir() does.
  std::int64_t longest_ns() noexcept;

  static constexpr std::size_t kThreadsMax = 512;

 private:
  struct Thread {
    std::int64_t id;
    std::int64_t waited_ns;  // since the thread began
  };
  void read() noexcept;

  const std::string tasks_;
  std::vector<Thread> before_, now_;  // by id
};

}  // namespace weft::engine
