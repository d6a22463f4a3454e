// The compiled kernels in this library: machine code for some GPUs, and PTX that drivers compile for later GPUs. The
// class Kernels loads the image.
#pragma once

namespace weft::gpu {

// The image to pass to cuModuleLoadData; null if weft was built without kernels.
const void* kernel_image() noexcept;
// If weft was built without kernels, the reason and what to do; otherwise null.
const char* why_no_kernels() noexcept;

}  // namespace weft::gpu
