// The mover's loop: serves active ports until nothing has moved for a while, asks their peers to wake it, and sleeps.
#include "native/local/mover.h"

#include <pthread.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <exception>
#include <new>
#include <utility>

#include "native/engine/clock.h"
#include "native/engine/exceptions.h"
#include "native/engine/futex.h"
#include "native/engine/signals_blocked.h"

namespace weft::local {
namespace {

constexpr int kLookMs = 1;
constexpr int kEventsMax = 64;
// How long stop() waits for a thread, which looks whether it is to end after each piece that it moves.
constexpr std::int64_t kStopNs = 1'000'000'000;

// Reads the bytes with which the peer woke this process. False: the peer has closed its end.
bool drain(int descriptor) noexcept {
  std::uint8_t bytes[64];
  ssize_t got = 0;
  while ((got = ::recv(descriptor, bytes, sizeof bytes, MSG_DONTWAIT)) > 0) {
  }
  return got != 0;
}

template <class Port>
void activate(std::shared_ptr<Port> port, std::vector<std::shared_ptr<Port>>* active) {
  if (std::find(active->begin(), active->end(), port) == active->end()) active->push_back(std::move(port));
}

}  // namespace

Mover::~Mover() {
  if (epoll_ >= 0) ::close(epoll_);
  if (doorbell_ >= 0) ::close(doorbell_);
}

bool Mover::stop() noexcept {
  std::vector<std::thread> threads;
  stopping_.store(true);
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    const std::uint64_t one = 1;
    if (doorbell_ >= 0) static_cast<void>(!::write(doorbell_, &one, sizeof one));
    threads.swap(threads_);
  }
  const std::int64_t until_ns = engine::now_ns() + kStopNs;
  std::int64_t left_ns = kStopNs;
  for (std::int32_t running = 0; (running = running_.load()) != 0 && left_ns > 0; left_ns = until_ns - engine::now_ns())
    engine::futex_wait(&running_, running, left_ns);
  if (running_.load() != 0) abandoned_.store(true, std::memory_order_seq_cst);
  for (std::thread& thread : threads) is_abandoned() ? thread.detach() : thread.join();
  return !is_abandoned();
}

// The mutex must be held.
bool Mover::add_thread() noexcept {
  const engine::SignalsBlocked blocked;
  const std::uint32_t generation = generation_.load();
  running_.fetch_add(1);
  try {
    threads_.reserve(threads_.size() + 1);
    threads_.emplace_back([this, generation] { run(generation); });
    ::pthread_setname_np(threads_.back().native_handle(), "weft-local");
    return true;
  } catch (const std::exception&) {  // out of memory or threads
    running_.fetch_sub(1);
    return false;
  }
}

void Mover::relieve(std::int64_t now_ns) noexcept {
  const std::int64_t turn_ns = turn_ns_.load();
  if (turn_ns == 0 || now_ns - turn_ns < kStuckNs) return;
  const std::lock_guard<std::mutex> lock(mutex_);
  if (stopping_.load()) return;
  turn_ns_.store(now_ns);
  generation_.fetch_add(1);
  if (!add_thread()) generation_.fetch_sub(1);
}

bool Mover::is_current(std::uint32_t generation) const noexcept {
  return !stopping_.load() && generation_.load(std::memory_order_relaxed) == generation;
}

// The mutex must be held.
bool Mover::start() noexcept {
  if (!threads_.empty()) return true;
  if (epoll_ < 0) epoll_ = ::epoll_create1(EPOLL_CLOEXEC);
  if (doorbell_ < 0) doorbell_ = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (epoll_ < 0 || doorbell_ < 0) return false;
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.ptr = nullptr;
  if (::epoll_ctl(epoll_, EPOLL_CTL_ADD, doorbell_, &event) != 0 && errno != EEXIST) return false;
  return add_thread();
}

bool Mover::add(const std::shared_ptr<Moved>& port) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!start()) return false;
  ports_[port.get()] = port;
  epoll_event event{};
  event.events = EPOLLIN | EPOLLRDHUP;
  event.data.ptr = port.get();
  if (::epoll_ctl(epoll_, EPOLL_CTL_ADD, port->descriptor(), &event) == 0) return true;
  ports_.erase(port.get());
  return false;
}

void Mover::remove(Moved* port) noexcept {
  std::shared_ptr<Moved> last;  // destroyed without the mutex
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto place = ports_.find(port);
  if (place == ports_.end()) return;
  static_cast<void>(::epoll_ctl(epoll_, EPOLL_CTL_DEL, port->descriptor(), nullptr));
  last = std::move(place->second);
  ports_.erase(place);
  std::erase(kicked_, port);
  std::erase(watched_, port);
}

void Mover::note(Moved* port, std::vector<Moved*>* list) noexcept {
  try {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!ports_.contains(port) || std::find(list->begin(), list->end(), port) != list->end()) return;
    list->push_back(port);
  } catch (const std::bad_alloc&) {
    return;  // out of memory: the caller that polls or waits moves the messages itself
  }
  if (!asleep_.load(std::memory_order_seq_cst)) return;
  const std::uint64_t one = 1;
  static_cast<void>(!::write(doorbell_, &one, sizeof one));
}

void Mover::kick(Moved* port) noexcept { note(port, &kicked_); }
void Mover::watch(Moved* port) noexcept { note(port, &watched_); }

void Mover::take(std::vector<std::shared_ptr<Moved>>* active) {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (Moved* port : kicked_) activate(ports_.at(port), active);
  kicked_.clear();
}

// Waits for a wake-up. Returns false if there was none within the time after which watched ports are examined.
bool Mover::sleep(std::vector<std::shared_ptr<Moved>>* active) noexcept {
  int patience_ms = -1;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!kicked_.empty()) return true;
    if (!watched_.empty()) patience_ms = kLookMs;
    asleep_.store(true, std::memory_order_seq_cst);
  }
  turn_ns_.store(0, std::memory_order_relaxed);
  const bool woken = collect(patience_ms, active);
  asleep_.store(false, std::memory_order_seq_cst);
  turn_ns_.store(engine::now_ns(), std::memory_order_relaxed);
  return woken;
}

// Activates the ports that were woken.
bool Mover::collect(int patience_ms, std::vector<std::shared_ptr<Moved>>* active) noexcept {
  epoll_event events[kEventsMax];
  const int count = ::epoll_wait(epoll_, events, kEventsMax, patience_ms);
  const std::lock_guard<std::mutex> lock(mutex_);
  for (int i = 0; i < count; ++i) {
    auto* const port = static_cast<Moved*>(events[i].data.ptr);
    if (port == nullptr) {
      std::uint64_t rings = 0;
      static_cast<void>(!::read(doorbell_, &rings, sizeof rings));
      continue;
    }
    const auto place = ports_.find(port);
    if (place == ports_.end()) continue;
    // A peer that has ended needs no more wake-ups; the control plane finds out why it has ended.
    if (!drain(port->descriptor())) static_cast<void>(::epoll_ctl(epoll_, EPOLL_CTL_DEL, port->descriptor(), nullptr));
    activate(place->second, active);
  }
  return count != 0;
}

// The thread before this one served ports that nobody has kicked since.
void Mover::serve_all(std::vector<std::shared_ptr<Moved>>* active) noexcept {
  try {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (const auto& [port, shared] : ports_) active->push_back(shared);
  } catch (const std::bad_alloc&) {  // out of memory: they are served when they are kicked
  }
}

void Mover::look_at_watched(std::vector<std::shared_ptr<Moved>>* active) {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::erase_if(watched_, [&](Moved* port) {
    if (!port->lapsed()) return false;
    activate(ports_.at(port), active);
    return true;
  });
}

void Mover::run(std::uint32_t generation) noexcept {
  engine::prepare_exceptions();
  std::vector<std::shared_ptr<Moved>> active;
  if (generation != 0) serve_all(&active);
  std::int64_t moved_ns = engine::now_ns(), looked_ns = moved_ns;
  for (std::uint32_t turn = 0; is_current(generation); ++turn) {
    bool moved = false;
    try {
      take(&active);
      for (const auto& port : active) moved |= is_current(generation) && port->serve();
      if (!is_current(generation)) break;
      const std::int64_t now_ns = engine::now_ns();
      turn_ns_.store(now_ns, std::memory_order_relaxed);
      if (now_ns - looked_ns >= kLookMs * 1'000'000) {
        looked_ns = now_ns;
        static_cast<void>(collect(0, &active));  // a port that moves all the time must not starve the others
        look_at_watched(&active);
      }
      if (moved) moved_ns = now_ns;
      if (moved) continue;
      if (!active.empty() && now_ns - moved_ns < spin_ns_) {
        turn % 8 == 0 ? static_cast<void>(::sched_yield()) : engine::relax();
        continue;
      }
      for (const auto& port : active) port->rest();
      active.clear();
      if (sleep(&active)) moved_ns = engine::now_ns();
    } catch (const std::bad_alloc&) {  // out of memory: tries again
      ::sched_yield();
    }
  }
  // A thread that was relieved while it had no core may have taken wake-ups after the next one had looked at all ports.
  if (!stopping_.load()) {
    for (const auto& port : active) kick(port.get());
  }
  running_.fetch_sub(1);
  engine::futex_wake_all(&running_);
}

}  // namespace weft::local
