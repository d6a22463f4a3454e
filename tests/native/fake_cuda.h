// The functions by which a test controls and inspects the fake libcuda. CUDA's own functions are looked up by name, as
// in the real library.
#pragma once

#include <cstddef>
#include <cstdint>

extern "C" {
// Makes the n-th call of a function from now on (1: the next) return `result` without any effect, and all later calls,
// too, if `stays` is nonzero. A null name ends this.
void fake_cuda_fail(const char* symbol, int nth, int result, int stays);
// Number of contexts, streams, events, modules and allocations not freed.
int fake_cuda_live();
// Number of copies, kernels, records and waits submitted to existing streams that have not run.
int fake_cuda_waiting();
// Number of calls that the real driver would have blocked until streams that wait for a memory word had proceeded.
int fake_cuda_held_up();
// Declares host memory as memory of device 0 or 1; with 0 bytes it is freed. Copies of other host memory as device
// memory fail.
void fake_cuda_memory(const void* at, std::size_t bytes, int device, int managed);
// Makes a stream report that it is being captured into a graph; null: no stream.
void fake_cuda_capture(void* stream);
// Whether memory can be shared with other processes, as it can at first.
void fake_cuda_share(int on);
// Number of allocations that are mapped by their handles.
int fake_cuda_mapped();
// The primary context of a device.
void* fake_cuda_context(int device);
// Allocates device memory that only copies can access: a CPU access kills the process. For cuPointerGetAttribute other
// addresses are host memory, but they may be copied.
std::uint64_t fake_cuda_allocate(std::size_t bytes, int device);
void fake_cuda_free(std::uint64_t address);
// Another address of memory from fake_cuda_allocate(), at which the test itself can access it.
std::uint8_t* fake_cuda_reach(std::uint64_t address);
}
