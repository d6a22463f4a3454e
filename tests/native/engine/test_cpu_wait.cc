// Tests how long threads waited for a core, with a folder in the place of the kernel's /proc/self/task.
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>

#include "native/engine/clock.h"
#include "native/engine/trace/cpu_wait.h"
#include "native/engine/trace/trace_writer.h"
#include "tests/native/check.h"

using weft::engine::CpuWait;
using weft::engine::TraceWriter;

namespace {

class Tasks {
 public:
  Tasks() {
    char name[] = "/tmp/weft-tasks-XXXXXX";
    root = ::mkdtemp(name);
  }
  ~Tasks() { std::filesystem::remove_all(root); }
  // Writes what the kernel counts of a thread.
  void write(int thread, const std::string& schedstat) const {
    const std::string folder = root + "/" + std::to_string(thread);
    std::filesystem::create_directories(folder);
    std::ofstream(folder + "/schedstat") << schedstat << "\n";
  }
  void end(int thread) const { std::filesystem::remove_all(root + "/" + std::to_string(thread)); }
  // The bytes of all files.
  std::string bytes() const {
    std::string all;
    for (const auto& entry : std::filesystem::directory_iterator(root)) {
      std::ifstream file(entry.path(), std::ios::binary);
      all.append(std::istreambuf_iterator<char>(file), {});
    }
    return all;
  }
  std::string root;
};

}  // namespace

TEST(cpu_wait__is_that_of_the_thread_that_waited_most_since_the_call_before) {
  const Tasks tasks;
  tasks.write(10, "5000 100 7");
  tasks.write(9, "5000 4000000000000 7");
  CpuWait wait(tasks.root);
  CHECK_EQUAL(wait.longest_ns(), -1);  // nothing to compare with
  tasks.write(10, "6000 900 8");
  tasks.write(9, "6000 4000000000300 8");
  CHECK_EQUAL(wait.longest_ns(), 800);
  tasks.write(9, "7000 4000000000350 9");
  CHECK_EQUAL(wait.longest_ns(), 50);
  CHECK_EQUAL(wait.longest_ns(), 0);
}

TEST(cpu_wait__threads_may_begin_and_end) {
  const Tasks tasks;
  tasks.write(10, "0 100 1");
  tasks.write(11, "0 100 1");
  CpuWait wait(tasks.root);
  CHECK_EQUAL(wait.longest_ns(), -1);
  tasks.end(11);
  tasks.write(12, "0 7000 1");
  tasks.write(10, "0 101 1");
  CHECK_EQUAL(wait.longest_ns(), 1);
  tasks.write(12, "0 7100 1");
  CHECK_EQUAL(wait.longest_ns(), 100);
  tasks.write(10, "0 3 1");  // another thread with the id of one that has ended
  CHECK_EQUAL(wait.longest_ns(), 0);
}

TEST(cpu_wait__is_not_known_if_the_kernel_does_not_count_it) {
  const Tasks tasks;
  std::filesystem::create_directories(tasks.root + "/10");  // without schedstat
  CpuWait wait(tasks.root), nothing(tasks.root + "/no-folder");
  for (int i = 0; i < 2; ++i) {
    CHECK_EQUAL(wait.longest_ns(), -1);
    CHECK_EQUAL(nothing.longest_ns(), -1);
  }
  for (const char* text : {"", "12", "a b c", "5 -1 2"}) {
    tasks.write(10, text);
    CHECK_EQUAL(wait.longest_ns(), -1);
  }
}

TEST(cpu_wait__reads_a_limited_number_of_threads) {
  const Tasks tasks;
  for (int thread = 1; thread <= 600; ++thread) tasks.write(thread, "0 1 1");
  CpuWait wait(tasks.root);
  CHECK_EQUAL(wait.longest_ns(), -1);
  CHECK_EQUAL(wait.longest_ns(), 0);
}

TEST(cpu_wait__of_this_process_is_counted_by_its_kernel) {
  if (!std::filesystem::exists("/proc/self/schedstat")) return;  // this kernel does not count it
  CpuWait wait;
  CHECK_EQUAL(wait.longest_ns(), -1);
  CHECK(wait.longest_ns() >= 0);
}

TEST(cpu_wait__is_in_the_trace_of_a_process_that_runs_for_some_seconds) {
  if (!std::filesystem::exists("/proc/self/schedstat")) return;  // this kernel does not count it
  constexpr std::int64_t kPatienceNs = 30'000'000'000;
  const Tasks folder;
  std::string error;
  const auto writer = TraceWriter::open(folder.root, {}, &error);
  CHECK_EQUAL(error, std::string());
  const std::int64_t until_ns = weft::engine::now_ns() + kPatienceNs;
  while (folder.bytes().find("cpu_wait") == std::string::npos) {
    CHECK(weft::engine::now_ns() < until_ns);
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
}
