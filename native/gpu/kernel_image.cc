// Embeds the kernel image with the assembler, which is faster than compiling an array of a million numbers.
// kernels.cmake decides whether there is an image and what it contains.
#include "native/gpu/kernel_image.h"

#ifdef WEFT_KERNEL_IMAGE
__asm__(
    ".pushsection .rodata.weft_kernel_image, \"a\"\n"
    ".balign 64\n"
    "weft_kernel_image:\n"
    ".incbin \"" WEFT_KERNEL_IMAGE
    "\"\n"
    ".popsection\n");
extern "C" const unsigned char weft_kernel_image[] __attribute__((visibility("hidden")));
#endif

namespace weft::gpu {

#ifdef WEFT_KERNEL_IMAGE
const void* kernel_image() noexcept { return weft_kernel_image; }
const char* why_no_kernels() noexcept { return nullptr; }
#else
const void* kernel_image() noexcept { return nullptr; }
const char* why_no_kernels() noexcept { return WEFT_WHY_NO_KERNELS; }
#endif

}  // namespace weft::gpu
