// Helpers for tests of the softverbs provider without weft's datapath: a device, memory, queue pairs, and waits with a
// time limit.
#pragma once

#include <arpa/inet.h>
#include <fcntl.h>
#include <poll.h>

#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "native/datapath/clock.h"
#include "native/datapath/verbs/ibv.h"
#include "native/datapath/verbs/queue_pair.h"
#include "tests/native/check.h"

namespace weft::test {

using datapath::Ibv;
using datapath::QpTraits;
using datapath::QueuePair;
using datapath::RemoteQp;

inline constexpr std::int64_t kPatienceNs = 60'000'000'000;
inline constexpr std::size_t kMemoryBytes = 1 << 18;
inline constexpr int kAll = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_MW_BIND;

inline const Ibv* softverbs() {
  std::string error;
  const Ibv* const found = datapath::load_ibv(WEFT_SOFTVERBS, &error);
  if (found == nullptr) fail(__FILE__, __LINE__, error);
  return found;
}

// Settings of the simulated network for a test case; the provider reads them when the process opens its first device.
class Weather {
 public:
  Weather(std::initializer_list<std::pair<const char*, const char*>> what) : what_(what) {
    for (const auto& [name, value] : what_) ::setenv(name, value, 1);
  }
  Weather(const Weather&) = delete;
  Weather& operator=(const Weather&) = delete;
  ~Weather() {
    for (const auto& [name, value] : what_) ::unsetenv(name);
  }

 private:
  std::vector<std::pair<const char*, const char*>> what_;
};

// A device with everything that one queue pair needs.
struct Node {
  explicit Node(int entries = 1024) : ibv(softverbs()), memory(kMemoryBytes) {
    int count = 0;
    ibv_device** const list = ibv->get_device_list(&count);
    CHECK(list != nullptr && count >= 1);
    context = ibv->open_device(list[0]);
    ibv->free_device_list(list);
    CHECK(context != nullptr);
    pd = ibv->alloc_pd(context);
    channel = ibv->create_comp_channel(context);
    for (const int descriptor : {channel->fd, context->async_fd}) {
      CHECK_EQUAL(::fcntl(descriptor, F_SETFL, ::fcntl(descriptor, F_GETFL) | O_NONBLOCK), 0);
    }
    sends = ibv->create_cq(context, entries, nullptr, nullptr, 0);
    receives = ibv->create_cq(context, entries, nullptr, channel, 0);
    region = ibv->reg_mr(pd, memory.data(), memory.size(), kAll);
    CHECK(region != nullptr && sends != nullptr && receives != nullptr);
    CHECK_EQUAL(ibv->query_gid(context, 1, 0, &gid), 0);
  }
  Node(const Node&) = delete;
  Node& operator=(const Node&) = delete;
  ~Node() {
    pair.reset();
    CHECK_EQUAL(ibv->dereg_mr(region), 0);
    if (srq != nullptr) static_cast<void>(ibv->destroy_srq(srq));
    static_cast<void>(ibv->destroy_cq(sends));
    static_cast<void>(ibv->destroy_cq(receives));
    static_cast<void>(ibv->destroy_comp_channel(channel));
    static_cast<void>(ibv->dealloc_pd(pd));
    static_cast<void>(ibv->close_device(context));
  }

  void make(ibv_qp_type type, bool shared = false) {
    QueuePair::Plan plan;
    plan.type = type;
    plan.pd = pd;
    plan.send_cq = sends;
    plan.receive_cq = receives;
    if (shared) {
      ibv_srq_init_attr wanted{};
      wanted.attr.max_wr = 512;
      wanted.attr.max_sge = 1;
      srq = ibv->create_srq(pd, &wanted);
      plan.srq = srq;
    }
    plan.sends = 256;
    plan.receives = 512;
    plan.inline_bytes = 256;
    std::string error;
    if (!pair.make(ibv, plan, &error)) fail(__FILE__, __LINE__, error);
  }

  void join(const Node& remote, std::uint32_t psn = 0xFF'FFF0) {  // so that packet numbers wrap around soon
    QpTraits traits;
    traits.mtu = IBV_MTU_1024;
    traits.remote_writes = true;
    RemoteQp where;
    where.number = remote.pair.number();
    where.gid = remote.gid;
    std::string error;
    if (!pair.join(traits, where, psn, &error)) fail(__FILE__, __LINE__, error);
  }

  ibv_sge piece(std::size_t offset, std::size_t bytes) {
    return {reinterpret_cast<std::uintptr_t>(memory.data()) + offset, static_cast<std::uint32_t>(bytes), region->lkey};
  }

  void post_receive(std::uint64_t id, std::size_t offset, std::size_t bytes) {
    ibv_sge where = piece(offset, bytes);
    ibv_recv_wr request{};
    request.wr_id = id;
    request.sg_list = &where;
    request.num_sge = 1;
    ibv_recv_wr* bad = nullptr;
    CHECK_EQUAL(srq != nullptr ? ibv_post_srq_recv(srq, &request, &bad) : ibv_post_recv(pair.get(), &request, &bad), 0);
  }

  int try_send(ibv_send_wr request, ibv_sge what) {
    request.sg_list = &what;
    request.num_sge = 1;
    ibv_send_wr* bad = nullptr;
    return ibv_post_send(pair.get(), &request, &bad);
  }
  void send(std::uint64_t id, ibv_sge what, unsigned flags = IBV_SEND_SIGNALED, ibv_wr_opcode opcode = IBV_WR_SEND) {
    ibv_send_wr request{};
    request.wr_id = id;
    request.opcode = opcode;
    request.send_flags = flags;
    request.imm_data = htonl(static_cast<std::uint32_t>(id));
    CHECK_EQUAL(try_send(request, what), 0);
  }
  void write(std::uint64_t id, ibv_sge what, std::uint64_t address, std::uint32_t key, bool immediate = true) {
    ibv_send_wr request{};
    request.wr_id = id;
    request.opcode = immediate ? IBV_WR_RDMA_WRITE_WITH_IMM : IBV_WR_RDMA_WRITE;
    request.send_flags = IBV_SEND_SIGNALED;
    request.imm_data = htonl(static_cast<std::uint32_t>(id));
    request.wr.rdma.remote_addr = address;
    request.wr.rdma.rkey = key;
    CHECK_EQUAL(try_send(request, what), 0);
  }
  std::uint64_t address_of(std::size_t offset) const {
    return reinterpret_cast<std::uintptr_t>(memory.data()) + offset;
  }

  std::optional<ibv_wc> poll(ibv_cq* queue, std::int64_t patience_ns = kPatienceNs) {
    ibv_wc done{};
    for (const std::int64_t until = datapath::now_ns() + patience_ns;;) {
      if (ibv_poll_cq(queue, 1, &done) == 1) return done;
      if (datapath::now_ns() > until) return std::nullopt;
      ::poll(nullptr, 0, 1);
    }
  }
  ibv_wc expect(ibv_cq* queue, std::uint64_t id, ibv_wc_status status = IBV_WC_SUCCESS) {
    const auto done = poll(queue);
    CHECK(done.has_value());
    CHECK_EQUAL(done->status, status);
    CHECK_EQUAL(done->wr_id, id);
    return *done;
  }
  // Whether this event is raised within the time limit; other events are skipped.
  bool raised(ibv_event_type wanted) {
    for (const std::int64_t until = datapath::now_ns() + kPatienceNs; datapath::now_ns() < until;) {
      ibv_async_event event{};
      if (ibv->get_async_event(context, &event) != 0) {
        ::poll(nullptr, 0, 1);
        continue;
      }
      ibv->ack_async_event(&event);
      if (event.event_type == wanted) return true;
    }
    return false;
  }
  ibv_qp_state state() {
    ibv_qp_attr attributes{};
    ibv_qp_init_attr made{};
    CHECK_EQUAL(ibv->query_qp(pair.get(), &attributes, IBV_QP_STATE, &made), 0);
    return attributes.qp_state;
  }

  const Ibv* ibv;
  std::vector<std::uint8_t> memory;
  ibv_context* context = nullptr;
  ibv_pd* pd = nullptr;
  ibv_comp_channel* channel = nullptr;
  ibv_cq *sends = nullptr, *receives = nullptr;
  ibv_srq* srq = nullptr;
  ibv_mr* region = nullptr;
  ibv_gid gid{};
  QueuePair pair;
};

struct Joined {
  explicit Joined(ibv_qp_type type, bool shared = false, int entries = 1024) : a(entries), b(entries) {
    a.make(type);
    b.make(type, shared);
    a.join(b);
    b.join(a);
  }
  Node a, b;
};

// A memory window onto part of a node's memory, bound by the node's queue pair.
struct OpenWindow {
  OpenWindow(Node* node, std::size_t offset, std::size_t bytes)
      : node(node), window(ibv_alloc_mw(node->pd, IBV_MW_TYPE_1)) {
    CHECK(window != nullptr);
    CHECK_EQUAL(bind(offset, bytes, 901), 0);
    node->expect(node->sends, 901);
  }
  OpenWindow(const OpenWindow&) = delete;
  OpenWindow& operator=(const OpenWindow&) = delete;
  ~OpenWindow() { static_cast<void>(ibv_dealloc_mw(window)); }
  int bind(std::size_t offset, std::size_t bytes, std::uint64_t id) {
    ibv_mw_bind wanted{};
    wanted.wr_id = id;
    wanted.send_flags = IBV_SEND_SIGNALED;
    wanted.bind_info = {node->region, bytes == 0 ? 0 : node->address_of(offset), bytes,
                        bytes == 0 ? 0u : static_cast<unsigned>(IBV_ACCESS_REMOTE_WRITE)};
    return ibv_bind_mw(node->pair.get(), window, &wanted);
  }
  void close() {
    CHECK_EQUAL(bind(0, 0, 902), 0);
    node->expect(node->sends, 902);
  }
  Node* node;
  ibv_mw* window;
};

inline void fill(std::vector<std::uint8_t>* memory, std::size_t offset, std::size_t bytes, std::uint32_t seed) {
  for (std::size_t i = 0; i < bytes; ++i) {
    (*memory)[offset + i] = static_cast<std::uint8_t>((i + 1) * 2654435761u >> 13 ^ seed * 97u);
  }
}

// The value of a counter of the provider since its first device was opened.
std::int64_t counted(const char* name);

}  // namespace weft::test
