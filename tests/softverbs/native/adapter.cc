// The adapter thread's loop: handle arriving packets, deliver held packets that are due, send, and sleep until the next
// event. The lock is released while the thread sleeps, and between iterations, which are short.
#include "tests/softverbs/native/adapter.h"

#include <pthread.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <exception>
#include <new>

namespace weft::softverbs {
namespace {

constexpr int kArrivalsPerRound = 64;
constexpr std::size_t kAnswersMax = 4096;

}  // namespace

std::int64_t now_ns() noexcept {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return std::int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

Adapter& Adapter::the() {
  static auto* const one = new Adapter();  // never destroyed, because its thread may outlive main()
  return *one;
}

Context* Adapter::open(ibv_device* device, std::uint32_t index) {
  const std::lock_guard opening(opening_);
  const std::lock_guard lock(mutex);
  std::string error;
  auto made = std::make_unique<Context>();
  if (contexts_.empty()) {
    if (!read_settings(&settings, &error)) {
      errno = EINVAL;
      return nullptr;
    }
    if (!link_.open(&error)) return nullptr;
    for (auto& each : counts_) each = 0;
    stopping_ = false;
    // Blocks all signals in this thread, so that the application's threads get them.
    sigset_t all, before;
    ::sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, &before);
    try {
      thread_ = std::thread([this] { run(); });
    } catch (const std::exception&) {
      link_.close();
    }
    ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
    if (!thread_.joinable()) {
      errno = EAGAIN;
      return nullptr;
    }
  }
  made->device = device;
  made->async_fd = ::eventfd(0, EFD_CLOEXEC | EFD_SEMAPHORE);
  made->cmd_fd = -1;
  made->num_comp_vectors = 1;
  made->gid = gid_of(link_.host(), index);
  contexts_.insert(made.get());
  return made.release();
}

void Adapter::close(Context* context) {
  const std::lock_guard opening(opening_);
  std::unique_lock lock(mutex);
  contexts_.erase(context);
  ::close(context->async_fd);
  delete context;
  if (!contexts_.empty()) return;
  stopping_ = true;
  link_.wake();
  lock.unlock();
  thread_.join();
  lock.lock();
  link_.close();
  held_.clear();
  answers_.clear();
}

void Adapter::touch(Qp* pair) {
  busy_.insert(pair->qp_num);
  if (asleep_) link_.wake();
  asleep_ = false;
}

Link::Sent Adapter::send(std::int64_t now_ns, const Packet& packet, const std::uint8_t* payload) noexcept {
  const Link::Sent sent = link_.send(now_ns, packet, payload);
  if (sent == Link::Sent::taken) add(Count::sent);
  if (sent == Link::Sent::lost) add(Count::unreachable);
  return sent;
}

// Sends an acknowledgment or NACK. If the peer's socket buffer is full, the packet is queued: if it were lost, the peer
// would have to send the data again.
void Adapter::answer(std::int64_t now_ns, const Packet& packet) {
  if (answers_.empty() && send(now_ns, packet, nullptr) != Link::Sent::full) return;
  if (answers_.size() < kAnswersMax) answers_.push_back(packet);
}

void Adapter::arrive(const Packet& packet, const std::uint8_t* payload) {
  Qp* const pair = find(packet.to);
  if (pair == nullptr || (pair->state != IBV_QPS_RTR && pair->state != IBV_QPS_RTS)) return;
  const auto* context = static_cast<const Context*>(pair->context);
  if (packet.service != pair->qp_type ||
      std::memcmp(packet.destination.raw, context->gid.raw, sizeof packet.destination.raw) != 0) {
    return;
  }
  add(Count::received);
  if (pair->qp_type == IBV_QPT_UD) {
    on_datagram(pair, packet, payload);
    return;
  }
  // A connected queue pair accepts packets only from the remote queue pair that it is connected to.
  if (packet.from != pair->far_number || std::memcmp(packet.source.raw, pair->far.raw, sizeof packet.source.raw) != 0) {
    return;
  }
  if (packet.kind == Kind::data) {
    on_data(now_ns(), pair, packet, payload);
  } else {
    on_answer(now_ns(), pair, packet);
  }
}

// Handles arriving packets. Returns true if there may be more.
bool Adapter::take_arrivals(std::int64_t now_ns) {
  Held due;
  while (held_.take(now_ns, &due)) arrive(due.packet, due.payload.data());
  Packet packet;
  for (int taken = 0; taken < kArrivalsPerRound; ++taken) {
    if (!link_.receive(&packet, in_.data())) return false;
    const Fate fate = fate_of(settings, packet);
    if (fate.reordered) add(Count::reordered);
    if (fate.late) add(Count::late);
    if (fate.doubled) {
      add(Count::duplicated);
      if (!held_.hold(now_ns + fate.copy_delay_ns, packet, in_.data())) add(Count::lost);
    }
    // NOLINTNEXTLINE(bugprone-branch-clone)
    if (fate.lost) {
      add(Count::lost);
    } else if (fate.delay_ns == 0) {
      arrive(packet, in_.data());
    } else if (!held_.hold(now_ns + fate.delay_ns, packet, in_.data())) {
      add(Count::lost);
    }
  }
  return true;
}

// Runs one iteration. `more` is set if there is more work now, and `due` to the time of the next work if no packet
// arrives.
void Adapter::round(std::int64_t now, bool* more, std::int64_t* due) {
  *more = take_arrivals(now);
  while (!answers_.empty() && send(now, answers_.front(), nullptr) != Link::Sent::full) answers_.pop_front();
  *due = held_.due_ns();
  for (auto each = busy_.begin(); each != busy_.end();) {
    Qp* const pair = find(*each);
    if (pair == nullptr || pair->requests.empty()) {
      each = busy_.erase(each);
      continue;
    }
    on_time(now, pair);
    *more = transmit(now, pair) || *more;
    *due = std::min(*due, due_ns(now, *pair));
    ++each;
  }
}

void Adapter::run() {
  std::unique_lock lock(mutex);
  while (!stopping_) {
    bool more = false;
    std::int64_t due = INT64_MAX;
    try {
      round(now_ns(), &more, &due);
    } catch (const std::bad_alloc&) {  // out of memory: the packet is lost, as it can be on a wire
      add(Count::lost);
      more = true;
    }
    asleep_ = !more;
    lock.unlock();
    // If there is more work, the timeout is zero, and the call only lets other threads take the lock.
    link_.wait(more ? 0 : due == INT64_MAX ? -1 : std::max<std::int64_t>(due - now_ns(), 0));
    lock.lock();
    asleep_ = false;
  }
}

}  // namespace weft::softverbs
