// Tests the software RDMA provider by itself: each operation, refusal and fault, over loopback in one process.
// tests/softverbs tests the datapath over it, between processes.

#include <dlfcn.h>

#include <set>

#include "native/gpu/driver.h"
#include "tests/native/fake_cuda.h"
#include "tests/native/softverbs_node.h"
#include "tests/softverbs/native/softverbs.h"

using namespace weft::test;

namespace {

template <class Function>
Function* symbol(const char* file, const char* name) {
  void* const library = ::dlopen(file, RTLD_NOW | RTLD_LOCAL);
  CHECK(library != nullptr);
  auto* const found = reinterpret_cast<Function*>(::dlsym(library, name));
  CHECK(found != nullptr);
  return found;
}

constexpr ibv_qp_type kTypes[] = {IBV_QPT_UC, IBV_QPT_RC};

void expect_nothing(Node* node, ibv_cq* queue) { CHECK(!node->poll(queue, 50'000'000).has_value()); }

}  // namespace

std::int64_t weft::test::counted(const char* name) {
  return symbol<std::int64_t(const char*)>(WEFT_SOFTVERBS, "softverbs_count")(name);
}

TEST(softverbs__sends_of_every_size_arrive_in_order) {
  for (const ibv_qp_type type : kTypes) {
    for (const bool shared : {false, true}) {
      Joined two(type, shared);
      std::uint64_t id = 0;
      for (const std::size_t bytes : {0u, 1u, 1023u, 1024u, 1025u, 70'001u}) {
        fill(&two.a.memory, 0, bytes, static_cast<std::uint32_t>(++id));
        two.b.post_receive(id + 100, 500, bytes);
        two.a.send(id, two.a.piece(0, bytes), IBV_SEND_SIGNALED, IBV_WR_SEND_WITH_IMM);
        CHECK_EQUAL(two.a.expect(two.a.sends, id).opcode, IBV_WC_SEND);
        const ibv_wc done = two.b.expect(two.b.receives, id + 100);
        CHECK_EQUAL(done.opcode, IBV_WC_RECV);
        CHECK_EQUAL(done.byte_len, bytes);
        CHECK_EQUAL(done.wc_flags, static_cast<unsigned>(IBV_WC_WITH_IMM));
        CHECK_EQUAL(ntohl(done.imm_data), id);
        CHECK_EQUAL(done.qp_num, two.b.pair.number());
        CHECK_EQUAL(std::memcmp(two.a.memory.data(), two.b.memory.data() + 500, bytes), 0);
      }
    }
  }
}

TEST(softverbs__one_completion_a_burst_and_what_is_inline_is_taken_at_once) {
  Joined two(IBV_QPT_UC);
  for (std::uint64_t i = 0; i < 8; ++i) two.b.post_receive(i, i * 64, 64);
  std::uint8_t small[64];
  for (std::uint8_t i = 0; i < 8; ++i) {
    std::memset(small, i + 1, sizeof small);
    const ibv_sge what{reinterpret_cast<std::uintptr_t>(small), sizeof small, 0};
    two.a.send(i, what, IBV_SEND_INLINE | (i == 7 ? IBV_SEND_SIGNALED : 0));
  }
  two.a.expect(two.a.sends, 7);
  expect_nothing(&two.a, two.a.sends);
  for (std::uint64_t i = 0; i < 8; ++i) {
    two.b.expect(two.b.receives, i);
    CHECK_EQUAL(two.b.memory[i * 64 + 63], i + 1);
  }
}

TEST(softverbs__datagrams_carry_a_route_and_are_dropped_without_the_key) {
  Node a, b;
  a.make(IBV_QPT_UD);
  b.make(IBV_QPT_UD);
  a.join(b);
  b.join(a);
  ibv_ah_attr where{};
  where.port_num = 1;
  where.is_global = 1;
  where.grh.dgid = b.gid;
  ibv_ah* const address = a.ibv->create_ah(a.pd, &where);
  CHECK(address != nullptr);
  ibv_send_wr request{};
  request.opcode = IBV_WR_SEND;
  request.send_flags = IBV_SEND_SIGNALED;
  request.wr.ud.ah = address;
  request.wr.ud.remote_qpn = b.pair.number();
  request.wr.ud.remote_qkey = weft::datapath::kQkey + 1;
  fill(&a.memory, 0, 3000, 5);
  b.post_receive(1, 0, 4096);
  CHECK_EQUAL(a.try_send(request, a.piece(0, 3000)), 0);
  a.expect(a.sends, 0);
  expect_nothing(&b, b.receives);
  request.wr.ud.remote_qkey = weft::datapath::kQkey;
  CHECK_EQUAL(a.try_send(request, a.piece(0, 3000)), 0);
  const ibv_wc done = b.expect(b.receives, 1);
  CHECK_EQUAL(done.byte_len, 3040u);
  CHECK_EQUAL(done.src_qp, a.pair.number());
  CHECK_EQUAL(done.wc_flags, static_cast<unsigned>(IBV_WC_GRH));
  CHECK_EQUAL(std::memcmp(b.memory.data() + 8, a.gid.raw, 16), 0);
  CHECK_EQUAL(std::memcmp(b.memory.data() + 40, a.memory.data(), 3000), 0);
  CHECK_EQUAL(a.try_send(request, a.piece(0, 4097)), EMSGSIZE);  // above the port's MTU
  b.post_receive(2, 0, 100);  // too small: the message is dropped, and the receive stays posted
  CHECK_EQUAL(a.try_send(request, a.piece(0, 3000)), 0);
  expect_nothing(&b, b.receives);
  CHECK_EQUAL(a.try_send(request, a.piece(0, 60)), 0);
  CHECK_EQUAL(b.expect(b.receives, 2).byte_len, 100u);
  CHECK_EQUAL(a.ibv->destroy_ah(address), 0);
}

TEST(softverbs__writes_land_where_they_are_told_to) {
  for (const ibv_qp_type type : kTypes) {
    Joined two(type, true);
    fill(&two.a.memory, 0, 50'000, 3);
    two.a.write(1, two.a.piece(0, 50'000), two.b.address_of(7'777), two.b.region->rkey, false);
    CHECK_EQUAL(two.a.expect(two.a.sends, 1).opcode, IBV_WC_RDMA_WRITE);
    two.b.post_receive(9, 0, 0);
    two.a.write(2, two.a.piece(10, 33), two.b.address_of(3), two.b.region->rkey);
    const ibv_wc done = two.b.expect(two.b.receives, 9);
    CHECK_EQUAL(done.opcode, IBV_WC_RECV_RDMA_WITH_IMM);
    CHECK_EQUAL(done.byte_len, 33u);
    CHECK_EQUAL(ntohl(done.imm_data), 2u);
    CHECK_EQUAL(std::memcmp(two.a.memory.data(), two.b.memory.data() + 7'777, 50'000), 0);
    CHECK_EQUAL(std::memcmp(two.a.memory.data() + 10, two.b.memory.data() + 3, 33), 0);
  }
}

TEST(softverbs__a_write_without_the_right_is_refused) {
  struct Wrong {
    std::int64_t offset;
    std::uint32_t key_difference;
    std::size_t bytes;
  };
  const Wrong cases[] = {
      {0, 0x100, 64}, {0, 1, 64}, {static_cast<std::int64_t>(kMemoryBytes) - 63, 0, 64}, {-1, 0, 64}};
  for (const Wrong& wrong : cases) {
    const auto attempt = [&](Joined* two) {
      two->b.post_receive(9, 0, 0);
      const std::uint64_t address = two->b.address_of(0) + static_cast<std::uint64_t>(wrong.offset);
      two->a.write(1, two->a.piece(0, wrong.bytes), address, two->b.region->rkey + wrong.key_difference);
      two->a.send(2, two->a.piece(0, 8));
    };
    {
      Joined two(IBV_QPT_RC);
      attempt(&two);
      two.a.expect(two.a.sends, 1, IBV_WC_REM_ACCESS_ERR);
      two.a.expect(two.a.sends, 2, IBV_WC_WR_FLUSH_ERR);
      CHECK(two.b.raised(IBV_EVENT_QP_ACCESS_ERR));
      two.b.expect(two.b.receives, 9, IBV_WC_WR_FLUSH_ERR);
      CHECK_EQUAL(two.a.state(), IBV_QPS_ERR);
      CHECK_EQUAL(two.b.state(), IBV_QPS_ERR);
    }
    Joined two(IBV_QPT_UC);
    two.b.post_receive(8, 4096, 64);
    attempt(&two);  // the message is dropped silently; later messages use the receives in order
    two.a.expect(two.a.sends, 1);
    two.a.expect(two.a.sends, 2);
    CHECK_EQUAL(two.b.expect(two.b.receives, 8).opcode, IBV_WC_RECV);
    CHECK_EQUAL(counted("refused"), 1);
  }
}

TEST(softverbs__windows_open_close_and_keep_their_bounds) {
  Joined two(IBV_QPT_UC, true);
  for (std::uint64_t i = 0; i < 8; ++i) two.b.post_receive(i, 0, 0);
  fill(&two.a.memory, 0, 4096, 8);
  OpenWindow open(&two.b, 1000, 500);
  const std::uint32_t key = open.window->rkey;
  two.a.write(1, two.a.piece(0, 500), two.b.address_of(1000), key);
  two.b.expect(two.b.receives, 0);
  CHECK_EQUAL(std::memcmp(two.b.memory.data() + 1000, two.a.memory.data(), 500), 0);
  two.a.write(2, two.a.piece(0, 500), two.b.address_of(1001), key);  // ends one byte beyond the window
  expect_nothing(&two.b, two.b.receives);
  CHECK_EQUAL(two.b.ibv->dereg_mr(two.b.region), EBUSY);
  open.close();
  CHECK(open.window->rkey != key);
  two.a.write(3, two.a.piece(0, 500), two.b.address_of(1000), key);
  expect_nothing(&two.b, two.b.receives);
  CHECK_EQUAL(counted("refused"), 2);
  CHECK_EQUAL(open.bind(0, kMemoryBytes + 1, 7), 0);  // larger than the memory region: the queue pair fails
  for (int i = 0; i < 3; ++i) two.a.expect(two.a.sends, static_cast<std::uint64_t>(i + 1));
  two.b.expect(two.b.sends, 7, IBV_WC_MW_BIND_ERR);
  CHECK_EQUAL(two.b.state(), IBV_QPS_ERR);
}

// When a memory window is removed, a pending close takes effect, a pending open fails unless it was executed already,
// and removed objects are not accessed.
TEST(softverbs__a_window_may_go_before_its_bindings_turn) {
  for (int round = 0; round < 20; ++round) {
    const std::size_t bytes = round % 2 == 0 ? 0 : 100;
    Joined two(IBV_QPT_RC);
    {
      OpenWindow open(&two.a, 1000, 500);
      two.a.send(1, two.a.piece(0, 10));  // waits for a receive, so that later requests wait, too
      if (round % 4 >= 2) expect_nothing(&two.a, two.a.sends);
      CHECK_EQUAL(open.bind(1000, bytes, 7), 0);
    }
    two.b.post_receive(4, 0, 10);
    const auto sent = two.a.poll(two.a.sends), bound = two.a.poll(two.a.sends);
    CHECK(sent.has_value() && bound.has_value());
    CHECK(sent->wr_id == 1 && bound->wr_id == 7);
    const bool failed = bound->status != IBV_WC_SUCCESS;
    CHECK(!failed || (bytes != 0 && bound->status == IBV_WC_MW_BIND_ERR));
    CHECK(sent->status == IBV_WC_SUCCESS || (failed && sent->status == IBV_WC_WR_FLUSH_ERR));
    CHECK_EQUAL(two.a.state(), failed ? IBV_QPS_ERR : IBV_QPS_RTS);
  }
}

TEST(softverbs__keys_and_bounds_of_local_memory_are_checked) {
  for (const ibv_qp_type type : kTypes) {
    Joined two(type);
    ibv_sge beyond = two.a.piece(kMemoryBytes - 10, 11);
    two.a.send(1, beyond);
    two.a.expect(two.a.sends, 1, IBV_WC_LOC_PROT_ERR);
    CHECK_EQUAL(two.a.state(), IBV_QPS_ERR);
  }
  Joined two(IBV_QPT_RC);
  two.b.post_receive(5, 0, 10);
  two.a.send(1, two.a.piece(0, 11));  // longer than the posted receive
  two.a.expect(two.a.sends, 1, IBV_WC_REM_INV_REQ_ERR);
  two.b.expect(two.b.receives, 5, IBV_WC_LOC_LEN_ERR);
}

TEST(softverbs__rc_waits_for_a_receive_and_uc_does_not) {
  {
    Joined two(IBV_QPT_RC, true);
    fill(&two.a.memory, 0, 3000, 1);
    two.a.send(1, two.a.piece(0, 3000));
    expect_nothing(&two.a, two.a.sends);
    two.b.post_receive(4, 0, 3000);
    two.a.expect(two.a.sends, 1);
    two.b.expect(two.b.receives, 4);
    CHECK_EQUAL(std::memcmp(two.b.memory.data(), two.a.memory.data(), 3000), 0);
  }
  Joined two(IBV_QPT_UC, true);
  two.a.send(1, two.a.piece(0, 3000));
  two.a.expect(two.a.sends, 1);
  expect_nothing(&two.b, two.b.receives);
  two.b.post_receive(4, 0, 3000);
  expect_nothing(&two.b, two.b.receives);
}

TEST(softverbs__errors_flush_and_resets_forget) {
  Joined two(IBV_QPT_RC);
  two.b.post_receive(1, 0, 8);
  two.b.post_receive(2, 0, 8);
  CHECK(two.b.pair.to_error());
  two.b.expect(two.b.receives, 1, IBV_WC_WR_FLUSH_ERR);
  two.b.send(3, two.b.piece(0, 8), 0);  // 0: unsignalled, but errors are reported nevertheless
  two.b.expect(two.b.sends, 3, IBV_WC_WR_FLUSH_ERR);
  CHECK(two.b.pair.to_reset());
  expect_nothing(&two.b, two.b.receives);
  CHECK_EQUAL(two.b.try_send({}, two.b.piece(0, 8)), EINVAL);
  CHECK(two.a.pair.to_reset());
  two.a.join(two.b, 5);
  two.b.join(two.a, 5);
  two.b.post_receive(6, 0, 8);
  two.a.send(7, two.a.piece(0, 8));
  two.a.expect(two.a.sends, 7);
  two.b.expect(two.b.receives, 6);
}

TEST(softverbs__a_peer_that_is_not_there_costs_rc_its_queue_pair) {
  Joined two(IBV_QPT_RC);
  two.b.pair.reset();
  two.a.send(1, two.a.piece(0, 8));
  two.a.expect(two.a.sends, 1, IBV_WC_RETRY_EXC_ERR);
}

TEST(softverbs__a_sleeper_is_woken_once_for_what_it_armed) {
  Joined two(IBV_QPT_UC);
  for (std::uint64_t i = 0; i < 4; ++i) two.b.post_receive(i, 0, 8);
  CHECK_EQUAL(ibv_req_notify_cq(two.b.receives, 0), 0);
  two.a.send(1, two.a.piece(0, 8));
  two.a.send(2, two.a.piece(0, 8));
  pollfd bell{two.b.channel->fd, POLLIN, 0};
  CHECK_EQUAL(::poll(&bell, 1, 5'000), 1);
  ibv_cq* rung = nullptr;
  void* unused = nullptr;
  CHECK_EQUAL(two.b.ibv->get_cq_event(two.b.channel, &rung, &unused), 0);
  CHECK(rung == two.b.receives);
  two.b.ibv->ack_cq_events(rung, 1);
  two.b.expect(two.b.receives, 0);
  two.b.expect(two.b.receives, 1);
  CHECK_EQUAL(two.b.ibv->get_cq_event(two.b.channel, &rung, &unused), -1);
}

TEST(softverbs__a_completion_queue_that_overflows_says_so) {
  Joined two(IBV_QPT_UC, false, 4);
  for (std::uint64_t i = 0; i < 8; ++i) two.b.post_receive(i, 0, 8);
  for (std::uint64_t i = 0; i < 8; ++i) two.a.send(i, two.a.piece(0, 8), 0);
  CHECK(two.b.raised(IBV_EVENT_CQ_ERR));
  ibv_wc done{};
  CHECK(ibv_poll_cq(two.b.receives, 1, &done) < 0);
}

TEST(softverbs__rc_loses_nothing_whatever_befalls_its_packets) {
  const Weather weather{
      {"SOFTVERBS_LOSS", "0.1"},  {"SOFTVERBS_REORDER", "0.1"},         {"SOFTVERBS_DUPLICATE", "0.1"},
      {"SOFTVERBS_LATE", "0.05"}, {"SOFTVERBS_LATE_NS_MAX", "3000000"}, {"SOFTVERBS_STALL", "0.05"}};
  Joined two(IBV_QPT_RC, true);
  constexpr std::size_t kMessages = 60, kBytes = 2'500;
  for (std::size_t i = 0; i < kMessages; ++i) {
    fill(&two.a.memory, i * kBytes, kBytes, static_cast<std::uint32_t>(i));
    two.b.post_receive(i, i * kBytes, kBytes);
  }
  for (std::size_t i = 0; i < kMessages; ++i) two.a.send(i, two.a.piece(i * kBytes, kBytes));
  for (std::size_t i = 0; i < kMessages; ++i) two.b.expect(two.b.receives, i);
  for (std::size_t i = 0; i < kMessages; ++i) two.a.expect(two.a.sends, i);
  CHECK(two.a.memory == two.b.memory || std::memcmp(two.a.memory.data(), two.b.memory.data(), kMessages * kBytes) == 0);
  for (const char* name : {"lost", "reordered", "duplicated", "late", "stalled"}) CHECK(counted(name) > 0);
}

TEST(softverbs__uc_loses_whole_messages_and_delivers_the_others_whole) {
  const Weather weather{{"SOFTVERBS_LOSS", "0.1"}, {"SOFTVERBS_SEED", "7"}};
  Joined two(IBV_QPT_UC, true);
  constexpr std::uint32_t kMessages = 60, kBytes = 2'500;
  for (std::uint32_t i = 0; i < kMessages; ++i) {
    fill(&two.a.memory, i * kBytes, kBytes, i);
    two.b.post_receive(i, i * kBytes, kBytes);
  }
  for (std::uint32_t i = 0; i < kMessages; ++i) {
    two.a.send(i, two.a.piece(i * kBytes, kBytes), IBV_SEND_SIGNALED, IBV_WR_SEND_WITH_IMM);
  }
  for (std::uint32_t i = 0; i < kMessages; ++i) two.a.expect(two.a.sends, i);
  std::uint32_t arrived = 0;
  while (const auto done = two.b.poll(two.b.receives, 100'000'000)) {
    const std::uint32_t number = ntohl(done->imm_data);
    CHECK_EQUAL(done->byte_len, kBytes);
    CHECK_EQUAL(std::memcmp(two.b.memory.data() + done->wr_id * kBytes, two.a.memory.data() + number * kBytes, kBytes),
                0);
    ++arrived;
  }
  CHECK(arrived > kMessages / 3 &&
        arrived < kMessages);  // at three packets per message, about a quarter of the messages is lost
}

// Shows what rule P-1 guards against: a late write may overwrite memory after a newer write, unless the memory window
// of the late one was closed.
TEST(softverbs__late_writes_land_late_and_not_behind_a_closed_window) {
  const Weather weather{{"SOFTVERBS_LATE", "0.5"}, {"SOFTVERBS_LATE_NS_MAX", "200000000"}};
  Joined two(IBV_QPT_UC, true);
  constexpr std::uint64_t kWrites = 40;
  const auto write_all = [&](std::uint32_t key) {
    for (std::uint64_t i = 0; i < kWrites; ++i) two.b.post_receive(i, 0, 0);
    for (std::uint64_t i = 0; i < kWrites; ++i) {
      two.a.memory[i] = static_cast<std::uint8_t>(i);
      two.a.write(i, two.a.piece(i, 1), two.b.address_of(0), key);
    }
    for (std::uint64_t i = 0; i < kWrites; ++i) two.a.expect(two.a.sends, i);
  };
  write_all(two.b.region->rkey);
  std::uint64_t last = 0, overtaken = 0;
  for (std::uint64_t i = 0; i < kWrites; ++i) {
    const auto done = two.b.poll(two.b.receives);
    CHECK(done.has_value());
    overtaken += ntohl(done->imm_data) < last ? 1 : 0;
    last = ntohl(done->imm_data);
  }
  CHECK(overtaken > 0);
  CHECK_EQUAL(two.b.memory[0], last);
  OpenWindow open(&two.b, 0, 64);
  const std::uint32_t key = open.window->rkey;
  write_all(key);
  open.close();
  two.b.memory[0] = 0xEE;
  std::uint64_t landed = 0;
  while (two.b.poll(two.b.receives, 600'000'000)) ++landed;  // the last late write arrives within 200 ms
  CHECK(landed < kWrites);
  CHECK_EQUAL(counted("refused"), static_cast<std::int64_t>(kWrites - landed));
  CHECK_EQUAL(two.b.memory[0], 0xEE);
}

TEST(softverbs__a_copy_of_an_old_write_lands_again) {
  const Weather weather{{"SOFTVERBS_DUPLICATE", "0.9"}, {"SOFTVERBS_LATE_NS_MAX", "2000000"}};
  Joined two(IBV_QPT_UC, true);
  for (std::uint64_t i = 0; i < 100; ++i) two.b.post_receive(i, 0, 64);
  for (std::uint64_t i = 0; i < 20; ++i) two.a.send(i, two.a.piece(0, 8), 0);
  std::uint64_t arrived = 0;
  while (two.b.poll(two.b.receives, 400'000'000)) ++arrived;
  CHECK_EQUAL(arrived, 20u + static_cast<std::uint64_t>(counted("duplicated")));
  CHECK(arrived > 30);
}

TEST(softverbs__what_cannot_be_had_is_refused_at_once) {
  Joined two(IBV_QPT_UC);
  ibv_send_wr request{};
  request.opcode = IBV_WR_RDMA_READ;
  CHECK_EQUAL(two.a.try_send(request, two.a.piece(0, 8)), EOPNOTSUPP);
  request.opcode = IBV_WR_SEND;
  request.send_flags = IBV_SEND_INLINE;
  CHECK_EQUAL(two.a.try_send(request, two.a.piece(0, 257)), EINVAL);
  CHECK(two.a.ibv->reg_mr(two.a.pd, two.a.memory.data(), 8, IBV_ACCESS_REMOTE_WRITE) == nullptr);
  CHECK(ibv_alloc_mw(two.a.pd, IBV_MW_TYPE_2) == nullptr);
  // Registration as dma-buf memory ignores the descriptor and refuses host memory.
  CHECK(two.a.ibv->reg_dmabuf_mr(two.a.pd, 0, 4096, two.a.address_of(0), 0, kAll) == nullptr);
  ibv_qp_attr attributes{};
  attributes.qp_state = IBV_QPS_RTR;
  CHECK(two.a.pair.to_reset());
  CHECK_EQUAL(two.a.ibv->modify_qp(two.a.pair.get(), &attributes, IBV_QP_STATE), EINVAL);
}

TEST(softverbs__settings_that_cannot_be_read_are_named) {
  auto* const introduce = symbol<const char*(const char**)>(WEFT_SOFTVERBS, "weft_software_provider");
  const char* problem = nullptr;
  CHECK(std::string(introduce(&problem)).find("no NIC") != std::string::npos);
  for (const auto& [name, value] : {std::pair{"SOFTVERBS_LOSS", "much"}, std::pair{"SOFTVERBS_LOSS", "1.5"},
                                    std::pair{"SOFTVERBS_LOS", "0.5"}, std::pair{"SOFTVERBS_MTU_BYTES", "1000"}}) {
    const Weather weather{{name, value}};
    CHECK(introduce(&problem) == nullptr);
    CHECK(std::string(problem).find(name) != std::string::npos);
    int count = 0;
    CHECK(softverbs()->get_device_list(&count) == nullptr);
  }
}

TEST(softverbs__device_memory_is_reached_by_copies_alone) {
  const Weather weather{{"SOFTVERBS_CUDA_LIBRARY", WEFT_FAKE_CUDA}};
  auto* const allocate = symbol<std::uint64_t(std::size_t, int)>(WEFT_FAKE_CUDA, "fake_cuda_allocate");
  auto* const reach = symbol<std::uint8_t*(std::uint64_t)>(WEFT_FAKE_CUDA, "fake_cuda_reach");
  auto* const live = symbol<int()>(WEFT_FAKE_CUDA, "fake_cuda_live");
  constexpr std::size_t kBytes = 1 << 16;
  const std::uint64_t from = allocate(kBytes, 0), to = allocate(kBytes, 1);
  for (const ibv_qp_type type : kTypes) {
    Joined two(type);
    // Register one end by descriptor and one by address; the CPU could not access the memory of either end.
    ibv_mr* const source = two.a.ibv->reg_dmabuf_mr(two.a.pd, 0, kBytes, from, 3, IBV_ACCESS_LOCAL_WRITE);
    ibv_mr* const target = two.b.ibv->reg_mr_iova2(two.b.pd, reinterpret_cast<void*>(to), kBytes, to, kAll);
    CHECK(source != nullptr && target != nullptr);
    for (std::size_t i = 0; i < kBytes; ++i) reach(from)[i] = static_cast<std::uint8_t>(i * 31 + type);
    std::memset(reach(to), 0, kBytes);
    two.b.post_receive(1, 0, 0);
    two.a.write(2, {from + 7, 30'000, source->lkey}, to + 1'000, target->rkey);
    two.a.expect(two.a.sends, 2);
    two.b.expect(two.b.receives, 1);
    CHECK_EQUAL(std::memcmp(reach(to) + 1'000, reach(from) + 7, 30'000), 0);
    CHECK_EQUAL(reach(to)[999] + reach(to)[31'000], 0);
    CHECK_EQUAL(two.a.ibv->dereg_mr(source), 0);
    CHECK_EQUAL(two.b.ibv->dereg_mr(target), 0);
    CHECK(two.b.ibv->reg_mr_iova2(two.b.pd, reinterpret_cast<void*>(to), kBytes + 1, to, kAll) == nullptr);
  }
  CHECK_EQUAL(live(), 0);  // contexts and streams were freed with the memory regions
  auto* const release = symbol<void(std::uint64_t)>(WEFT_FAKE_CUDA, "fake_cuda_free");
  release(from);
  release(to);
}
