// CUDA streams that wait for messages without blocking a thread. A stream waits for a 32-bit word in pinned memory,
// which the worker sets when the message is done; then the word is reused.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "native/gpu/shared_device.h"

namespace weft::message {

// The waits of one device's CUDA streams for messages, each until a word in pinned memory is set. The worker's mutex
// must be locked for all functions but wait(), which may block if a stream's queue is full.
class StreamWaits {
 public:
  // Pins the memory for all words in advance, because no memory may be pinned while a stream waits. Returns null and
  // sets `error` on failure.
  static std::unique_ptr<StreamWaits> open(const gpu::Driver& driver, gpu::SharedDevice* shared, std::string* error);
  StreamWaits(const StreamWaits&) = delete;
  StreamWaits& operator=(const StreamWaits&) = delete;
  // Sets all memory words, so that no stream waits any more.
  ~StreamWaits();

  // Returns an unused memory word, set to zero; null: all words are in use. The persistent kernel's wait_begins() must
  // have been called before; release() ends that wait.
  std::uint32_t* take() noexcept;
  // Makes work that is queued on `stream` from now on wait for release(word). Returns the event to pass to add(); null
  // with `error` set: the stream does not wait.
  gpu::Event wait(std::uint32_t* word, gpu::Stream stream, std::string* error);
  // Allows the word to be reused once the event `passed` has occurred, or at once if `passed` is null.
  void add(std::uint32_t* word, gpu::Event passed) noexcept;
  void release(std::uint32_t* word) noexcept {
    if (__atomic_exchange_n(word, 1u, __ATOMIC_ACQ_REL) == 0) shared_.persistent_kernel().wait_ends();
  }
  // Makes the memory words reusable whose streams have continued.
  void collect() noexcept;

 private:
  struct Wait {
    std::uint32_t* word = nullptr;
    gpu::Event passed = nullptr;
  };
  StreamWaits(const gpu::Driver& driver, gpu::SharedDevice* shared)
      : driver_(driver), shared_(*shared), context_(shared->context()) {}

  const gpu::Driver& driver_;
  gpu::SharedDevice& shared_;
  const gpu::Context context_;
  std::unique_ptr<gpu::PinnedPool> words_;
  std::vector<std::uint32_t*> free_;
  std::vector<Wait> waits_;
};

}  // namespace weft::message
