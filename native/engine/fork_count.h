// Counts the forks that led to this process. Threads and what they use exist only in the process that started them.
#pragma once

#include <pthread.h>

#include <atomic>

namespace weft::engine {

inline std::atomic<int>& fork_count() noexcept {
  static std::atomic<int> count{0};
  [[maybe_unused]] static const bool counts = ::pthread_atfork(nullptr, nullptr, [] { count.fetch_add(1); }) == 0;
  return count;
}

}  // namespace weft::engine
