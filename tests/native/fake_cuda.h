// What a test tells the fake libcuda, and asks of it.
// Nothing of CUDA itself: that is looked up by name, as in the real one.
#pragma once

extern "C" {
// The n-th call of a function from now on (1: the next) returns `result` and does nothing, and if `stays` so do all
// after it; a null name: none does.
void fake_cuda_fail(const char* symbol, int nth, int result, int stays);
// Contexts, streams, events, modules and allocations that have not been given back.
int fake_cuda_live();
// Copies and kernels handed over that have not run.
int fake_cuda_copies_waiting();
}
