// Releases the GIL while a binding works or waits; this is safe even if the interpreter exits meanwhile.
#pragma once

#include <pybind11/pybind11.h>
#include <unistd.h>

namespace weft::bind {

// Releases the GIL for its scope. If the interpreter exits meanwhile, a daemon thread cannot get the GIL again. CPython
// before 3.14 then unwinds the thread's stack, which would run destructors of Python objects without the GIL. Here the
// thread blocks until the process ends, as in CPython 3.14 and later.
class Unlocked {
 public:
  Unlocked() : thread_(PyEval_SaveThread()) {}
  ~Unlocked() noexcept(false) {  // NOLINT(bugprone-unsafe-to-allow-exceptions)
    Blocks unless_back;
    PyEval_RestoreThread(thread_);
    unless_back.ended = true;
  }
  Unlocked(const Unlocked&) = delete;
  Unlocked& operator=(const Unlocked&) = delete;

 private:
  // A thread that is unwound runs destructors in every C++ runtime, and handlers in some only.
  struct Blocks {
    bool ended = false;
    ~Blocks() {
      while (!ended) ::pause();
    }
  };

  PyThreadState* thread_;
};

}  // namespace weft::bind
