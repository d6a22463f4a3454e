// Releases Python's global lock while a binding works or waits.
// Safe when the interpreter exits meanwhile.
#pragma once

#include <cxxabi.h>
#include <pybind11/pybind11.h>
#include <unistd.h>

namespace weft::bind {

// Releases the interpreter's lock for its scope. A daemon thread that comes back while the interpreter is being
// finalized gets no lock any more: CPython before 3.14 ends such a thread by unwinding its stack, which would run
// destructors of Python objects without the lock. Here it stays where it is until the process is gone, as from 3.14 on.
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
