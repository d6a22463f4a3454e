// Opens the sockets of both ends and runs a thread for each: a warm-up, then what is measured.
#include "bench/native/loops/stages_bench.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <pthread.h>
#include <sched.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <barrier>
#include <cerrno>
#include <cstring>
#include <thread>

#include "bench/native/loops/stages_ends.h"
#include "bench/native/loops/stages_gate.h"

namespace weft::bench {
namespace stages {
namespace {

constexpr int kSocketBytes = 8 << 20;
constexpr std::int64_t kWindowBytesMax = 1 << 20;

struct Socket {
  int descriptor = -1;
  sockaddr_in address{};
  ~Socket() {
    if (descriptor >= 0) ::close(descriptor);
  }
};

// A warm-up or what is measured.
struct Phase {
  explicit Phase(std::int64_t bytes_wanted, std::int64_t window_bytes) : bytes(bytes_wanted), gate(window_bytes) {}
  const std::int64_t bytes;
  Gate gate;
  Stopwatch sending, receiving;
  std::int64_t process_ns = 0, threads_ns[2] = {};
};

struct Run {
  const StagesPlan* plan;
  Outgoing outgoing;
  Incoming incoming;
  Phase warm, measured;
  std::barrier<> both{2};
  std::string missing[2] = {"", ""};
};

bool open_socket(const DatagramEnd& end, Socket* out, std::string* error) {
  if (end.name_space >= 0 && ::setns(end.name_space, CLONE_NEWNET) != 0) {
    *error = refused("cannot enter a network namespace", errno);
    return false;
  }
  out->address.sin_family = AF_INET;
  if (::inet_pton(AF_INET, end.address.c_str(), &out->address.sin_addr) != 1) {
    *error = end.address + " is not an IPv4 address";
    return false;
  }
  out->descriptor = ::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  socklen_t bytes = sizeof out->address;
  auto* const address = reinterpret_cast<sockaddr*>(&out->address);
  if (out->descriptor < 0 || ::bind(out->descriptor, address, bytes) != 0 ||
      ::getsockname(out->descriptor, address, &bytes) != 0) {
    *error = refused("cannot open a UDP socket", errno);
    return false;
  }
  for (const auto& [forced, usual] : {std::pair{SO_RCVBUFFORCE, SO_RCVBUF}, std::pair{SO_SNDBUFFORCE, SO_SNDBUF}}) {
    if (::setsockopt(out->descriptor, SOL_SOCKET, forced, &kSocketBytes, sizeof kSocketBytes) == 0) continue;
    ::setsockopt(out->descriptor, SOL_SOCKET, usual, &kSocketBytes, sizeof kSocketBytes);
  }
  return true;
}

bool connect_to(const Socket& near, const Socket& far, std::string* error) {
  const auto* const address = reinterpret_cast<const sockaddr*>(&far.address);
  if (::connect(near.descriptor, address, sizeof far.address) == 0) return true;
  *error = refused("cannot connect a UDP socket", errno);
  return false;
}

// A quarter of the receive buffer, as the kernel charges more than the payload for each datagram.
std::int64_t window_of(const Socket& socket) {
  int bytes = 0;
  socklen_t size = sizeof bytes;
  ::getsockopt(socket.descriptor, SOL_SOCKET, SO_RCVBUF, &bytes, &size);
  return std::min<std::int64_t>(kWindowBytesMax, bytes / 4);
}

void stay_on(int cpu) {
  if (cpu < 0 || cpu >= CPU_SETSIZE) return;
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(static_cast<std::size_t>(cpu), &set);
  ::pthread_setaffinity_np(::pthread_self(), sizeof set, &set);
}

void send_phase(Sender* sender, bool dropped, Phase* phase) {
  std::string error;
  phase->sending.start();
  for (std::int64_t sent = 0; sent < phase->bytes && phase->gate.await_room(&phase->sending);) {
    const std::int64_t bytes = sender->send(&error);
    if (bytes < 0) break;
    sent += bytes;
    phase->gate.sent(bytes);
    if (dropped) phase->gate.taken(bytes);
  }
  if (error.empty()) sender->finish(&error);
  phase->sending.stop();
  if (!error.empty()) phase->gate.fail(error);
  phase->gate.end();
}

void receive_phase(Receiver* receiver, Phase* phase) {
  std::string error;
  phase->receiving.start();
  while (phase->gate.await_data(&phase->receiving)) {
    const std::int64_t bytes = receiver->receive(&error);
    if (bytes < 0) {
      phase->gate.fail(error);
    } else if (bytes > 0) {
      phase->gate.taken(bytes);
    } else {
      phase->gate.nothing_there(&phase->receiving);
    }
  }
  phase->receiving.stop();
}

// Runs both phases of one end in its thread. `work` does a phase; `side`: 0 sends, 1 receives.
template <typename End, typename Work, typename Forget>
void run_end(Run* run, int side, std::unique_ptr<End> end, const Work& work, const Forget& forget) {
  stay_on(side == 0 ? run->plan->from_cpu : run->plan->to_cpu);
  end->open(&run->missing[side]);
  run->both.arrive_and_wait();
  if (!run->missing[0].empty() || !run->missing[1].empty()) return;
  work(end.get(), &run->warm);
  run->both.arrive_and_wait();
  forget();
  Phase& phase = run->measured;
  if (side == 0) phase.process_ns -= Stopwatch::cpu_ns(CLOCK_PROCESS_CPUTIME_ID);
  phase.threads_ns[side] -= Stopwatch::thread_cpu_ns();
  run->both.arrive_and_wait();
  if (run->warm.gate.failure().empty()) work(end.get(), &phase);
  run->both.arrive_and_wait();
  phase.threads_ns[side] += Stopwatch::thread_cpu_ns();
  if (side == 0) phase.process_ns += Stopwatch::cpu_ns(CLOCK_PROCESS_CPUTIME_ID);
  run->both.arrive_and_wait();  // the sender's socket stays open until the receiver is done, and the other way round
}

void run_both(Run* run) {
  const bool sends_ring = run->plan->sender.starts_with("ring"), takes_ring = run->plan->receiver == "ring";
  const bool dropped = run->plan->receiver == "none";
  std::thread receiving([&] {
    Incoming* const in = &run->incoming;
    run_end(run, 1, takes_ring ? ring_receiver(in) : socket_receiver(in), receive_phase,
            [in] { in->calls = in->messages = 0; });
  });
  std::thread sending([&] {
    Outgoing* const out = &run->outgoing;
    const auto work = [dropped](Sender* sender, Phase* phase) { send_phase(sender, dropped, phase); };
    run_end(run, 0, sends_ring ? ring_sender(out) : socket_sender(out), work, [out] { out->calls = 0; });
  });
  sending.join();
  receiving.join();
}

bool fits(const StagesPlan& plan) {
  constexpr const char* kSenders[] = {"mmsg", "gso",          "gso_headers", "zerocopy", "zerocopy_headers",
                                      "ring", "ring_zerocopy"};
  constexpr const char* kReceivers[] = {"mmsg", "gro", "ring", "none"};
  constexpr const char* kCopies[] = {"none", "plain", "streaming", "checked", "checked_streaming"};
  const auto one_of = [](const auto& known, const std::string& name) {
    return std::find(std::begin(known), std::end(known), name) != std::end(known);
  };
  const bool named = one_of(kSenders, plan.sender) && one_of(kReceivers, plan.receiver) && one_of(kCopies, plan.copy);
  const bool copies_trains = plan.copy == "none" || plan.receiver == "gro" || plan.receiver == "none";
  if (plan.sender.ends_with("_headers") && plan.receiver != "none") return false;  // receivers know no headers
  return named && copies_trains && plan.datagram_bytes >= 64 && plan.datagram_bytes <= kTrainBytesMax &&
         plan.source != nullptr && plan.target != nullptr && plan.buffer_bytes >= 1 << 20 && plan.bytes > 0 &&
         plan.warm_bytes >= 0;
}

}  // namespace
}  // namespace stages

Status bench_stages(const StagesPlan& plan, StagesResult* out, std::string* error) {
  using namespace stages;
  if (!fits(plan)) return Status::invalid_argument;
  Socket from, to;
  if (!open_socket(plan.from, &from, error) || !open_socket(plan.to, &to, error)) return Status::system_error;
  if (!connect_to(from, to, error) || !connect_to(to, from, error)) return Status::system_error;
  const std::size_t train = std::min(kTrainBytesMax / plan.datagram_bytes, kSegmentsMax) * plan.datagram_bytes;
  const std::int64_t window = window_of(to);
  Run run{&plan,
          {&plan, from.descriptor, train, Walk(plan.buffer_bytes, train), plan.sender.ends_with("_headers")},
          {&plan, to.descriptor, train, Walk(plan.buffer_bytes, train)},
          Phase(plan.warm_bytes, window),
          Phase(plan.bytes, window)};
  run_both(&run);
  for (const std::string& lacks : run.missing) {
    if (out->missing.empty()) out->missing = lacks;
  }
  if (!out->missing.empty()) return Status::ok;
  for (const Phase* phase : {&run.warm, &run.measured}) {
    if (error->empty()) *error = phase->gate.failure();
  }
  const Phase& measured = run.measured;
  out->bytes = measured.gate.taken_bytes();
  if (run.outgoing.gathers) {
    const auto datagram = static_cast<std::int64_t>(plan.datagram_bytes);
    out->bytes = out->bytes / datagram * (datagram - static_cast<std::int64_t>(kHeaderBytes));
  }
  out->lost_bytes = run.warm.gate.lost_bytes() + measured.gate.lost_bytes();
  out->wrong = run.incoming.wrong;
  out->sender_ns = measured.sending.total_ns();
  out->receiver_ns = measured.receiving.total_ns();
  out->other_ns = std::max<std::int64_t>(measured.process_ns - measured.threads_ns[0] - measured.threads_ns[1], 0);
  out->send_calls = run.outgoing.calls;
  out->train_bytes = static_cast<std::int64_t>(plan.sender == "mmsg" ? plan.datagram_bytes : run.outgoing.train_bytes);
  out->receive_calls = run.incoming.calls;
  out->messages = run.incoming.messages;
  out->completions = run.outgoing.completions;
  out->copied = run.outgoing.copied;
  return error->empty() ? Status::ok : Status::system_error;
}

}  // namespace weft::bench
