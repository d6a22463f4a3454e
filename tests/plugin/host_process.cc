// Scenarios for effects of the plugin on its process: threads, signals, descriptors, libraries,
// unloading. README.md lists the points. None needs two processes.
#include <dlfcn.h>
#include <fcntl.h>

#include <atomic>
#include <csignal>
#include <fstream>
#include <memory>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "tests/plugin/host_scenarios.h"

namespace host {
namespace {

// Runs progress threads, each with its comms, a service thread that registers on the same comms, and a thread that
// creates and ends communicators.
void threads_share_the_plugin(Side& side) {
  side.start();
  constexpr std::size_t count = 3;
  std::vector<Link> links;
  for (std::size_t i = 0; i < count; ++i) links.push_back(side.link());
  std::atomic<std::size_t> left{count};
  std::vector<std::thread> progress;
  for (const Link& link : links) {
    progress.emplace_back([&side, &left, link] {
      for (int round = 0; round < 10; ++round) exchange(side, link, {0, 64, 20000, 0, 3});
      --left;
    });
  }
  std::thread service([&] {
    Buffer memory(1 << 16);
    while (left > 0) {
      for (const Link& link : links) {
        for (void* const comm : {link.send, link.receive}) {
          void* mhandle = nullptr;
          REQUIRE(side.net.reg(comm, memory.data(), 1 << 16, &mhandle) == Result::success && mhandle != nullptr);
          REQUIRE(side.net.dereg(comm, mhandle) == Result::success);
        }
      }
    }
  });
  std::thread setup([&] {
    while (left > 0) {
      void* context = nullptr;
      Facts facts;
      REQUIRE(side.net.init(&context) == Result::success);
      REQUIRE(side.net.properties(0, &facts) == Result::success);
      REQUIRE(side.net.finalize(context) == Result::success);
    }
  });
  for (std::thread& each : progress) each.join();
  service.join();
  setup.join();
  side.barrier();
  for (const Link& link : links) side.unlink(link);
  side.stop();
}

// Before version 11 there is no finalize: NCCL unloads the library while its threads run, and loads
// it again.
void unloading_while_threads_run(Side& side) {
  side.start();
  Handle handle;
  side.listen(handle.bytes);  // never closed, so that the engines continue to run
  side.barrier();
  REQUIRE(dlclose(library) == 0);
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  side.barrier();
  Dl_info info{};
  REQUIRE(dladdr(side.net.name(), &info) != 0);
  library = dlopen(info.dli_fname, RTLD_NOW | RTLD_LOCAL);
  REQUIRE(library != nullptr);
  side.start();
  const Link link = side.link();
  exchange(side, link, {0, 1000});
  side.barrier();
  side.unlink(link);
}

// Closed connections leave neither a descriptor nor a thread.
void closed_connections_leave_nothing(Side& side) {
  side.start();
  const Link first = side.link();  // made first, because it opens descriptors that all connections share
  const auto round = [&] {
    const Link link = side.link();
    exchange(side, link, {0, 100});
    side.barrier();
    side.unlink(link);
    side.barrier();
  };
  for (int i = 0; i < 5; ++i) round();
  side.barrier();
  const std::size_t descriptors = open_descriptors().size();
  const std::size_t running = threads().size();
  side.barrier();
  for (int i = 0; i < 60; ++i) round();
  const Deadline deadline;  // waits for a limited time, because the peer may close its end a little later
  while (open_descriptors().size() > descriptors + 4 || threads().size() > running) REQUIRE(!deadline.over());
  side.barrier();
  side.unlink(first);
  side.stop();
}

// The plugin's descriptors are closed on exec, so that a started program does not inherit them.
void descriptors_close_on_exec(Side& side) {
  const std::set<int> before = open_descriptors();
  side.barrier();
  on_a_link(side, [&](const Link& link) {
    Handle handle;
    void* const listener = side.listen(handle.bytes);
    exchange(side, link, {0, 100000});
    const std::set<int> now = open_descriptors();
    REQUIRE(now.size() > before.size());
    for (const int each : now) {
      if (before.count(each) == 0) REQUIRE((fcntl(each, F_GETFD) & FD_CLOEXEC) != 0);
    }
    REQUIRE(side.net.close_listen(listener) == Result::success);
    side.barrier();
  });
}

// The program's signal handlers and masks are not changed, and the plugin's threads block signals.
void signals_are_left_alone(Side& side) {
  const auto handlers = [] {
    std::vector<void (*)(int)> found;
    for (int number = 1; number < 32; ++number) {
      struct sigaction action{};
      if (sigaction(number, nullptr, &action) == 0) found.push_back(action.sa_handler);
    }
    return found;
  };
  const auto before = handlers();
  const std::set<int> own = threads();
  sigset_t mask_before;
  sigset_t mask_after;
  pthread_sigmask(SIG_SETMASK, nullptr, &mask_before);
  side.barrier();
  on_a_link(side, [&](const Link& link) {
    exchange(side, link, {0, 100000});
    REQUIRE(handlers() == before);
    std::size_t added = 0;
    for (const int thread : threads()) {
      if (own.count(thread) != 0) continue;
      ++added;
      std::ifstream status("/proc/self/task/" + std::to_string(thread) + "/status");
      std::string line;
      while (std::getline(status, line)) {
        if (line.rfind("SigBlk:", 0) != 0) continue;
        const std::uint64_t blocked = std::stoull(line.substr(7), nullptr, 16);
        for (const int number : {SIGHUP, SIGINT, SIGTERM, SIGPIPE, SIGUSR1, SIGUSR2, SIGALRM, SIGCHLD, SIGPROF}) {
          REQUIRE((blocked >> (number - 1) & 1) != 0);
        }
      }
    }
    REQUIRE(added > 0);
    side.barrier();
  });
  pthread_sigmask(SIG_SETMASK, nullptr, &mask_after);
  for (int number = 1; number < 32; ++number) {
    REQUIRE(sigismember(&mask_before, number) == sigismember(&mask_after, number));
  }
}

// No call may crash the profiler. The calls come with a parent, without one, and with a parent that is freed when its
// request is done; host_net.h checks each of them.
void the_profiler_is_called_with_care(Side& side) {
  on_a_link(side, [&](const Link& link) {
    exchange(side, link, {0, 1000, 100000});
    auto parent = std::make_unique<Buffer>(64);
    side.net.parent = parent->data();
    exchange(side, link, {0, 1000, 100000});
    side.net.parent = nullptr;
    parent.reset();
    exchange(side, link, {0, 1000});
  });
  side.barrier();
  profiler_open = false;
  side.barrier();
}

// A plugin for host memory loads no CUDA library, so none of its calls can wait for a GPU.
void no_cuda_is_loaded(Side& side) {
  on_a_link(side, [&](const Link& link) {
    exchange(side, link, {0, 1000, 100000});
    std::ifstream maps("/proc/self/maps");
    std::stringstream text;
    text << maps.rdbuf();
    for (const char* name : {"libcuda", "libcudart", "libnccl.so"}) REQUIRE(text.str().find(name) == std::string::npos);
  });
}

// Each rank has a file of rules; connections between ranks with different rules fail at once, as NCCL would hang later.
// The rules count, and not the text.
void ranks_with_other_rules_are_refused(Side& side) {
  const char* const folder = std::getenv("RULES");
  REQUIRE(folder != nullptr);
  const std::string file = std::string(folder) + "/" + std::to_string(side.rank);
  const bool same = std::getenv("RULES_SAME") != nullptr;
  REQUIRE(::setenv("WEFT_TUNE", file.c_str(), 1) == 0);
  side.start();
  Handle own;
  void* const listener = side.listen(own.bytes);
  side.tell(own);
  Handle peer = side.hear<Handle>();
  if (same) {
    const Link link = side.link_through(listener, peer);
    exchange(side, link, {0, 1000});
    side.barrier();
    side.unlink(link);
  } else {
    void* comm = nullptr;
    REQUIRE(side.net.connect(side.context, 0, peer.bytes, &comm) == Result::invalid_argument);
    REQUIRE(comm == nullptr);
    // A connection to itself works.
    const Link link = side.link_through(listener, own);
    side.barrier();
    side.unlink(link);
  }
  REQUIRE(side.net.close_listen(listener) == Result::success);
  side.stop();
}

}  // namespace

const Scenarios& process_scenarios() {
  static const Scenarios all = {
      {"ranks_with_other_rules_are_refused", ranks_with_other_rules_are_refused},
      {"threads_share_the_plugin", threads_share_the_plugin},
      {"unloading_while_threads_run", unloading_while_threads_run},
      {"closed_connections_leave_nothing", closed_connections_leave_nothing},
      {"descriptors_close_on_exec", descriptors_close_on_exec},
      {"signals_are_left_alone", signals_are_left_alone},
      {"the_profiler_is_called_with_care", the_profiler_is_called_with_care},
      {"no_cuda_is_loaded", no_cuda_is_loaded},
  };
  return all;
}

}  // namespace host
