// A thread that moves the messages of ports for which no caller does it. It sleeps while nothing moves; the peer's
// process wakes it through a port's socket, and callers of this process through an eventfd.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "native/core/status.h"

namespace weft::local {

// A port, as the mover sees it.
class Moved {
 public:
  virtual ~Moved() = default;
  virtual int descriptor() const noexcept = 0;
  // Moves what can be moved. True: something moved.
  virtual bool serve() noexcept = 0;
  // Asks the peer to wake this process when there is work again.
  virtual void rest() noexcept = 0;
  // Whether a caller that polled has stopped to do so.
  virtual bool lapsed() noexcept = 0;
};

class Mover {
 public:
  // `spin_ns`: how long the thread looks for work before it sleeps.
  explicit Mover(std::int64_t spin_ns) noexcept : spin_ns_(spin_ns) {}
  ~Mover();  // after stop() has returned true
  Mover(const Mover&) = delete;
  Mover& operator=(const Mover&) = delete;

  // Starts the thread with the first port. False, with errno: there are no descriptors or threads left.
  bool add(const std::shared_ptr<Moved>& port);
  void remove(Moved* port) noexcept;
  // Lets the thread serve a port that needs it.
  void kick(Moved* port) noexcept;
  // From now on the thread looks each millisecond whether the port's caller still polls.
  void watch(Moved* port) noexcept;
  // To be called now and then: if a port has held the thread up for kStuckNs, another thread serves the others.
  void relieve(std::int64_t now_ns) noexcept;
  // Ends the threads. False: a port holds one up, so that this object must stay.
  bool stop() noexcept;
  // Whether stop() has returned false: a thread that comes back after that uses nothing but this object and its port.
  bool is_abandoned() const noexcept { return abandoned_.load(std::memory_order_seq_cst); }

 private:
  static constexpr std::int64_t kStuckNs = 1'000'000'000;

  bool start() noexcept;
  bool add_thread() noexcept;
  void run(std::uint32_t generation) noexcept;
  bool is_current(std::uint32_t generation) const noexcept;
  void serve_all(std::vector<std::shared_ptr<Moved>>* active) noexcept;
  void take(std::vector<std::shared_ptr<Moved>>* active);
  bool sleep(std::vector<std::shared_ptr<Moved>>* active) noexcept;
  bool collect(int patience_ms, std::vector<std::shared_ptr<Moved>>* active) noexcept;
  void look_at_watched(std::vector<std::shared_ptr<Moved>>* active);
  void note(Moved* port, std::vector<Moved*>* list) noexcept;

  const std::int64_t spin_ns_;
  std::mutex mutex_;  // guards the next five members
  std::map<Moved*, std::shared_ptr<Moved>> ports_;
  std::vector<Moved*> kicked_, watched_;
  std::vector<std::thread> threads_;  // the last one serves the ports; a port may have held up those before it
  int epoll_ = -1, doorbell_ = -1;
  std::atomic<std::uint32_t> generation_{0};  // of the thread that serves the ports
  std::atomic<std::int64_t> turn_ns_{0};      // when its turn began; 0: it sleeps
  std::atomic<std::int32_t> running_{0};      // threads that have not ended
  std::atomic<bool> stopping_{false}, abandoned_{false}, asleep_{false};
};

}  // namespace weft::local
