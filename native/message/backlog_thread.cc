// Posts waiting messages when there is room. Completed requests wake the thread. Room in rings that other connections
// use, and memory for GPU messages, become free without a notification, so the thread also polls every millisecond
// while messages wait.
#include "native/message/backlog_thread.h"

#include <pthread.h>

#include <algorithm>
#include <new>
#include <system_error>

#include "native/engine/exceptions.h"
#include "native/engine/signals_blocked.h"

namespace weft::message {
namespace {

constexpr std::int64_t kLookNs = 1'000'000;
constexpr std::int64_t kIdleNs = 3'600'000'000'000;

}  // namespace

Status BacklogThread::start() noexcept {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (thread_.joinable()) return Status::ok;
  const engine::SignalsBlocked blocked;
  Status status = Status::ok;
  try {
    thread_ = std::thread([this] { run(); });
    ::pthread_setname_np(thread_.native_handle(), "weft-backlog");
  } catch (const std::system_error&) {
    status = Status::system_error;
  }
  return status;
}

void BacklogThread::stop() noexcept {
  stopping_.store(true);
  notifier_->wake();
  if (thread_.joinable()) thread_.join();
}

Status BacklogThread::watch(std::shared_ptr<Backlog> backlog) noexcept {
  const Status status = start();
  if (status != Status::ok) return status;
  try {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (std::find(watched_.begin(), watched_.end(), backlog) != watched_.end()) return Status::ok;
    watched_.push_back(std::move(backlog));
  } catch (const std::bad_alloc&) {
    return Status::out_of_memory;
  }
  notifier_->wake();
  return Status::ok;
}

void BacklogThread::leave(Leftover* work) noexcept {
  work->next_ = leftovers_.load(std::memory_order_relaxed);
  while (!leftovers_.compare_exchange_weak(work->next_, work, std::memory_order_release, std::memory_order_relaxed)) {
  }
  notifier_->wake();
}

bool BacklogThread::finish_leftovers() noexcept {
  Leftover* work = leftovers_.exchange(nullptr, std::memory_order_acquire);
  const bool any = work != nullptr;
  while (work != nullptr) {
    Leftover* const next = work->next_;
    work->finish();
    work = next;
  }
  return any;
}

void BacklogThread::run() noexcept {
  engine::prepare_exceptions();
  std::vector<std::shared_ptr<Backlog>> mine;
  std::size_t turn_of = 0;
  while (!stopping_.load()) {
    const std::int32_t turn = notifier_->turn();
    {
      // Copies the list of backlogs, so that the mutex is not locked while messages are posted. Each pass begins with
      // another connection, so that no connection always gets the engines' room first.
      const std::lock_guard<std::mutex> lock(mutex_);
      mine = watched_;
    }
    if (!mine.empty()) notifier_->ask();
    bool moved = finish_leftovers();
    ++turn_of;
    for (std::size_t i = 0; i < mine.size(); ++i) {
      const std::shared_ptr<Backlog>& backlog = mine[(i + turn_of) % mine.size()];
      if (backlog->drain(&moved)) continue;
      const std::lock_guard<std::mutex> lock(mutex_);
      // Checks again with the mutex locked: a message added since the first check is either found now, or watch() will
      // add the backlog to the list again.
      bool ignored = false;
      if (!backlog->drain(&ignored)) std::erase(watched_, backlog);
    }
    const bool waits = !mine.empty();
    mine.clear();
    if (moved) notifier_->notify();
    if (!moved) notifier_->sleep(turn, waits ? kLookNs : kIdleNs);
  }
  static_cast<void>(finish_leftovers());
}

}  // namespace weft::message
