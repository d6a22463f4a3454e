// Streams that wait for messages without a thread of theirs: a word of pinned memory for each, which the worker sets
// when the message is done, and whose place is used anew when the stream has passed it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "native/gpu/shared_device.h"

namespace weft::message {

// Not safe by itself: the worker's mutex guards it, but for wait(), which may block where a stream's queue is full.
class StreamWaits {
 public:
  // Pins all it will ever need, which no call may do while a stream waits. Null with `error`.
  static std::unique_ptr<StreamWaits> open(const gpu::Driver& driver, gpu::SharedDevice* shared, std::string* error);
  StreamWaits(const StreamWaits&) = delete;
  StreamWaits& operator=(const StreamWaits&) = delete;
  // No stream waits any more: every word is set.
  ~StreamWaits();

  // A word that holds; null: all are in use. Comes between wait_begins() of the attendant, which may take a while, and
  // let_go(), which has it end.
  std::uint32_t* take() noexcept;
  // All that is handed to `stream` from now on runs after let_go() of the word. The event is for add(). Null with
  // `error`: nothing waits for the word any more.
  gpu::Event wait(std::uint32_t* word, gpu::Stream stream, std::string* error);
  // The word is used anew when the event has passed; without one at once.
  void add(std::uint32_t* word, gpu::Event passed) noexcept;
  void let_go(std::uint32_t* word) noexcept {
    if (__atomic_exchange_n(word, 1u, __ATOMIC_ACQ_REL) == 0) shared_.attendant().wait_ends();
  }
  // Takes the words back that streams have passed.
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
