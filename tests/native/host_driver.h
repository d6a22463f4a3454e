// A minimal CUDA driver for tests of kernel results: it runs kernels on the host, within the launching call.
// fake_cuda.cc emulates streams, contexts and failures.
#pragma once

#include "native/gpu/driver.h"
#include "tests/native/host_kernels.h"

namespace weft::test {

inline unsigned& blocks_launched() {
  static unsigned blocks = 0;
  return blocks;
}
inline bool& only_counts() {
  static bool only = false;
  return only;
}

// The driver; it has only the functions that gpu::Kernels calls.
inline const gpu::Driver& host_driver() {
  static const gpu::Driver all = [] {
    gpu::Driver driver;
    driver.context_push = [](gpu::Context) { return gpu::kSuccess; };
    driver.context_pop = [](gpu::Context*) { return gpu::kSuccess; };
    driver.capture_mode = [](int*) { return gpu::kSuccess; };
    driver.module_load_data = [](gpu::Module* module, const void*) {
      *module = &blocks_launched();
      return gpu::kSuccess;
    };
    driver.module_unload = [](gpu::Module) { return gpu::kSuccess; };
    driver.module_function = [](gpu::Function* function, gpu::Module, const char* name) {
      *function = const_cast<HostKernel*>(find_host_kernel(name));
      return *function != nullptr ? gpu::kSuccess : 500;
    };
    driver.launch_kernel = [](gpu::Function function, unsigned blocks, unsigned, unsigned, unsigned, unsigned, unsigned,
                              unsigned, gpu::Stream, void** parameters, void**) {
      blocks_launched() = blocks;
      if (!only_counts()) static_cast<const HostKernel*>(function)->prepare(blocks, parameters)();
      return gpu::kSuccess;
    };
    driver.error_name = [](gpu::Result, const char**) { return gpu::kInvalidValue; };
    driver.error_string = [](gpu::Result, const char**) { return gpu::kInvalidValue; };
    return driver;
  }();
  return all;
}

}  // namespace weft::test
