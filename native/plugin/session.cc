// Starts and stops the process's only runtime, and owns the listeners, connection attempts and comms that NCCL may
// abandon. Threads are joined outside the lock, so that other calls are not held up.
#include "native/plugin/session.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <exception>
#include <iterator>
#include <new>
#include <thread>
#include <utility>

#include "native/engine/signals_blocked.h"

namespace weft::nccl {

Session& Session::instance() noexcept {
  static Session* const session = new Session;
  return *session;
}

// Starts the runtime if it does not run. The lock must be held.
Status Session::start() {
  if (runtime_ != nullptr) return Status::ok;
  const std::lock_guard stopped(stop_mutex_);
  std::string error;
  const Status status = message::Runtime::open(knobs_, &runtime_, &error);
  if (status != Status::ok) {
    runtime_.reset();
    log(engine::LogLevel::warn, "cannot start the transport: " + error);
    return status;
  }
  return Status::ok;
}

// Reads the knobs, starts the runtime and lists its devices. The lock must be held. On failure, the session is
// unchanged except for its logger.
Status Session::open(Logger logger) {
  // Runs the log's thread even if the runtime fails to start, so that the reason is logged.
  const engine::LogUse uses_log;
  if (logger != nullptr) {
    const std::lock_guard lock(log_mutex_);
    log_ = logger;
  }
  engine::set_log_sink(&Session::to_nccl);
  const bool first = runtime_ == nullptr;
  if (first) {
    engine::Knobs knobs;
    std::string error;
    if (const Status status = engine::load_knobs(&knobs, &error); status != Status::ok) {
      log(engine::LogLevel::warn, error);
      return status;
    }
    knobs_ = std::move(knobs);
  }
  if (const Status status = start(); status != Status::ok) return status;
  if (runtime_->devices().empty()) {
    log(engine::LogLevel::warn, "no usable network interface: check WEFT_INTERFACES and NCCL_SOCKET_IFNAME");
    runtime_.reset();
    return Status::address_unavailable;
  }
  const auto same = [](const datapath::Device& a, const datapath::Device& b) {
    return a.name == b.name && a.guid == b.guid;
  };
  const std::vector<datapath::Device>& found = runtime_->devices();
  // NCCL keeps pointers to the device names in a list, so a changed list is appended instead of replacing the old one.
  if (device_lists_.empty() ||
      !std::equal(found.begin(), found.end(), device_lists_.back().begin(), device_lists_.back().end(), same)) {
    device_lists_.push_back(found);
  }
  if (first) log(engine::LogLevel::info, runtime_->summary());
  return Status::ok;
}

Status Session::init(Logger logger) {
  const std::lock_guard lock(mutex_);
  return open(logger);
}

Status Session::init(Logger logger, std::uint64_t comm_id, int traffic_class, void** context) {
  const std::lock_guard lock(mutex_);
  auto made = std::make_unique<Context>();
  made->comm_id = comm_id;
  made->traffic_class = traffic_class;
  if (const Status status = open(logger); status != Status::ok) return status;
  *context = contexts_.add(std::move(made));
  return *context == nullptr ? Status::out_of_memory : Status::ok;
}

void Session::finalize(const void* context) {
  std::unique_lock stop(stop_mutex_, std::defer_lock);
  std::shared_ptr<message::Runtime> stopping;
  std::vector<std::unique_ptr<Comm>> comms;
  std::vector<std::unique_ptr<ListenComm>> listeners;
  std::vector<std::shared_ptr<Attempt>> attempts;
  bool last = false;
  {
    const std::lock_guard lock(mutex_);
    if (contexts_.remove(context) == nullptr) return;
    last = contexts_.empty();
    // Collects what NCCL has not closed in this context; with the last context, also what belongs to no context.
    comms = comms_.remove_if([&](const Comm& comm) { return last || comm.context() == context; });
    listeners = listeners_.remove_if([&](const ListenComm& each) { return last || each.context == context; });
    for (auto entry = attempts_.begin(); entry != attempts_.end();) {
      const bool gone = last || entry->second->context() == context;
      if (gone) attempts.push_back(std::move(entry->second));
      entry = gone ? attempts_.erase(entry) : std::next(entry);
    }
    if (last) {
      stop.lock();
      stopping = std::move(runtime_);
    }
  }
  // The collected objects are destroyed outside the lock: first the users of the runtime, then the runtime, which joins
  // its threads.
  comms.clear();
  attempts.clear();
  listeners.clear();
  stopping.reset();
  if (last) stop.unlock();
  if (last) forget_logger();
}

bool Session::knows(const void* context, int* traffic_class) const noexcept {
  if (context == nullptr) return true;
  const Context* const found = contexts_.find(context);
  if (found != nullptr) *traffic_class = found->traffic_class;
  return found != nullptr;
}

// Writes pending log lines now, within a time limit, because NCCL may unload its logger once the last finalize has
// returned.
void Session::forget_logger() {
  constexpr std::int64_t kPatienceNs = 250'000'000;
  static_cast<void>(engine::flush_log(kPatienceNs));
  const std::lock_guard lock(mutex_);
  if (!contexts_.empty()) return;
  const std::lock_guard log_lock(log_mutex_);
  log_ = nullptr;
}

const std::vector<datapath::Device>& Session::devices() {
  static const std::vector<datapath::Device> none;
  const std::lock_guard lock(mutex_);
  return device_lists_.empty() ? none : device_lists_.back();
}

std::int64_t Session::nccl_speed_mbps() {
  const std::lock_guard lock(mutex_);
  return knobs_.nccl_speed_mbps;
}

int Session::nccl_receives_max() {
  const std::lock_guard lock(mutex_);
  return static_cast<int>(knobs_.nccl_receives_max);
}

Status Session::runtime(std::shared_ptr<message::Runtime>* out) {
  const std::lock_guard lock(mutex_);
  if (device_lists_.empty()) return Status::invalid_argument;  // init() was not called, or it failed
  if (const Status status = start(); status != Status::ok) return status;
  *out = runtime_;
  return Status::ok;
}

std::vector<std::shared_ptr<Attempt>> Session::attempts() {
  const std::lock_guard lock(mutex_);
  std::vector<std::shared_ptr<Attempt>> all;
  all.reserve(attempts_.size());
  for (const auto& [id, attempt] : attempts_) all.push_back(attempt);
  return all;
}

void Session::settle() {
  for (const std::shared_ptr<Attempt>& attempt : attempts()) attempt->release_if_failed();
  if (release_runtime(false)) watch_attempts();
}

bool Session::release_runtime(bool by_watcher) {
  std::unique_lock stop(stop_mutex_, std::defer_lock);  // released after the runtime has stopped
  std::shared_ptr<message::Runtime> stopping;           // destroyed without mutex_
  const std::lock_guard lock(mutex_);
  if (contexts_.empty() && runtime_ != nullptr) {
    // Comms, listeners and attempts share ownership of the runtime, and so does a call that is about to add one of
    // them.
    if (runtime_.use_count() > 1 && comms_.empty() && listeners_.empty()) return true;
    if (runtime_.use_count() == 1) {
      stop.lock();
      stopping = std::move(runtime_);
    }
  }
  if (by_watcher) watching_attempts_ = false;
  return false;
}

void Session::watch() noexcept {
  constexpr auto kPeriod = std::chrono::milliseconds(100);
  for (bool needed = true; needed;) {
    std::this_thread::sleep_for(kPeriod);
    try {
      for (const std::shared_ptr<Attempt>& attempt : attempts()) attempt->release_if_ended();
      needed = release_runtime(true);
    } catch (const std::bad_alloc&) {
      // There may be memory in the next round.
    }
  }
}

// A session is never destroyed, so the thread needs no owner.
void Session::watch_attempts() {
  {
    const std::lock_guard lock(mutex_);
    if (std::exchange(watching_attempts_, true)) return;
  }
  const engine::SignalsBlocked blocked;  // the application's threads handle signals
  try {
    std::thread([this] { watch(); }).detach();
  } catch (const std::exception&) {
    const std::lock_guard lock(mutex_);
    watching_attempts_ = false;  // the next call that settles tries again
  }
}

std::uint64_t Session::add_attempt(std::shared_ptr<Attempt> attempt) {
  const std::lock_guard lock(mutex_);
  const std::uint64_t id = next_attempt_++;
  attempts_.emplace(id, std::move(attempt));
  return id;
}

std::shared_ptr<Attempt> Session::find_attempt(std::uint64_t id, const control::Handle& handle) {
  const std::lock_guard lock(mutex_);
  const auto found = attempts_.find(id);
  if (found == attempts_.end()) return nullptr;
  if (std::memcmp(found->second->handle().bytes, handle.bytes, control::kHandleBytes) != 0) return nullptr;
  return found->second;
}

void Session::remove_attempt(std::uint64_t id) {
  const std::lock_guard lock(mutex_);
  attempts_.erase(id);
}

void Session::log(engine::LogLevel level, const std::string& text) { engine::log_always(level, text); }

void Session::to_nccl(engine::LogLevel level, const char* text) noexcept {
  Session& session = instance();
  const std::lock_guard lock(session.log_mutex_);
  if (session.log_ == nullptr) return;
  const int nccl_level = level == engine::LogLevel::debug  ? kLogTrace
                         : level == engine::LogLevel::info ? kLogInfo
                                                           : kLogWarn;
  session.log_(nccl_level, kLogInit | kLogNet, "weft", 0, "NET/weft: %s", text);
}

}  // namespace weft::nccl
