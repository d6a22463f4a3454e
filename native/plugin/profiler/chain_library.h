// Loads the profiler plugin that the knob `profiler_chain` names. If the process crashes in one of its calls, a line on
// stderr says so.
#pragma once

#include <array>
#include <atomic>
#include <mutex>
#include <string>

#include "native/plugin/abi_common.h"

namespace weft::nccl {

class ChainLibrary {
 public:
  static constexpr int kVersionMax = 7;

  static ChainLibrary& instance() noexcept;

  // Loads the library that WEFT_PROFILER_CHAIN names, and returns its table `ncclProfiler_v<version>`. Null: the knob
  // is empty, or the library or the table is missing, which is logged once.
  void* load(int version, Logger log) noexcept;
  // Returns the table that load() has found; null: none.
  void* table(int version) const noexcept {
    return tables_[static_cast<std::size_t>(version)].load(std::memory_order_acquire);
  }

 private:
  ChainLibrary() = default;
  std::string open();
  std::string find(int version);

  std::mutex mutex_;
  bool tried_ = false;
  std::string path_;
  void* library_ = nullptr;  // kept until the process ends, because threads may be in its calls
  std::array<bool, kVersionMax + 1> looked_up_{};
  std::array<std::atomic<void*>, kVersionMax + 1> tables_{};
};

// Exists while this thread is in a call of the chained profiler. The first ChainCall of a thread also gives the thread
// a stack for signal handlers, unless the thread has one.
class ChainCall {
 public:
  ChainCall() noexcept;
  ~ChainCall();
  ChainCall(const ChainCall&) = delete;
  ChainCall& operator=(const ChainCall&) = delete;
};

}  // namespace weft::nccl
