// Tests that log lines arrive whole, in order and bounded in number, and that callers never wait, even if nothing reads
// the log.
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "native/engine/log.h"
#include "tests/native/check.h"

namespace {

using namespace weft::engine;

constexpr std::int64_t kPatienceNs = 60'000'000'000;

// State of a log sink that blocks at each line until `permits` allows the line.
struct Gate {
  std::mutex mutex;
  std::vector<std::string> lines;
  std::atomic<int> entered{0}, permits{0};
};
Gate gate;

void gated(LogLevel, const char* text) noexcept {
  const int mine = ++gate.entered;
  while (gate.permits < mine) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  const std::lock_guard<std::mutex> lock(gate.mutex);
  gate.lines.push_back(text);
}

std::vector<std::string> lines_of(int permits) {
  gate.permits = permits;
  CHECK(flush_log(kPatienceNs));
  set_log_sink(nullptr);
  const std::lock_guard<std::mutex> lock(gate.mutex);
  return gate.lines;
}

void begin(int permits) {
  gate.lines.clear();
  gate.entered = 0;
  gate.permits = permits;
  set_log_sink(&gated);
  set_log_level(LogLevel::warn);
}

void until_entered(int lines) {
  while (gate.entered < lines) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

// Redirects standard error to a descriptor while the object exists.
class Redirected {
 public:
  explicit Redirected(int to) : before_(::dup(STDERR_FILENO)) { ::dup2(to, STDERR_FILENO); }
  ~Redirected() {
    ::dup2(before_, STDERR_FILENO);
    ::close(before_);
  }

 private:
  int before_;
};

struct Pipe {
  int ends[2];
  Pipe() { CHECK_EQUAL(::pipe(ends), 0); }
  ~Pipe() {
    ::close(ends[0]);
    ::close(ends[1]);
  }
  void fill() const {
    ::fcntl(ends[1], F_SETFL, O_NONBLOCK);
    const std::string some(4096, 'x');
    while (::write(ends[1], some.data(), some.size()) > 0) {
    }
    while (::write(ends[1], "x", 1) > 0) {
    }
    ::fcntl(ends[1], F_SETFL, 0);
  }
  // Reads what has been written to the pipe so far.
  std::string read() const {
    ::fcntl(ends[0], F_SETFL, O_NONBLOCK);
    std::string all, some(1 << 16, 0);
    for (ssize_t count = 0; (count = ::read(ends[0], some.data(), some.size())) > 0;) {
      all.append(some, 0, static_cast<std::size_t>(count));
    }
    return all;
  }
};

}  // namespace

TEST(log__lines_come_in_order_and_a_line_says_what_was_dropped_before_it) {
  const LogUse use;
  begin(0);
  log(LogLevel::warn, "line 0");
  until_entered(1);
  const int most = static_cast<int>(kLogLinesMax);
  for (int i = 1; i <= most + 7; ++i) log(LogLevel::warn, "line " + std::to_string(i));
  gate.permits = 1;
  until_entered(2);  // now the queue has room for one line
  log(LogLevel::error, "after");
  log(LogLevel::error, "too late");
  const std::vector<std::string> lines = lines_of(10'000);
  CHECK_EQUAL(lines.size(), kLogLinesMax + 4);
  for (int i = 0; i <= most; ++i) CHECK_EQUAL(lines[static_cast<std::size_t>(i)], "line " + std::to_string(i));
  CHECK_EQUAL(lines[kLogLinesMax + 1].rfind("7 lines were dropped", 0), 0u);
  CHECK_EQUAL(lines[kLogLinesMax + 2], "after");
  CHECK_EQUAL(lines[kLogLinesMax + 3].rfind("1 lines were dropped", 0), 0u);  // the last line reports dropped lines
}

TEST(log__a_call_is_one_line_of_bounded_length) {
  const LogUse use;
  begin(10);
  log(LogLevel::warn, "one\ntwo\r\tthree\x1b[2J\x7f gr\xc3\xbc\xc3\x9f");
  log(LogLevel::warn, std::string(10'000, 'a'));
  const std::vector<std::string> lines = lines_of(10);
  CHECK_EQUAL(lines.size(), 2u);
  CHECK_EQUAL(lines[0], "one?two??three?[2J? gr\xc3\xbc\xc3\x9f");
  CHECK_EQUAL(lines[1], std::string(kLogLineBytesMax, 'a'));
}

TEST(log__the_level_in_force_holds_but_for_lines_that_are_always_said) {
  const LogUse use;
  begin(10);
  log(LogLevel::info, "not said");
  log_always(LogLevel::info, "said");
  set_log_level(LogLevel::debug);
  log(LogLevel::debug, "said, too");
  const std::vector<std::string> lines = lines_of(10);
  CHECK_EQUAL(lines.size(), 2u);
  CHECK_EQUAL(lines[0], "said");
  CHECK_EQUAL(lines[1], "said, too");
}

TEST(log__standard_error_that_nobody_reads_holds_nobody_up) {
  Pipe pipe;
  pipe.fill();
  const Redirected redirected(pipe.ends[1]);
  set_log_level(LogLevel::warn);
  {
    const LogUse use;
    for (int i = 0; i < 1000; ++i) log(LogLevel::warn, "line " + std::to_string(i));
    CHECK(!flush_log(1'000'000));
  }
  // When the pipe is read again, all lines arrive whole.
  std::string all;
  for (int i = 0; !flush_log(1'000'000); ++i) {
    CHECK(i < 20'000);
    all += pipe.read();
  }
  all += pipe.read();
  const std::size_t begins = all.find("weft warning: line 0\n");
  CHECK(begins != std::string::npos);
  CHECK(all.find("weft warning: line 255\n", begins) != std::string::npos);
  CHECK(all.find(" lines were dropped here", begins) != std::string::npos);
}

// Not under TSan, which ends a child of a multi-threaded process that starts a thread.
#if !defined(__SANITIZE_THREAD__)

namespace {

bool exits_well(pid_t child) {
  int status = -1;
  return ::waitpid(child, &status, 0) == child && status == 0;
}

}  // namespace

TEST(log__a_forked_child_has_a_log_of_its_own) {
  Pipe full, own;
  full.fill();
  const Redirected redirected(full.ends[1]);
  const LogUse use;
  for (int i = 0; i < 10; ++i) log(LogLevel::warn, "the parent's");
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(60);
    ::dup2(own.ends[1], STDERR_FILENO);
    log(LogLevel::warn, "the child's");
    ::_exit(flush_log(kPatienceNs) ? 0 : 1);
  }
  CHECK(exits_well(child));
  CHECK_EQUAL(own.read(), "weft warning: the child's\n");
  while (!flush_log(1'000'000)) static_cast<void>(full.read());
}

// Not under ASan: that of GCC 12 leaves its allocator locked in a child if another thread was allocating.
#if !defined(__SANITIZE_ADDRESS__)

TEST(log__forks_while_others_log) {
  Pipe sink;
  const Redirected redirected(sink.ends[1]);
  const LogUse use;
  std::atomic<bool> stopping{false};
  const auto talk = [&] {
    while (!stopping) log(LogLevel::warn, "much to say");
  };
  std::thread one(talk), other(talk), reader([&] {
    while (!stopping || !flush_log(0)) static_cast<void>(sink.read());
  });
  int well = 0;
  for (int i = 0; i < 50; ++i) {
    const pid_t child = ::fork();
    if (child == 0) {
      ::alarm(60);
      log(LogLevel::warn, "a child's");
      ::_exit(flush_log(kPatienceNs) ? 0 : 1);
    }
    well += exits_well(child);
  }
  stopping = true;
  for (std::thread* thread : {&one, &other, &reader}) thread->join();
  CHECK_EQUAL(well, 50);
}

#endif
#endif
