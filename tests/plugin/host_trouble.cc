// Scenarios with signals, stopped and killed peers and forks: calls fail only if they must, and
// then soon. Every side is a process; a scenario only signals its own processes.
#include <sched.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/plugin/host_scenarios.h"

namespace host {
namespace {

void pause_for(int milliseconds) { std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds)); }

// Stops another rank's process, and waits until it is stopped.
void stop_process(const Peer& peer) {
  REQUIRE(::kill(peer.pid, SIGSTOP) == 0);
  int status = 0;
  REQUIRE(waitpid(peer.pid, &status, WUNTRACED) == peer.pid && WIFSTOPPED(status));
}

void resume_process(const Peer& peer) { REQUIRE(::kill(peer.pid, SIGCONT) == 0); }

void kill_process(Peer* peer) {
  peer->killed = true;
  REQUIRE(::kill(peer->pid, SIGKILL) == 0);
}

std::atomic<int> signals{0};

// Calls work under continuous signals to the process and its threads, with a handler without SA_RESTART.
void signals_interrupt_nothing(Side& side) {
  struct sigaction action{};
  action.sa_handler = [](int) { ++signals; };
  REQUIRE(sigaction(SIGUSR1, &action, nullptr) == 0);
  std::atomic<bool> stopping{false};
  std::thread storm([&] {
    while (!stopping) {
      REQUIRE(::kill(getpid(), SIGUSR1) == 0);
      // The result is ignored, because the thread may have ended meanwhile.
      for (const int thread : threads()) static_cast<void>(::syscall(SYS_tgkill, getpid(), thread, SIGUSR1));
      std::this_thread::sleep_for(std::chrono::microseconds(300));
    }
  });
  side.start();
  for (int round = 0; round < 4; ++round) {
    const Link link = side.link();
    exchange(side, link, std::vector<std::size_t>(kOutstanding, 70000));
    exchange(side, link, {0, 1, 8192, 1 << 20});
    side.barrier();
    side.unlink(link);
  }
  side.stop();
  stopping = true;
  storm.join();
  REQUIRE(signals > 100);
}

// Gives the plugin's threads of this name the lowest priority on one CPU.
void starve_threads(const std::string& name, int cpu) {
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(static_cast<unsigned>(cpu), &one);
  for (const int thread : threads()) {
    std::ifstream file("/proc/self/task/" + std::to_string(thread) + "/comm");
    std::string comm;
    if (!std::getline(file, comm) || comm.rfind(name, 0) != 0) continue;
    static_cast<void>(::sched_setaffinity(thread, sizeof one, &one));
    static_cast<void>(::setpriority(PRIO_PROCESS, static_cast<id_t>(thread), 19));
  }
}

// Deregistering waits until no engine uses the memory, even if signals interrupt the wait and the
// engines are slow. The memory is unmapped afterwards, so a late use would crash the process.
void signals_cut_no_close_short(Side& side) {
  struct sigaction action{};
  action.sa_handler = [](int) { ++signals; };
  REQUIRE(sigaction(SIGUSR1, &action, nullptr) == 0);
  const auto closing_thread = static_cast<pid_t>(::syscall(SYS_gettid));
  std::atomic<bool> closing{false};
  std::atomic<bool> stopping{false};
  const int cpu = sched_getcpu();
  std::thread storm([&] {
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(static_cast<unsigned>(cpu), &one);
    static_cast<void>(::sched_setaffinity(0, sizeof one, &one));
    while (!stopping) {
      if (closing)
        static_cast<void>(::syscall(SYS_tgkill, getpid(), closing_thread, SIGUSR1));
      else
        std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
  });
  // A request ends, with success or an error, once no engine uses its memory.
  const auto all_ended = [&](const std::vector<void*>& requests) {
    for (void* const request : requests) {
      int done = 77;
      REQUIRE(side.net.test(request, &done, nullptr) != Result::success || done == 1);
    }
  };
  constexpr std::size_t bytes = 1 << 20;
  side.start();
  for (int round = 0; round < 4; ++round) {
    const Link link = side.link();
    auto in = std::make_unique<Buffer>(bytes * kOutstanding);
    auto out = std::make_unique<Buffer>(bytes * kOutstanding);
    void* of_in = nullptr;
    void* of_out = nullptr;
    std::vector<void*> receives;
    std::vector<void*> sends;
    REQUIRE(side.net.reg(link.receive, in->data(), bytes * kOutstanding, &of_in) == Result::success);
    REQUIRE(side.net.reg(link.send, out->data(), bytes * kOutstanding, &of_out) == Result::success);
    for (std::size_t i = 0; i < kOutstanding; ++i) {
      receives.push_back(side.receive(link.receive, in->data() + bytes * i, bytes, of_in));
      sends.push_back(side.send(link.send, out->data() + bytes * i, bytes, of_out));
    }
    side.barrier();
    starve_threads("weft-engine", cpu);
    closing = true;
    REQUIRE(side.net.dereg(link.receive, of_in) == Result::success);
    in.reset();
    all_ended(receives);
    REQUIRE(side.net.dereg(link.send, of_out) == Result::success);
    out.reset();
    all_ended(sends);
    closing = false;
    side.unlink(link);
    side.barrier();
  }
  side.stop();
  stopping = true;
  storm.join();
}

// Every call, close included, returns while the peer is stopped (host_net.h measures each); later
// everything continues.
void calls_return_while_the_peer_is_stopped(Side& side) {
  bounded = side.rank == 0;
  constexpr std::size_t bytes = 1 << 20;
  side.start();
  const Link link = side.link();
  const Link closing = side.link();
  exchange(side, link, {1000});
  Handle own;
  void* const listener = side.listen(own.bytes);
  side.tell(own);
  Handle peer = side.hear<Handle>();
  Buffer out(bytes);
  Buffer in(bytes);
  Buffer spare(bytes);
  if (side.rank == 1) {
    const auto count = side.hear<std::size_t>();  // rank 0 stops this process here
    side.unlink(closing);
    Link late;
    const Deadline deadline;
    while (late.send == nullptr || late.receive == nullptr) {
      REQUIRE(!deadline.over());
      side.step(listener, &peer, &late);
    }
    for (std::size_t i = 0; i < count; ++i) {
      void* const receive = side.receive(link.receive, in.data(), bytes, nullptr);
      side.finish(receive, bytes);
    }
    side.finish(side.send(link.send, out.data(), bytes, nullptr), bytes);
    exchange(side, late, {0, 100000});
    side.barrier();
    side.unlink(late);
  } else {
    pause_for(50);  // by then the peer most likely waits in hear()
    stop_process((*side.peers)[0]);
    std::vector<void*> sends;
    void* const receive = side.receive(link.receive, in.data(), bytes, nullptr);
    for (std::size_t i = 0; i < kOutstanding; ++i) {
      sends.push_back(side.send(link.send, out.data(), bytes, nullptr));
      static_cast<void>(side.send(closing.send, out.data(), bytes, nullptr));
    }
    Link late;
    void* mhandle = nullptr;
    const auto until = Clock::now() + std::chrono::milliseconds(1500);
    while (Clock::now() < until) {
      int done = 77;
      REQUIRE(side.net.test(receive, &done, nullptr) == Result::success && done == 0);
      REQUIRE(side.net.test(sends[kOutstanding - 1], &done, nullptr) == Result::success && done == 0);
      side.step(listener, &peer, &late);
      REQUIRE(side.net.reg(link.send, spare.data(), bytes, &mhandle) == Result::success);
      REQUIRE(side.net.dereg(link.send, mhandle) == Result::success);
      pause_for(5);
    }
    REQUIRE(side.net.reg(closing.send, out.data(), bytes, &mhandle) == Result::success);
    REQUIRE(side.net.dereg(closing.send, mhandle) == Result::success);
    side.unlink(closing);
    resume_process((*side.peers)[0]);
    side.tell(sends.size());
    const Deadline deadline;
    while (late.send == nullptr || late.receive == nullptr) {
      REQUIRE(!deadline.over());
      side.step(listener, &peer, &late);
    }
    for (void* const send : sends) REQUIRE(side.outcome(send, nullptr) == Result::success);
    side.finish(receive, bytes);
    exchange(side, late, {0, 100000});
    side.barrier();
    side.unlink(late);
  }
  REQUIRE(side.net.close_listen(listener) == Result::success);
  side.barrier();
  side.unlink(link);
  side.stop();
}

// A peer is stopped for longer than the allowed silence of a network: every transfer still
// succeeds.
void a_stopped_peer_is_waited_for(Side& side) {
  bounded = side.rank == 0;
  side.start();
  const Link link = side.link();
  exchange(side, link, {1000});
  side.barrier();
  std::atomic<bool> paused_twice{false};
  std::thread stopping([&] {
    if (side.rank != 0) return;
    for (const int milliseconds : {100, 1500}) {
      pause_for(20);
      stop_process((*side.peers)[0]);
      pause_for(milliseconds);
      resume_process((*side.peers)[0]);
    }
    paused_twice = true;
  });
  for (bool more = true; more;) {
    exchange(side, link, std::vector<std::size_t>(kOutstanding, 1 << 20));
    if (side.rank == 0) {
      more = !paused_twice;
      side.tell(more);
    } else {
      more = side.hear<bool>();
    }
  }
  stopping.join();
  exchange(side, link, {0, 1000});
  side.barrier();
  side.unlink(link);
  side.stop();
}

// After a peer is killed, test() fails soon and close succeeds; other peers continue, and a new peer can connect.
void a_killed_peer_fails_alone(Side& side) {
  constexpr int victim = 1;
  constexpr int bystander = 2;
  constexpr int successor = 3;
  constexpr std::size_t bytes = 1 << 20;
  side.start();
  if (side.rank != 0) {
    const Link link = side.link();
    exchange(side, link, {1000});
    if (side.rank == victim) {
      side.hear<int>();  // this process is killed while it waits
      REQUIRE(false);
    }
    if (side.rank == bystander) exchange(side, link, {0, 100000});
    side.barrier();
    side.unlink(link);
    side.stop();
    return;
  }
  Side to_victim = side.towards(victim);
  Side to_bystander = side.towards(bystander);
  const Link dying = to_victim.link();
  exchange(to_victim, dying, {1000});
  const Link living = to_bystander.link();
  exchange(to_bystander, living, {1000});
  Buffer out(bytes * kOutstanding);
  Buffer in(bytes * kOutstanding);
  void* of_out = nullptr;
  void* of_in = nullptr;
  REQUIRE(side.net.reg(dying.send, out.data(), bytes * kOutstanding, &of_out) == Result::success);
  REQUIRE(side.net.reg(dying.receive, in.data(), bytes * kOutstanding, &of_in) == Result::success);
  std::vector<void*> requests;
  for (std::size_t i = 0; i < kOutstanding; ++i) {
    requests.push_back(side.send(dying.send, out.data() + bytes * i, bytes, of_out));
    requests.push_back(side.receive(dying.receive, in.data() + bytes * i, bytes, of_in));
  }
  kill_process(&(*side.peers)[victim - 1]);
  for (void* const request : requests) REQUIRE(side.outcome(request, nullptr) == Result::remote_error);
  fails_in_test(side, dying, Result::remote_error);
  REQUIRE(side.net.dereg(dying.send, of_out) == Result::success);
  REQUIRE(side.net.dereg(dying.receive, of_in) == Result::success);
  side.unlink(dying);
  exchange(to_bystander, living, {0, 100000});
  Side to_successor = side.towards(successor);
  const Link next = to_successor.link();
  exchange(to_successor, next, {1000});
  to_successor.barrier();
  to_bystander.barrier();
  side.unlink(next);
  side.unlink(living);
  side.stop();
}

// One process outlives the others. It connects to each new peer, through one listener and through
// new ones, after the previous peer closed, was killed with open connections, or while connecting.
void a_survivor_links_anew(Side& side) {
  enum class End { closes, killed, killed_connecting };
  constexpr End ends[] = {End::killed, End::closes, End::killed_connecting, End::closes};
  side.start();
  if (side.rank != 0) {
    for (int i = 0; i < 2; ++i) {
      Handle own;
      void* const listener = side.listen(own.bytes);
      side.tell(own);
      Handle peer = side.hear<Handle>();
      const End end = ends[side.rank - 1];
      if (end == End::killed_connecting) {
        void* comm = nullptr;
        REQUIRE(side.net.connect(side.context, 0, peer.bytes, &comm) == Result::success);
        side.tell(1);
        side.hear<int>();  // this process is killed while it waits
      }
      const Link link = side.link_through(listener, peer);
      exchange(side, link, {0, 1000, 100000});
      REQUIRE(side.net.close_listen(listener) == Result::success);
      if (end == End::killed) side.hear<int>();  // this process is killed while it waits
      side.unlink(link);
    }
    side.stop();
    return;
  }
  Handle shared;
  void* const listener = side.listen(shared.bytes);
  for (std::size_t peer = 0; peer < side.peers->size(); ++peer) {
    Side to_peer = side.towards(static_cast<int>(peer) + 1);
    for (int i = 0; i < 2; ++i) {
      // A peer killed while connecting may leave a half-open connection, so it gets its own
      // listener.
      const bool alone = i == 1 || ends[peer] == End::killed_connecting;
      Handle own = shared;
      void* const own_listener = alone ? side.listen(own.bytes) : nullptr;
      const Handle theirs = to_peer.hear<Handle>();
      to_peer.tell(own);
      if (ends[peer] == End::killed_connecting) {
        to_peer.hear<int>();
        kill_process(&(*side.peers)[peer]);
        REQUIRE(side.net.close_listen(own_listener) == Result::success);
        break;
      }
      const Link link = to_peer.link_through(alone ? own_listener : listener, theirs);
      exchange(to_peer, link, {0, 1000, 100000});
      if (own_listener != nullptr) REQUIRE(side.net.close_listen(own_listener) == Result::success);
      if (ends[peer] == End::killed) kill_process(&(*side.peers)[peer]);
      fails_in_test(to_peer, link, Result::remote_error);
      side.unlink(link);
      if (ends[peer] == End::killed) break;
    }
  }
  REQUIRE(side.net.close_listen(listener) == Result::success);
  side.stop();
}

// Both processes fork repeatedly while data moves; the children end at once.
void forks_disturb_no_transfer(Side& side) {
  on_a_link(side, [&](const Link& link) {
    std::atomic<bool> stopping{false};
    std::thread forking([&] {
      int children = 0;
      while (!stopping) {
        const pid_t child = fork();
        // Not always exit(): it runs handlers of libraries, whose locks may be held by threads that the child lacks.
        if (child == 0 && ++children % 2 == 0) std::_Exit(0);
        if (child == 0) std::exit(0);
        ++children;
        int status = -1;
        REQUIRE(child > 0 && waitpid(child, &status, 0) == child && status == 0);
      }
    });
    for (int round = 0; round < 6; ++round) exchange(side, link, std::vector<std::size_t>(kOutstanding, 100000));
    const Link second = side.link();
    exchange(side, second, {0, 1000});
    side.barrier();
    side.unlink(second);
    stopping = true;
    forking.join();
  });
}

// A program that returns from main with everything open exits normally, and its peer gets an error.
void a_program_may_end_without_closing(Side& side) {
  constexpr std::size_t bytes = 1 << 20;
  side.start();
  const Link link = side.link();
  exchange(side, link, {1000});
  // Never freed, because engines use it until the process ends.
  static auto* const in = new Buffer(bytes * kOutstanding);
  static auto* const out = new Buffer(bytes * kOutstanding);
  for (std::size_t i = 0; i < kOutstanding; ++i) {
    side.receive(link.receive, in->data() + bytes * i, bytes, nullptr);
    if (side.rank == 1) side.send(link.send, out->data() + bytes * i, bytes, nullptr);
  }
  side.barrier();
  if (side.rank == 1) std::exit(0);
  fails_in_test(side, link, Result::remote_error);
  side.unlink(link);
  side.stop();
}

// A forked child that outlives its parent must not keep the parent's connections alive.
void a_child_that_lives_on_hides_no_death(Side& side) {
  side.start();
  const Link link = side.link();
  exchange(side, link, {1000});
  if (side.rank == 1) {
    const pid_t child = fork();
    if (child == 0) {
      alarm(300);  // ends this child if no other process kills it
      for (;;) pause();
    }
    side.tell(child);
    side.hear<int>();  // this process is killed while it waits
    REQUIRE(false);
  }
  REQUIRE(prctl(PR_SET_CHILD_SUBREAPER, 1) == 0);
  const auto child = side.hear<pid_t>();
  Buffer memory(100);
  void* const request = side.receive(link.receive, memory.data(), 100, nullptr);
  kill_process(&(*side.peers)[0]);
  const Result result = side.outcome(request, nullptr);
  const bool lived_on = ::kill(child, 0) == 0;
  static_cast<void>(::kill(child, SIGKILL));
  REQUIRE(result == Result::remote_error && lived_on);
  side.unlink(link);
  side.stop();
}

}  // namespace

const Scenarios& trouble_scenarios() {
  static const Scenarios all = {
      {"signals_interrupt_nothing", signals_interrupt_nothing},
      {"signals_cut_no_close_short", signals_cut_no_close_short},
      {"a_program_may_end_without_closing", a_program_may_end_without_closing},
      {"calls_return_while_the_peer_is_stopped", calls_return_while_the_peer_is_stopped},
      {"a_stopped_peer_is_waited_for", a_stopped_peer_is_waited_for},
      {"a_killed_peer_fails_alone", a_killed_peer_fails_alone},
      {"a_survivor_links_anew", a_survivor_links_anew},
      {"forks_disturb_no_transfer", forks_disturb_no_transfer},
      {"a_child_that_lives_on_hides_no_death", a_child_that_lives_on_hides_no_death},
  };
  return all;
}

}  // namespace host
