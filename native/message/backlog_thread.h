// The backlog thread of a runtime. It posts waiting sends and receives, and copies received messages into buffers in
// several pieces.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "native/engine/notifier.h"
#include "native/message/backlog.h"

namespace weft::message {

// Work that an engine's thread passes to the backlog thread.
class Leftover {
 public:
  virtual ~Leftover() = default;
  virtual void finish() noexcept = 0;  // does the work; the object may destroy itself

 private:
  friend class BacklogThread;
  Leftover* next_ = nullptr;
};

class BacklogThread {
 public:
  explicit BacklogThread(engine::Notifier* notifier) : notifier_(notifier) {}
  BacklogThread(const BacklogThread&) = delete;
  BacklogThread& operator=(const BacklogThread&) = delete;
  ~BacklogThread() { stop(); }

  // Starts the thread if it does not run yet.
  Status start() noexcept;
  void stop() noexcept;
  // Makes the thread post the waiting messages of a backlog.
  Status watch(std::shared_ptr<Backlog> backlog) noexcept;
  // Passes work to the thread, which must have been started. May be called from any thread; takes no lock and allocates
  // nothing.
  void leave(Leftover* work) noexcept;

 private:
  void run() noexcept;
  bool finish_leftovers() noexcept;

  engine::Notifier* const notifier_;
  std::mutex mutex_;
  std::vector<std::shared_ptr<Backlog>> watched_;
  std::atomic<Leftover*> leftovers_{nullptr};
  std::atomic<bool> stopping_{false};
  std::thread thread_;
};

}  // namespace weft::message
