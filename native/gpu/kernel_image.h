// The compiled kernels that this library carries: code for some GPUs, and PTX that a driver compiles for later ones.
// Loads nothing; Kernels does.
#pragma once

namespace weft::gpu {

// What cuModuleLoadData takes; null where the kernels were left out of the build.
const void* kernel_image() noexcept;
// Then why, and what to do; else null.
const char* why_no_kernels() noexcept;

}  // namespace weft::gpu
