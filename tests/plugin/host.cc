// A fake NCCL: loads the plugin, runs one scenario between several sides, and exits with 0 if all
// checks pass. Usage: weft_plugin_host PLUGIN VERSION PROCESSES SCENARIO. Needs neither NCCL nor a
// GPU.
#include <netinet/in.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>
#include <vector>

#include "native/control/handle.h"
#include "tests/plugin/host_finalize.h"
#include "tests/plugin/host_scenarios.h"

namespace host {
namespace {

void transfer(Side& side) {
  side.start();
  const Link link = side.link();
  exchange(side, link, std::vector<std::size_t>(kOutstanding, 0));
  exchange(side, link, std::vector<std::size_t>(kOutstanding, 1 << 18));
  std::vector<std::size_t> sizes;
  for (const std::size_t size : {0, 1, 7, 8, 9, 64, 1023, 4096, 8191, 8192, 8193, 65535, 65536, 65537, 1000003}) {
    sizes.push_back(size);
    sizes.push_back(0);
  }
  for (int round = 0; round < 3; ++round) exchange(side, link, sizes);
  exchange(side, link, sizes, weft::nccl::kOptionalCompletion);
  void* request = reinterpret_cast<void*>(0x10);
  REQUIRE(side.net.iflush(link.receive, &request) == Result::success && request == nullptr);
  side.barrier();
  side.unlink(link);
  side.stop();
}

void large(Side& side) {
  side.start();
  const Link link = side.link();
  for (const std::size_t size : {std::size_t{1} << 20, (std::size_t{16} << 20) + 5, std::size_t{64} << 20}) {
    exchange(side, link, {size});
  }
  side.barrier();
  side.unlink(link);
  side.stop();
}

// NCCL makes a connection in each direction per channel and peer, hundreds at once. No connection may add a thread.
void many(Side& side) {
  constexpr std::size_t one_by_one = 25;
  constexpr std::size_t count = 250;
  side.start();
  std::vector<Link> links = {side.link()};
  exchange(side, links[0], {1000, 0});
  side.barrier();
  const std::size_t before = threads().size();
  side.barrier();
  while (links.size() < one_by_one) links.push_back(side.link());
  std::vector<void*> listeners;
  std::vector<Handle> peers;
  while (listeners.size() < count - one_by_one) {
    Handle own;
    listeners.push_back(side.listen(own.bytes));
    side.tell(own);
    peers.push_back(side.hear<Handle>());
  }
  links.resize(count);
  const Deadline deadline;
  for (std::size_t open = 0; open < count;) {
    REQUIRE(!deadline.over());
    open = one_by_one;
    for (std::size_t i = one_by_one; i < count; ++i) {
      side.step(listeners[i - one_by_one], &peers[i - one_by_one], &links[i]);
      if (links[i].send != nullptr && links[i].receive != nullptr) ++open;
    }
  }
  for (void* const listener : listeners) REQUIRE(side.net.close_listen(listener) == Result::success);
  for (const Link& link : links) exchange(side, link, {1000, 0});
  REQUIRE(threads().size() <= before);
  side.barrier();
  for (const Link& link : links) side.unlink(link);
  side.stop();
}

// Deregisters, frees and closes with outstanding requests, as NCCL does after an abort.
void close_outstanding(Side& side) {
  constexpr std::size_t bytes = 1 << 20;
  side.start();
  for (int round = 0; round < 4; ++round) {
    const Link link = side.link();
    auto in = std::make_unique<Buffer>(bytes * kOutstanding);
    auto out = std::make_unique<Buffer>(bytes * kOutstanding);
    void* in_handle = nullptr;
    void* out_handle = nullptr;
    REQUIRE(side.net.reg(link.receive, in->data(), bytes * kOutstanding, &in_handle) == Result::success);
    REQUIRE(side.net.reg(link.send, out->data(), bytes * kOutstanding, &out_handle) == Result::success);
    for (std::size_t i = 0; i < kOutstanding; ++i) {
      if (round % 2 == 0 || side.rank == 0) side.send(link.send, out->data() + bytes * i, bytes, out_handle);
      if (round % 2 == 0 || side.rank == 0) side.receive(link.receive, in->data() + bytes * i, bytes, in_handle);
    }
    side.barrier();  // because posting fails once the other side has closed
    if (side.rank == 1) std::this_thread::sleep_for(std::chrono::milliseconds(5 * round));
    REQUIRE(side.net.dereg(link.receive, in_handle) == Result::success);
    REQUIRE(side.net.dereg(link.send, out_handle) == Result::success);
    in.reset();
    out.reset();
    side.unlink(link);
    side.barrier();
  }
  const Link link = side.link();
  exchange(side, link, {1 << 16});
  side.barrier();
  side.unlink(link);
  side.stop();
}

// One thread sets up connections while others move data, like NCCL's service and progress threads.
void hammer(Side& side) {
  side.start();
  const Link link = side.link();
  std::atomic<bool> stopping{false};
  std::thread service([&] {
    while (!stopping) {
      Buffer memory(4096);
      void* mhandle = nullptr;
      REQUIRE(side.net.reg(link.send, memory.data(), 4096, &mhandle) == Result::success && mhandle != nullptr);
      Facts facts;
      REQUIRE(side.net.properties(0, &facts) == Result::success);
      std::uint8_t handle[weft::nccl::kHandleBytesMax];
      void* const listener = side.listen(handle);
      void* context = nullptr;
      REQUIRE(side.net.init(&context) == Result::success);
      REQUIRE(side.net.close_listen(listener) == Result::success);
      REQUIRE(side.net.dereg(link.send, mhandle) == Result::success);
      REQUIRE(side.net.finalize(context) == Result::success);
    }
  });
  for (int round = 0; round < 20; ++round) exchange(side, link, std::vector<std::size_t>(kOutstanding, 5000));
  stopping = true;
  service.join();
  side.barrier();
  side.unlink(link);
  side.stop();
}

// Sides that close at different times must not affect completed requests or other connections.
void uneven_close(Side& side) {
  side.start();
  const Link bystander = side.link();
  for (int round = 0; round < 20; ++round) {
    const Link link = side.link();
    Buffer memory(1 << 16);
    if (side.rank == 0) {
      fill(memory.data(), 1 << 16, 3);
      void* const request = side.send(link.send, memory.data(), 1 << 16, nullptr);
      REQUIRE(side.outcome(request, nullptr) == Result::success);
    } else {
      void* const request = side.receive(link.receive, memory.data(), 1 << 16, nullptr);
      std::this_thread::sleep_for(std::chrono::milliseconds(round));
      side.finish(request, 1 << 16);
      REQUIRE(holds(memory.data(), 1 << 16, 3));
    }
    side.unlink(link);
    exchange(side, bystander, {100, 0});
  }
  side.barrier();
  side.unlink(bystander);
  side.stop();
}

void oversized(Side& side) {
  side.start();
  const Link link = side.link();
  Buffer memory(1 << 16);
  for (const std::size_t bytes : {std::size_t{100}, std::size_t{50000}}) {
    if (side.rank == 0) {
      void* const request = side.send(link.send, memory.data(), bytes, nullptr);
      side.outcome(request, nullptr);  // the request must end, either with an error or with success
      break;
    }
    void* const request = side.receive(link.receive, memory.data(), bytes / 2, nullptr);
    REQUIRE(side.outcome(request, nullptr) == Result::invalid_usage);
    REQUIRE(side.outcome(request, nullptr) == Result::invalid_usage);
    REQUIRE(std::all_of(memory.data() + bytes / 2, memory.data() + (1 << 16), [](auto byte) { return byte == 0; }));
    break;
  }
  side.barrier();
  side.unlink(link);
  side.stop();
}

void bad_arguments(Side& side) {
  side.start();
  const Link link = side.link();
  void* out = nullptr;
  std::uint8_t memory[64] = {};
  REQUIRE(side.net.reg_cuda(link.send, memory, sizeof memory, &out) != Result::success);
  REQUIRE(out == nullptr);
  REQUIRE(side.net.dereg(link.send, nullptr) == Result::success);
  for (const int count : {0, 2}) {
    out = reinterpret_cast<void*>(0x10);
    REQUIRE(side.net.irecv_count(link.receive, count, &out) == Result::invalid_argument);
    REQUIRE(out == nullptr);
  }
  REQUIRE(side.net.listen(side.context, 99, std::vector<char>(128).data(), &out) != Result::success);
  REQUIRE(side.net.listen(side.context, -1, std::vector<char>(128).data(), &out) != Result::success);
  Facts facts;
  REQUIRE(side.net.properties(99, &facts) != Result::success);
  int done = 77;
  REQUIRE(side.net.test(nullptr, &done, nullptr) != Result::success);
  REQUIRE(done == 0);
  // Random bytes instead of a handle must give an error soon, not a crash or a hang.
  for (int kind = 0; kind < 4; ++kind) {
    std::uint8_t handle[weft::nccl::kHandleBytesMax];
    void* const listener = side.listen(handle);
    if (kind == 0) std::memset(handle, 0, sizeof handle);
    if (kind == 1) fill(handle, sizeof handle, 9);
    if (kind == 2) handle[0] = static_cast<std::uint8_t>(handle[0] ^ 0xFF);
    if (kind == 3) std::memset(handle, 0xFF, sizeof handle);
    const Deadline deadline;
    void* comm = nullptr;
    Result result = Result::success;
    while (result == Result::success) {
      REQUIRE(!deadline.over());
      result = side.net.connect(side.context, 0, handle, &comm);
      REQUIRE(comm == nullptr);
    }
    REQUIRE(side.net.close_listen(listener) == Result::success);
  }
  exchange(side, link, {100});
  side.barrier();
  side.unlink(link);
  side.stop();
}

std::set<int> listening_ports() {
  std::set<std::string> inodes;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code error;
    const std::string target = std::filesystem::read_symlink(entry.path(), error).string();
    if (target.rfind("socket:[", 0) == 0) inodes.insert(target.substr(8, target.size() - 9));
  }
  std::set<int> ports;
  for (const char* table : {"/proc/self/net/tcp", "/proc/self/net/tcp6"}) {
    std::ifstream file(table);
    std::string line;
    std::getline(file, line);
    while (std::getline(file, line)) {
      std::istringstream fields(line);
      std::string slot, local, remote, state, queues, timer, retransmits, uid, timeout, inode;
      fields >> slot >> local >> remote >> state >> queues >> timer >> retransmits >> uid >> timeout >> inode;
      if (state == "0A" && inodes.count(inode) != 0) {
        ports.insert(static_cast<int>(std::stoul(local.substr(local.rfind(':') + 1), nullptr, 16)));
      }
    }
  }
  return ports;
}

int dial_loopback(int port) {
  const int descriptor = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (connect(descriptor, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0) return descriptor;
  ::close(descriptor);
  return -1;
}

// Strangers connect to the listener: they stay silent, send data, or disconnect at once.
void strays(Side& side) {
  side.start();
  Handle own;
  void* const listener = side.listen(own.bytes);
  std::vector<int> open;
  int reached = 0;
  for (const int port : listening_ports()) {
    for (int i = 0; i < 12; ++i) {
      const int descriptor = dial_loopback(port);
      if (descriptor < 0) continue;
      ++reached;
      std::vector<std::uint8_t> noise(static_cast<std::size_t>(i) * 97);
      fill(noise.data(), noise.size(), static_cast<std::size_t>(i));
      if (!noise.empty()) static_cast<void>(::send(descriptor, noise.data(), noise.size(), MSG_NOSIGNAL));
      if (i % 3 == 0)
        ::close(descriptor);
      else
        open.push_back(descriptor);
    }
  }
  REQUIRE(reached > 0);
  side.tell(own);
  const Link link = side.link_through(listener, side.hear<Handle>());
  exchange(side, link, {100000, 0, 5});
  side.barrier();
  for (const int descriptor : open) ::close(descriptor);
  REQUIRE(side.net.close_listen(listener) == Result::success);
  side.unlink(link);
  side.stop();
}

void forked(Side& side) {
  side.start();
  const Link link = side.link();
  std::uint8_t memory[64] = {};
  void* mhandle = nullptr;
  REQUIRE(side.net.reg(link.send, memory, sizeof memory, &mhandle) == Result::success);
  const pid_t child = fork();
  if (child == 0) {
    void* out = reinterpret_cast<void*>(0x10);
    int done = 77;
    REQUIRE(side.net.isend(link.send, memory, 8, mhandle, &out) == Result::invalid_usage && out == nullptr);
    REQUIRE(side.net.irecv(link.receive, memory, 8, mhandle, &out) == Result::invalid_usage && out == nullptr);
    REQUIRE(side.net.test(&out, &done, nullptr) == Result::invalid_usage && done == 0);
    REQUIRE(side.net.close_send(link.send) == Result::invalid_usage);
    REQUIRE(side.net.init(&out) == Result::invalid_usage);
    std::_Exit(0);
  }
  int status = -1;
  REQUIRE(waitpid(child, &status, 0) == child && status == 0);
  exchange(side, link, {100, 100000});
  REQUIRE(side.net.dereg(link.send, mhandle) == Result::success);
  side.barrier();
  side.unlink(link);
  side.stop();
}

// After the peer has closed, calls of this side report a failed peer, not wrong usage.
void peer_closes(Side& side) {
  side.start();
  const Link link = side.link();
  exchange(side, link, {1000});
  side.barrier();
  if (side.rank == 0) fails_in_test(side, link, Result::remote_error);
  side.unlink(link);
  side.barrier();
  side.stop();
}

// The peer process dies: outstanding requests fail, and close succeeds.
void death(Side& side) {
  side.start();
  const Link link = side.link();
  exchange(side, link, {1000});
  side.barrier();
  if (side.rank == 1) std::_Exit(0);
  fails_in_test(side, link, Result::remote_error);
  side.unlink(link);
  side.stop();
}

// The last finalize, or the last close, drops half-open connections and ends all threads; a new init must work after
// that.
void restart(Side& side) {
  const std::size_t before = threads().size();
  side.barrier();
  for (int round = 0; round < 3; ++round) {
    side.start();
    if (side.net.has_finalize()) {
      std::uint8_t handle[weft::nccl::kHandleBytesMax];
      side.listen(handle);  // never accepted and never closed, as in NCCL's abort
      void* comm = nullptr;
      REQUIRE(side.net.connect(side.context, 0, handle, &comm) == Result::success);
      if (comm != nullptr) REQUIRE(side.net.close_send(comm) == Result::success);
    }
    const Link link = side.link();
    exchange(side, link, {100});
    side.barrier();
    side.unlink(link);
    side.stop();
    side.barrier();
    // A joined thread may remain in /proc for a moment.
    const Deadline deadline;
    while (threads().size() != before) REQUIRE(!deadline.over());
    side.barrier();
  }
}

// A process has two communicators; when one ends, the other still works.
void contexts(Side& side) {
  side.start();
  void* second = nullptr;
  REQUIRE(side.net.init(&second) == Result::success);
  REQUIRE(!side.net.has_finalize() || (second != nullptr && second != side.context));
  const Link link = side.link();
  REQUIRE(side.net.finalize(second) == Result::success);
  exchange(side, link, {100, 100000});
  side.barrier();
  side.unlink(link);
  side.stop();
}

void properties(Side& side) {
  side.start();
  REQUIRE(std::string(side.net.name()) == "weft");
  int count = 0;
  REQUIRE(side.net.devices(&count) == Result::success && count > 0);
  std::set<std::string> names;
  std::set<std::uint64_t> guids;
  const char* const grouped = std::getenv("WEFT_NCCL_RECEIVES_MAX");
  for (int device = 0; device < count; ++device) {
    Facts facts;
    REQUIRE(side.net.properties(device, &facts) == Result::success);
    names.insert(facts.name);
    guids.insert(facts.guid);
    REQUIRE(facts.pointer_support == weft::nccl::kPointerHost);
    REQUIRE(facts.speed_mbps > 0 && facts.receives_max == (grouped == nullptr ? 1 : std::atoi(grouped)));
    REQUIRE(facts.registration_is_global == 0 && facts.net_device_type == 0);
  }
  REQUIRE(names.size() == static_cast<std::size_t>(count) && guids.size() == names.size());
  // Open a listener, check its handle, and close it without using it.
  std::uint8_t handle[weft::nccl::kHandleBytesMax];
  void* const listener = side.listen(handle);
  // One byte of the rest says whether receives are grouped.
  REQUIRE(std::count_if(handle + weft::control::kHandleBytes, handle + sizeof handle,
                        [](std::uint8_t byte) { return byte != 0; }) == (grouped == nullptr ? 0 : 1));
  REQUIRE(side.net.close_listen(listener) == Result::success);
  side.stop();
}

void refused(Side& side) {
  void* context = nullptr;
  ++communicators;
  REQUIRE(side.net.init(&context) != Result::success);
  int count = 77;
  REQUIRE(side.net.devices(&count) == Result::success && count == 0);
}

const Scenarios kScenarios = {
    {"transfer", transfer},
    {"large", large},
    {"many", many},
    {"close_outstanding", close_outstanding},
    {"uneven_close", uneven_close},
    {"oversized", oversized},
    {"bad_arguments", bad_arguments},
    {"strays", strays},
    {"forked", forked},
    {"death", death},
    {"peer_closes", peer_closes},
    {"restart", restart},
    {"contexts", contexts},
    {"hammer", hammer},
    {"properties", properties},
    {"refused", refused},
    {"finalize_open", finalize_open},
    {"finalize_one_of_two", finalize_one_of_two},
};

const Scenario* find(const std::string& name) {
  for (const Scenarios* each : {&kScenarios, &message_scenarios(), &group_scenarios(), &setup_scenarios(),
                                &process_scenarios(), &trouble_scenarios()}) {
    const auto found = each->find(name);
    if (found != each->end()) return &found->second;
  }
  return nullptr;
}

// Rank 0 is this process. It succeeds if all others succeeded or were killed by the scenario.
int play_in_processes(const char* path, int version, int processes, Scenario scenario) {
  std::vector<Peer> peers;
  for (int rank = 1; rank < processes; ++rank) {
    int channels[2];
    REQUIRE(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, channels) == 0);
    const pid_t child = fork();
    REQUIRE(child >= 0);
    if (child == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      ::close(channels[0]);
      for (const Peer& other : peers) ::close(other.channel);
      const std::unique_ptr<Net> net = load(path, version);
      Side side{*net, channels[1], rank};
      scenario(side);
      std::_Exit(0);
    }
    ::close(channels[1]);
    peers.push_back({child, channels[0]});
  }
  const std::unique_ptr<Net> net = load(path, version);
  Side side{*net, peers[0].channel, 0};
  side.peers = &peers;
  scenario(side);
  int result = 0;
  for (const Peer& peer : peers) {
    int status = -1;
    REQUIRE(waitpid(peer.pid, &status, 0) == peer.pid);
    if (status != 0 && !(peer.killed && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL)) result = 1;
  }
  return result;
}

int play(const char* path, int version, int processes, Scenario scenario) {
  if (processes > 1) return play_in_processes(path, version, processes, scenario);
  int channels[2];
  REQUIRE(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, channels) == 0);
  const std::unique_ptr<Net> net = load(path, version);
  const auto run = [&](int rank) {
    Side side{*net, channels[rank], rank};
    scenario(side);
  };
  std::thread other(run, 1);
  run(0);
  other.join();
  return 0;
}

}  // namespace

void fails_in_test(Side& side, const Link& link, Result expected) {
  constexpr std::size_t bytes = 1 << 20;
  Buffer memory(bytes);
  const Deadline deadline;
  const auto until_it_fails = [&](auto&& post) {
    Result result = Result::success;
    while (result == Result::success) {
      result = side.outcome(post(), nullptr);
      REQUIRE(!deadline.over());
    }
    REQUIRE(result == expected);
    for (int i = 0; i < 200; ++i) {  // more requests than a comm has slots for
      void* const request = post();
      REQUIRE(side.outcome(request, nullptr) == expected && side.outcome(request, nullptr) == expected);
    }
  };
  until_it_fails([&] { return side.receive(link.receive, memory.data(), bytes, nullptr); });
  until_it_fails([&] { return side.send(link.send, memory.data(), bytes, nullptr); });
  auto* request = reinterpret_cast<void*>(0xDEAD0);
  REQUIRE(side.net.isend(link.send, nullptr, 8, nullptr, &request) == Result::invalid_argument && request == nullptr);
  REQUIRE(side.net.irecv_count(link.receive, 2, &request) == Result::invalid_argument && request == nullptr);
}

}  // namespace host

int main(int argc, char** argv) {
  const host::Scenario* const scenario = argc == 5 ? host::find(argv[4]) : nullptr;
  if (scenario == nullptr) {
    std::fprintf(stderr, "usage: weft_plugin_host PLUGIN VERSION PROCESSES SCENARIO\n");
    return 2;
  }
  return host::play(argv[1], std::atoi(argv[2]), std::atoi(argv[3]), *scenario);
}
