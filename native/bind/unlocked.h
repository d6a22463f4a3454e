// Releases the GIL while a binding works or waits. Safe if the interpreter exits meanwhile.
#pragma once

#include <cxxabi.h>
#include <pybind11/pybind11.h>
#include <unistd.h>

namespace weft::bind {

// Releases the GIL for its scope. A daemon thread that returns while the interpreter is finalized cannot get the GIL
// again: CPython before 3.14 ends such a thread by unwinding its stack, which would run destructors of Python objects
// without the GIL. Here the thread blocks until the process is gone, as CPython does from 3.14 on.
class Unlocked {
 public:
  Unlocked() : thread_(PyEval_SaveThread()) {}
  ~Unlocked() noexcept(false) {
    try {
      PyEval_RestoreThread(thread_);
    } catch (const abi::__forced_unwind&) {
      for (;;) ::pause();
    }
  }
  Unlocked(const Unlocked&) = delete;
  Unlocked& operator=(const Unlocked&) = delete;

 private:
  PyThreadState* thread_;
};

}  // namespace weft::bind
