// The interface by which a test controls and inspects the fake libcuda. CUDA's functions are looked up by name, as in
// the real library.
#pragma once

#include <cstddef>
#include <cstdint>

extern "C" {
// The n-th call of a function from now on (1: the next) returns `result` and has no effect, and so do all later calls
// if `stays`. A null name ends this.
void fake_cuda_fail(const char* symbol, int nth, int result, int stays);
// Number of contexts, streams, events, modules and allocations not freed.
int fake_cuda_live();
// Number of copies, kernels, records and waits submitted to existing streams that have not run.
int fake_cuda_waiting();
// Number of calls that the real driver would have blocked until streams that wait for a word had proceeded.
int fake_cuda_held_up();
// Declares host memory to be memory of a device (of two); 0 bytes: freed. Other host memory can't be copied.
void fake_cuda_memory(const void* at, std::size_t bytes, int device, int managed);
// Marks a stream as being captured into a graph; null: none.
void fake_cuda_capture(void* stream);
// The primary context of a device.
void* fake_cuda_context(int device);
// Allocates device memory that can only be accessed by copies: a CPU access kills the process. Other addresses are host
// memory to cuPointerGetAttribute, but may be copied.
std::uint64_t fake_cuda_allocate(std::size_t bytes, int device);
void fake_cuda_free(std::uint64_t address);
// An address at which the test itself can access it.
std::uint8_t* fake_cuda_reach(std::uint64_t address);
}
