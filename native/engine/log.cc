// The queue of log lines and the thread that writes them. Lines are written without the lock, so that no caller waits
// for a terminal. LogWriter is never destroyed, because threads may log while the process exits.
#include "native/engine/log.h"

#include <poll.h>
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <new>
#include <thread>
#include <utility>

#include "native/engine/clock.h"
#include "native/engine/signals_blocked.h"

namespace weft::engine {
namespace {

constexpr std::int64_t kFarewellNs = 250'000'000;

struct LogLine {
  LogLevel level = LogLevel::warn;
  std::string text;
  std::int64_t dropped_before = 0;
};

std::atomic<LogLevel> level_in_force{LogLevel::warn};

// The sink of a forked child. The parent's sink could block there, if a thread of the parent held one of its locks
// during the fork.
void drop_line(LogLevel, const char*) noexcept {}

void write_line(LogLevel level, const std::string& text) noexcept {
  constexpr const char* kNames[] = {"error", "warning", "info", "debug"};
  const std::string line = std::string("weft ") + kNames[static_cast<int>(level)] + ": " + text + "\n";
  for (std::size_t at = 0; at < line.size();) {
    const ssize_t wrote = ::write(STDERR_FILENO, line.data() + at, line.size() - at);
    if (wrote > 0) {
      at += static_cast<std::size_t>(wrote);
    } else if (errno == EAGAIN) {  // the application has made standard error non-blocking
      pollfd room{STDERR_FILENO, POLLOUT, 0};
      static_cast<void>(::poll(&room, 1, -1));
      if ((room.revents & (POLLERR | POLLNVAL)) != 0) return;
    } else if (errno != EINTR) {
      return;  // the line is dropped
    }
  }
}

class LogWriter {
 public:
  static LogWriter& instance() noexcept {
    alignas(LogWriter) static std::byte place[sizeof(LogWriter)];
    static LogWriter* const writer = new (place) LogWriter;
    return *writer;
  }

  void append(LogLevel level, std::string_view text) noexcept {
    try {
      LogLine line{level, std::string(text.substr(0, kLogLineBytesMax)), 0};
      const auto controls = [](char byte) { return (byte >= 0 && byte < 0x20) || byte == 0x7f; };
      std::replace_if(line.text.begin(), line.text.end(), controls, '?');
      const std::lock_guard<std::mutex> lock(mutex_);
      if (count_ == kLogLinesMax) {
        ++dropped_;
        return;
      }
      line.dropped_before = std::exchange(dropped_, 0);
      lines_[(first_ + count_++) % kLogLinesMax] = std::move(line);
      if (!running_) start();
      wake_.notify_one();
    } catch (...) {
      // Out of memory: the line is dropped.
    }
  }
  void sink(LogSink to) noexcept {
    const std::lock_guard<std::mutex> lock(mutex_);
    sink_ = to;
  }
  bool flush(std::int64_t patience_ns) noexcept {
    std::unique_lock<std::mutex> lock(mutex_);
    return wait(&lock, patience_ns, [this] { return !running_ || (count_ == 0 && dropped_ == 0 && !writing_); });
  }
  void use() noexcept {
    const std::lock_guard<std::mutex> lock(mutex_);
    ++uses_;
    leaving_ = false;
  }
  void leave() noexcept {
    std::unique_lock<std::mutex> lock(mutex_);
    if (uses_ == 0 || --uses_ != 0 || !running_) return;  // uses_ is 0 in a forked child
    leaving_ = true;
    wake_.notify_one();
    // If the writing thread is blocked in a write, it ends after the write; the wait for its end is limited.
    static_cast<void>(wait(&lock, kFarewellNs, [this] { return !running_ || !leaving_; }));
  }

 private:
  LogWriter() noexcept { ::pthread_atfork(&before_fork, &after_fork, &in_child); }

  // The lock is held during a fork, so that the child's copy of the state is consistent.
  static void before_fork() noexcept { instance().mutex_.lock(); }
  static void after_fork() noexcept { instance().mutex_.unlock(); }
  static void in_child() noexcept {
    LogWriter& writer = instance();
    new (&writer.wake_) std::condition_variable;  // the old object counts waiting threads that the child does not have
    writer.first_ = writer.count_ = 0;
    writer.dropped_ = writer.uses_ = 0;
    writer.running_ = writer.writing_ = writer.leaving_ = false;
    if (writer.sink_ != nullptr) writer.sink_ = &drop_line;
    writer.mutex_.unlock();
  }

  // Waits until done() is true, for at most `patience_ns`. It polls, because a condition wait with a timeout needs a
  // newer C library than the plugin may require.
  template <typename Done>
  static bool wait(std::unique_lock<std::mutex>* lock, std::int64_t patience_ns, const Done& done) noexcept {
    const std::int64_t until_ns = later_ns(now_ns(), patience_ns);
    while (!done()) {
      if (now_ns() >= until_ns) return false;
      lock->unlock();
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      lock->lock();
    }
    return true;
  }

  // Starts the writing thread; the caller must hold the lock.
  void start() noexcept {
    const SignalsBlocked blocked;
    pthread_t thread;
    running_ = ::pthread_create(&thread, nullptr, &run, this) == 0;
    if (running_) {
      ::pthread_setname_np(thread, "weft-log");
      ::pthread_detach(thread);
    }
  }
  static void* run(void* writer) noexcept {
    static_cast<LogWriter*>(writer)->write_all();
    return nullptr;
  }
  void write_all() noexcept {
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
      wake_.wait(lock, [this] { return count_ != 0 || dropped_ != 0 || leaving_; });
      if (count_ == 0 && dropped_ == 0) break;
      LogLine line;
      if (count_ != 0) {
        line = std::move(lines_[first_]);
        first_ = (first_ + 1) % kLogLinesMax;
        --count_;
      } else {
        line.dropped_before = std::exchange(dropped_, 0);  // this line only reports that the newest lines were dropped
      }
      writing_ = true;
      const LogSink sink = sink_;
      lock.unlock();
      write(sink, line);
      lock.lock();
      writing_ = false;
    }
    running_ = leaving_ = false;
  }
  static void write(LogSink sink, const LogLine& line) noexcept {
    try {
      if (line.dropped_before != 0) {
        write(sink, LogLevel::warn,
              std::to_string(line.dropped_before) + " lines were dropped here: the reader of the log is too slow");
      }
      if (!line.text.empty()) write(sink, line.level, line.text);
    } catch (...) {  // out of memory: the line is dropped
    }
  }
  static void write(LogSink sink, LogLevel level, const std::string& text) {
    if (sink != nullptr) return sink(level, text.c_str());
    write_line(level, text);
  }

  std::mutex mutex_;
  std::condition_variable wake_;
  std::array<LogLine, kLogLinesMax> lines_;  // circular: `count_` lines, beginning at `first_`
  std::size_t first_ = 0, count_ = 0;
  std::int64_t dropped_ = 0;  // number of lines dropped since the newest queued line
  std::int64_t uses_ = 0;
  bool running_ = false;  // the writing thread exists
  bool writing_ = false;  // a line was taken from the queue and is being written
  bool leaving_ = false;  // the thread is to end when the queue is empty
  LogSink sink_ = nullptr;
};

// Waits for the last lines of a process, because exit() would end the writing thread at any point.
struct AtExit {
  ~AtExit() { static_cast<void>(flush_log(kFarewellNs)); }
};
const AtExit at_exit;

}  // namespace

void set_log_level(LogLevel level) noexcept { level_in_force.store(level, std::memory_order_relaxed); }

bool logs(LogLevel level) noexcept { return level <= level_in_force.load(std::memory_order_relaxed); }

void log(LogLevel level, std::string_view text) noexcept {
  if (logs(level)) log_always(level, text);
}

void log_always(LogLevel level, std::string_view text) noexcept { LogWriter::instance().append(level, text); }

void set_log_sink(LogSink sink) noexcept { LogWriter::instance().sink(sink); }

bool flush_log(std::int64_t patience_ns) noexcept { return LogWriter::instance().flush(patience_ns); }

LogUse::LogUse() noexcept { LogWriter::instance().use(); }

LogUse::~LogUse() { LogWriter::instance().leave(); }

}  // namespace weft::engine
