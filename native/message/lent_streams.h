// CUDA streams that weft lends to producers of device memory, which make them wait for their own work. A message then
// starts after that work.
#pragma once

#include <mutex>
#include <string>
#include <vector>

#include "native/gpu/copier.h"

namespace weft::message {

// The work that must run before a message: what was queued on a stream when `event` was recorded. `lent_stream`: that
// stream, if weft has lent it; else null.
struct After {
  gpu::Event event = nullptr;
  gpu::Stream lent_stream = nullptr;
};

// The lent and returned streams of a device; thread-safe. A returned stream is lent again when the work before its
// event is done.
class LentStreams {
 public:
  LentStreams(const gpu::Driver& driver, const gpu::Copier& copier) noexcept : driver_(driver), copier_(copier) {}
  LentStreams(const LentStreams&) = delete;
  LentStreams& operator=(const LentStreams&) = delete;
  // Returns idle streams to the device for reuse, and destroys the others.
  ~LentStreams();

  // Lends a stream. Returns null and sets `error` on failure.
  gpu::Stream lend(std::string* error);
  // Takes back a lent stream, with the event of its work or null.
  void give_back(const After& after) noexcept;

 private:
  const gpu::Driver& driver_;
  const gpu::Copier& copier_;
  std::mutex mutex_;
  std::vector<After> resting_;
  std::size_t made_ = 0;
};

}  // namespace weft::message
