// Streams that wait for messages without blocking a thread: each waits for a word of pinned memory, which the worker
// sets when the message is done. The word is reused when the stream has passed it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "native/gpu/shared_device.h"

namespace weft::message {

// Guarded by the worker's mutex, except for wait(), which may block if a stream's queue is full.
class StreamWaits {
 public:
  // Pins all memory in advance, because nothing may be pinned while a stream waits. Null with `error`.
  static std::unique_ptr<StreamWaits> open(const gpu::Driver& driver, gpu::SharedDevice* shared, std::string* error);
  StreamWaits(const StreamWaits&) = delete;
  StreamWaits& operator=(const StreamWaits&) = delete;
  // Sets every word, so that no stream waits any more.
  ~StreamWaits();

  // Takes an unset word; null: all are in use. Call it after wait_begins() of the attendant, which can take a while,
  // and before let_go(), which ends the wait.
  std::uint32_t* take() noexcept;
  // Work queued on `stream` from now on runs after let_go() of the word. The event is for add(). Null with `error`: no
  // stream waits for the word.
  gpu::Event wait(std::uint32_t* word, gpu::Stream stream, std::string* error);
  // The word is reused when the event has passed, or at once without an event.
  void add(std::uint32_t* word, gpu::Event passed) noexcept;
  void let_go(std::uint32_t* word) noexcept {
    if (__atomic_exchange_n(word, 1u, __ATOMIC_ACQ_REL) == 0) shared_.attendant().wait_ends();
  }
  // Takes back words that streams have passed.
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
