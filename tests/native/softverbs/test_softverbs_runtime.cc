// Tests whole runtimes over softverbs in one process, for the sanitizers: engines, and a thread that is the NIC. Late
// writes are detected by overwriting received messages (P-1). tests/softverbs runs between processes.

#include <dlfcn.h>
#include <fcntl.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include "native/engine/clock.h"
#include "native/message/runtime.h"
#include "tests/native/check.h"

namespace {

using namespace weft;
using namespace weft::engine;
using namespace weft::message;

constexpr std::int64_t kPatienceNs = 60'000'000'000;

struct Ends {
  std::shared_ptr<Runtime> a, b;
  std::unique_ptr<Listener> listener;
  std::shared_ptr<Connection> from, to;

  explicit Ends(RdmaMode mode, RdmaPlacement placement) {
    Knobs knobs;
    knobs.datapath = DatapathKind::verbs;
    knobs.local = LocalMode::off;
    knobs.rdma_library = WEFT_SOFTVERBS;
    knobs.rdma_mode = mode;
    knobs.rdma_placement = placement;
    knobs.rdma_slots = 256;
    knobs.engines = 1;
    knobs.paths = 4;
    knobs.log_level = LogLevel::error;
    std::string error;
    std::unique_ptr<Dial> dial;
    if (Runtime::open(knobs, &a, &error) != Status::ok) weft::test::fail(__FILE__, __LINE__, error);
    CHECK_EQUAL(Runtime::open(knobs, &b, &error), Status::ok);
    CHECK_EQUAL(b->listen(0, 0, false, "", &listener, &error), Status::ok);
    CHECK_EQUAL(a->connect(0, listener->handle(), "", &dial, &error), Status::ok);
    for (const std::int64_t until = now_ns() + kPatienceNs; from == nullptr || to == nullptr;) {
      if (from == nullptr) CHECK(dial->poll(&from) == Status::would_block || from != nullptr);
      if (to == nullptr) static_cast<void>(listener->accept(&to));
      CHECK(now_ns() < until);
      std::this_thread::yield();
    }
  }
};

std::uint32_t known(Runtime& runtime, void* at, std::size_t bytes, int dmabuf = -1) {
  std::uint32_t id = 0;
  CHECK_EQUAL(runtime.register_memory(at, bytes, dmabuf, 0, &id), Status::ok);
  CHECK(id != 0);
  return id;
}

void finish(Connection& connection, Request* request, std::size_t bytes) {
  CHECK_EQUAL(connection.wait(request, kPatienceNs), Status::ok);
  CHECK_EQUAL(request->status(), Status::ok);
  CHECK_EQUAL(request->bytes(), bytes);
  connection.release(request);
}

constexpr std::size_t kSizes[] = {0, 1, 4'095, 16'384, 40'001, 100'003, 40'001, 0, 131'072};
constexpr std::size_t kMost = 131'072;

// Receives messages into buffers in turn; this thread overwrites each buffer as soon as its message is complete.
void carry(Ends& ends, const std::uint8_t* source, const std::uint8_t* content, std::uint32_t source_memory,
           int rounds) {
  std::vector<std::vector<std::uint8_t>> buffers(4, std::vector<std::uint8_t>(kMost));
  std::vector<std::uint32_t> ids;
  for (auto& buffer : buffers) ids.push_back(known(*ends.b, buffer.data(), buffer.size()));
  std::size_t turn = 0;
  for (int round = 0; round < rounds; ++round) {
    for (const std::size_t bytes : kSizes) {
      std::vector<std::uint8_t>& buffer = buffers[turn % buffers.size()];
      Request *send = nullptr, *receive = nullptr;
      const std::uint32_t memory = ids[turn++ % buffers.size()];
      CHECK_EQUAL(ends.to->post_receive(buffer.data(), buffer.size(), memory, &receive), Status::ok);
      CHECK_EQUAL(ends.from->post_send(source + turn, bytes, source_memory, &send), Status::ok);
      finish(*ends.to, receive, bytes);
      CHECK(bytes == 0 || std::memcmp(buffer.data(), content + turn, bytes) == 0);
      std::memset(buffer.data(), 0x5A, buffer.size());
      finish(*ends.from, send, bytes);
    }
  }
  for (const auto& buffer : buffers) {
    for (const std::uint8_t byte : buffer) CHECK(byte == 0x5A);
  }
  for (const std::uint32_t id : ids) ends.b->deregister_memory(id);
}

std::vector<std::uint8_t> some_bytes() {
  std::vector<std::uint8_t> made(kMost + 1'000);
  for (std::size_t i = 0; i < made.size(); ++i) made[i] = static_cast<std::uint8_t>((i + 1) * 2654435761u >> 11);
  return made;
}

void bad_weather() {
  ::setenv("SOFTVERBS_LOSS", "0.02", 1);
  ::setenv("SOFTVERBS_REORDER", "0.03", 1);
  ::setenv("SOFTVERBS_LATE", "0.03", 1);
  ::setenv("SOFTVERBS_DUPLICATE", "0.02", 1);
  ::setenv("SOFTVERBS_STALL", "0.02", 1);
}

}  // namespace

TEST(softverbs_runtime__late_bytes_touch_nothing) {
  bad_weather();
  for (const RdmaMode mode : {RdmaMode::uc, RdmaMode::rc, RdmaMode::ud}) {
    for (const RdmaPlacement placement : {RdmaPlacement::slots, RdmaPlacement::direct}) {
      Ends ends(mode, placement);
      std::vector<std::uint8_t> source = some_bytes();
      const std::uint32_t id = known(*ends.a, source.data(), source.size());
      carry(ends, source.data(), source.data(), id, 6);
      ends.a->deregister_memory(id);
    }
  }
}

// The NIC sends directly from device memory, which the CPU can't read.
TEST(softverbs_runtime__device_memory_is_sent_from_where_it_lies) {
  bad_weather();
  ::setenv("SOFTVERBS_CUDA_LIBRARY", WEFT_FAKE_CUDA, 1);
  void* const fake = ::dlopen(WEFT_FAKE_CUDA, RTLD_NOW | RTLD_LOCAL);
  CHECK(fake != nullptr);
  const auto allocate = reinterpret_cast<std::uint64_t (*)(std::size_t, int)>(::dlsym(fake, "fake_cuda_allocate"));
  const auto reach = reinterpret_cast<std::uint8_t* (*)(std::uint64_t)>(::dlsym(fake, "fake_cuda_reach"));
  const std::vector<std::uint8_t> content = some_bytes();
  const std::uint64_t device = allocate(content.size(), 0);
  std::memcpy(reach(device), content.data(), content.size());
  for (const RdmaMode mode : {RdmaMode::uc, RdmaMode::ud}) {
    Ends ends(mode, RdmaPlacement::direct);
    auto* const source = reinterpret_cast<std::uint8_t*>(device);
    const int descriptor = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
    const std::uint32_t id = known(*ends.a, source, content.size(), descriptor);
    ::close(descriptor);
    carry(ends, source, content.data(), id, 2);
    ends.a->deregister_memory(id);
  }
}
