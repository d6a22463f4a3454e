// Streams of ours that are lent to producers of device memory, so that they can order a message after their own work.
#pragma once

#include <mutex>
#include <string>
#include <vector>

#include "native/gpu/copier.h"

namespace weft::message {

// The work before a message: everything that a stream had when the event was recorded. With a stream that was lent for
// it, or none.
struct After {
  gpu::Event event = nullptr;
  gpu::Stream intake = nullptr;
};

// Thread-safe. A returned stream is lent again once the work before its event is done.
class IntakeStreams {
 public:
  IntakeStreams(const gpu::Driver& driver, const gpu::Copier& copier) noexcept : driver_(driver), copier_(copier) {}
  IntakeStreams(const IntakeStreams&) = delete;
  IntakeStreams& operator=(const IntakeStreams&) = delete;
  // Returns the streams that are idle to the device, and destroys the others.
  ~IntakeStreams();

  // Null with `error`.
  gpu::Stream lend(std::string* error);
  // Takes back a lent stream and its event, if any.
  void give_back(const After& after) noexcept;

 private:
  const gpu::Driver& driver_;
  const gpu::Copier& copier_;
  std::mutex mutex_;
  std::vector<After> resting_;
  std::size_t made_ = 0;
};

}  // namespace weft::message
