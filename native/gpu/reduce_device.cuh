// Reduces two arrays into one or two destinations in one pass, 16 bytes at a time if the destinations are aligned
// alike. Each thread reads only the elements that it writes, and reads them first, so `out` and `also` may each be `a`
// or `b`.
#pragma once

#include "native/gpu/elements_device.cuh"
#include "native/gpu/jobs.h"
#include "native/gpu/words_device.cuh"

namespace weft::gpu::device {

// Reduces kCount words per thread: word `first`, and then words at distances of kBlockThreads.
template <ElementType kType, Operation kOperation, u32 kCount, bool kSkips>
WEFT_DEVICE void reduce_words(const ReduceJob& job, u64 first) {
  const u32 skip_a = static_cast<u32>(job.a - job.out) % kWordBytes;
  const u32 skip_b = static_cast<u32>(job.b - job.out) % kWordBytes;
  const u64 at = job.head_elements * sizeof(typename Element<kType>::Bits) + first * kWordBytes;
  Word a[kCount], b[kCount];
  WEFT_UNROLL
  for (u32 i = 0; i < kCount; ++i) {
    const u64 here = at + u64{i} * kBlockThreads * kWordBytes;
    a[i] = load_anywhere<kSkips>(job.a + here, skip_a);
    b[i] = load_anywhere<kSkips>(job.b + here, skip_b);
  }
  WEFT_UNROLL
  for (u32 i = 0; i < kCount; ++i) a[i] = reduce_word<kType, kOperation>(a[i], b[i]);
  WEFT_UNROLL
  for (u32 i = 0; i < kCount; ++i) {
    const u64 here = at + u64{i} * kBlockThreads * kWordBytes;
    store(job.out + here, a[i]);
    if (job.also != 0) store(job.also + here, a[i]);
  }
}

// Reduces a thread's words: in a batch if the block has a full batch for every thread, otherwise one by one.
template <ElementType kType, Operation kOperation, bool kSkips>
WEFT_DEVICE void reduce_block(const ReduceJob& job, u64 block, u32 thread) {
  const u64 first = block * kBlockThreads * kBatch + thread;
  if ((block + 1) * kBlockThreads * kBatch <= job.words) {
    reduce_words<kType, kOperation, kBatch, kSkips>(job, first);
    return;
  }
  for (u64 word = first; word < job.words; word += kBlockThreads) reduce_words<kType, kOperation, 1, kSkips>(job, word);
}

// Reduces kCount elements that are not part of words. These are numbered from the array's start, leaving out the words.
template <ElementType kType, Operation kOperation, u32 kCount>
WEFT_DEVICE void reduce_elements(const ReduceJob& job, u64 first) {
  using Bits = typename Element<kType>::Bits;
  Bits a[kCount], b[kCount];
  u64 at[kCount];
  WEFT_UNROLL
  for (u32 i = 0; i < kCount; ++i) {
    const u64 element = first + u64{i} * kBlockThreads;
    const u64 before = element < job.head_elements ? 0 : job.words * kWordBytes;
    at[i] = before + element * sizeof(Bits);
    a[i] = load<Bits>(job.a + at[i]);
    b[i] = load<Bits>(job.b + at[i]);
  }
  WEFT_UNROLL
  for (u32 i = 0; i < kCount; ++i) {
    const Bits reduced = Element<kType>::template reduce<kOperation>(a[i], b[i]);
    store(job.out + at[i], reduced);
    if (job.also != 0) store(job.also + at[i], reduced);
  }
}

// One thread's part of a reduction.
template <ElementType kType, Operation kOperation>
WEFT_DEVICE void reduce(const ReduceJob& job, u64 block, u32 thread) {
  if ((job.a - job.out) % kWordBytes == 0 && (job.b - job.out) % kWordBytes == 0) {
    reduce_block<kType, kOperation, false>(job, block, thread);
  } else {
    reduce_block<kType, kOperation, true>(job, block, thread);
  }
  const u64 elements = job.elements - job.words * (kWordBytes / sizeof(typename Element<kType>::Bits));
  const u64 first = block * kBlockThreads * kElementBatch + thread;
  if ((block + 1) * kBlockThreads * kElementBatch <= elements) {
    reduce_elements<kType, kOperation, kElementBatch>(job, first);
    return;
  }
  for (u32 i = 0; i < kElementBatch; ++i) {
    const u64 element = first + u64{i} * kBlockThreads;
    if (element < elements) reduce_elements<kType, kOperation, 1>(job, element);
  }
}

}  // namespace weft::gpu::device
