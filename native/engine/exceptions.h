// The C++ runtime keeps a record of exceptions for each thread, and allocates it when the thread throws for the first
// time. If there is no memory then, as when std::bad_alloc is thrown, the C library ends the process.
#pragma once

#include <exception>

namespace weft::engine {

// Makes the C++ runtime allocate this thread's record of exceptions now.
inline void prepare_exceptions() noexcept {
  [[maybe_unused]] const volatile int count = std::uncaught_exceptions();  // a pure function: the result must be used
}

}  // namespace weft::engine
