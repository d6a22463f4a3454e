// What a test tells the fake libcuda, and asks of it.
// Nothing of CUDA itself: that is looked up by name, as in the real one.
#pragma once

#include <cstddef>
#include <cstdint>

extern "C" {
// The n-th call of a function from now on (1: the next) returns `result` and does nothing, and if `stays` so do all
// after it; a null name: none does.
void fake_cuda_fail(const char* symbol, int nth, int result, int stays);
// Contexts, streams, events, modules and allocations that have not been given back.
int fake_cuda_live();
// Copies, kernels, records and waits handed over to streams that are there, and not run.
int fake_cuda_waiting();
// Calls so far that the real driver would have held up until streams had gone on that wait for a word.
int fake_cuda_held_up();
// Memory of the host that plays memory of a device, of which there are two; 0 bytes: it was freed. No other is copied.
void fake_cuda_memory(const void* at, std::size_t bytes, int device, int managed);
// This stream is being captured into a graph; null: none is.
void fake_cuda_capture(void* stream);
// The primary context of a device.
void* fake_cuda_context(int device);
// Memory of a device, which only its copies reach: a processor that touches it there is killed. Addresses that were
// not allocated here are the host's to cuPointerGetAttribute, and may be copied to and from all the same.
std::uint64_t fake_cuda_allocate(std::size_t bytes, int device);
void fake_cuda_free(std::uint64_t address);
// Where a test itself reads and writes it.
std::uint8_t* fake_cuda_reach(std::uint64_t address);
}
