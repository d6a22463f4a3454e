// The compiled kernels in this library: machine code for some GPUs, and PTX that drivers compile for later ones.
// Kernels loads the image.
#pragma once

namespace weft::gpu {

// Argument for cuModuleLoadData; null if the kernels are not part of the build.
const void* kernel_image() noexcept;
// If they are not, the reason and what to do; else null.
const char* why_no_kernels() noexcept;

}  // namespace weft::gpu
