// Streams that wait for messages without a thread of theirs: a word of pinned memory for each, which the worker sets
// when the message is done, and whose place is used anew when the stream has passed it. Knows nothing of messages.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "native/gpu/pinned_pool.h"

namespace weft::engine {

// Not safe by itself: the worker's mutex guards it.
class StreamWaits {
 public:
  // Pins all it will ever need, which no call may do while a stream waits. Null with `error`.
  static std::unique_ptr<StreamWaits> open(const gpu::Driver& driver, gpu::Context context, std::string* error);
  StreamWaits(const StreamWaits&) = delete;
  StreamWaits& operator=(const StreamWaits&) = delete;
  // No stream waits any more: every word is set.
  ~StreamWaits();

  // All that is handed to `stream` from now on runs after let_go() of the word. Null with `error`.
  std::uint32_t* add(gpu::Stream stream, std::string* error);
  static void let_go(std::uint32_t* word) noexcept { __atomic_store_n(word, 1u, __ATOMIC_RELEASE); }
  // Takes the words back that streams have passed.
  void collect() noexcept;

 private:
  struct Wait {
    std::uint32_t* word = nullptr;
    gpu::Event passed = nullptr;
  };
  StreamWaits(const gpu::Driver& driver, gpu::Context context) : driver_(driver), context_(context) {}

  const gpu::Driver& driver_;
  const gpu::Context context_;
  std::unique_ptr<gpu::PinnedPool> words_;
  std::vector<std::uint32_t*> free_;
  std::vector<Wait> waits_;
};

}  // namespace weft::engine
