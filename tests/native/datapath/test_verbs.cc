// Tests the verbs datapath over the null provider, without a device, with two complete stacks. Tests that need a device
// (packets, netem, privileges) are in tests/rdma.

#include <fcntl.h>
#include <unistd.h>

#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "native/datapath/verbs/verbs_datapath.h"
#include "tests/native/check.h"
#include "tests/native/pair.h"
#include "tests/native/verbs/null_provider.h"

using namespace weft::datapath;
using weft::Status;
namespace core = weft::core;
namespace wire = weft::wire;

namespace {

constexpr std::uint16_t kPaths = 4;
constexpr std::uint32_t kSegmentBytes = 4096;

VerbsOptions options_of(VerbsMode mode, bool direct = false) {
  VerbsOptions options;
  options.mode = mode;
  options.segment_bytes = kSegmentBytes;
  options.slots = 256;
  options.direct = direct;
  return options;
}

std::vector<Place> places_of() {
  std::vector<Place> places(1);
  places[0].port = "null0:1@1";
  return places;
}

struct End final : RxSink {
  explicit End(const VerbsOptions& options)
      : stack(weft::test::shipped_config()), datapath(options, null_provider()), places(places_of()) {
    std::string error;
    CHECK(datapath.open(&error));
    CHECK_EQUAL(stack.reserve_peer(&peer), Status::ok);
    CHECK_EQUAL(stack.reserve_flow(&flow), Status::ok);
    CHECK(datapath.open_link({peer, 0, kPaths, &places}, &params, &error));
  }
  void on_datagram(std::uint32_t, const wire::RxDatagram& datagram) override { stack.on_datagram(now_ns, datagram); }

  core::Stack stack;
  VerbsDatapath datapath;
  std::vector<Place> places;
  std::vector<SocketAddress> addresses{1};
  std::string params;
  std::uint32_t peer = 0, flow = 0;
  std::int64_t now_ns = 1'000'000'000;
  // Handles events as the engine does: memory windows are closed before anything is transmitted.
  void take_events() {
    core::Event event;
    while (stack.poll_event(&event)) {
      datapath.close_memory_window(event.key);
      placed += event.kind == core::Event::Kind::stripe_placed;
      sent += event.kind == core::Event::Kind::send_done;
      failed += event.kind == core::Event::Kind::flow_failed;
    }
  }
  int placed = 0, sent = 0, failed = 0;
};

// Two ends, which one thread runs in turn with one clock.
struct Two {
  explicit Two(VerbsMode mode, double fault_qp_error = 0, bool direct = false) : registered(direct), ends() {
    VerbsOptions options = options_of(mode, direct);
    for (auto& end : ends) {
      options.fault_qp_error = fault_qp_error;
      options.faults.seed += 7;
      end = std::make_unique<End>(options);
    }
    for (int i = 0; i < 2; ++i) join(i);
    burst = std::make_unique<wire::TxBurst[]>(8);
  }
  ~Two() {
    for (auto& end : ends) end->datapath.close_link(end->peer);
  }
  End& a() { return *ends[0]; }
  End& b() { return *ends[1]; }

  void join(int i) {
    End &mine = *ends[i], &theirs = *ends[1 - i];
    core::PeerConfig peer;
    peer.remote_peer = theirs.peer;
    peer.remote_token = peer.local_token = 9;
    peer.segment_bytes = kSegmentBytes;
    peer.train_bytes_max = 65'000;
    peer.port_buffer_bytes = 1 << 18;
    std::string error;
    CHECK(mine.datapath.connect_link(mine.peer, {&theirs.addresses, &theirs.params}, &peer.path_count, &error));
    CHECK_EQUAL(peer.path_count, kPaths);
    CHECK_EQUAL(mine.stack.open_peer(0, mine.peer, peer), Status::ok);
    core::FlowConfig flow;
    flow.peer = mine.peer;
    flow.remote_flow = theirs.flow;
    flow.remote_token = flow.local_token = 5;
    CHECK_EQUAL(mine.stack.open_flow(mine.now_ns, mine.flow, flow), Status::ok);
  }

  void step() {
    for (auto& end : ends) {
      end->now_ns += 20'000;
      end->datapath.rx_burst(end.get());
      if (end->stack.poll_timeout() <= end->now_ns) end->stack.on_timer(end->now_ns);
      end->take_events();
      wire::TxBurst* batch[8];
      std::size_t count = 0;
      for (; count < 8; ++count) {
        batch[count] = &burst[count];
        if (!end->stack.poll_transmit(end->now_ns, batch[count])) break;
      }
      if (count != 0) end->datapath.tx_burst(batch, count);
      end->take_events();
    }
  }

  // Registers memory at an end; returns 0 if it was not registered.
  std::uint32_t add(End& end, std::vector<std::uint8_t>* memory) {
    if (!registered || memory->empty()) return 0;
    std::string error;
    const Memory added{++memories, memory->data(), memory->size(), -1, 0};
    return end.datapath.add_memory(added, &error) ? added.id : 0;
  }

  // Sends messages from a to b, each into its own buffer; true if all arrived unchanged.
  bool carry(int messages, std::size_t bytes, int rounds_max = 200'000) {
    std::vector<std::vector<std::uint8_t>> out, in;
    std::vector<core::ReceiveTicket> tickets(static_cast<std::size_t>(messages));
    for (int i = 0; i < messages; ++i) {
      out.push_back(weft::test::pattern(bytes, static_cast<std::uint64_t>(next + i)));
      in.emplace_back(bytes, std::uint8_t{0});
    }
    const int until = b().placed + messages, sent_until = a().sent + messages;
    for (int i = 0; i < messages; ++i) {
      const auto number = static_cast<std::uint64_t>(next + i);
      auto& ticket = tickets[static_cast<std::size_t>(i)];
      ticket.message.store(number);
      auto& buffer = in[static_cast<std::size_t>(i)];
      std::vector<std::uint8_t>& from = out[static_cast<std::size_t>(i)];
      const std::uint32_t from_memory = add(a(), &from), to_memory = add(b(), &buffer);
      const std::uint32_t key = b().datapath.open_memory_window(b().peer, to_memory, buffer.data(), bytes);
      CHECK_EQUAL(b().stack.post_receive(b().now_ns, b().flow, {number, buffer.data(), bytes, key, &ticket, nullptr}),
                  Status::ok);
      CHECK_EQUAL(
          a().stack.post_send(a().now_ns, a().flow, {number, from.data(), bytes, from_memory, nullptr, nullptr}),
          Status::ok);
    }
    next += messages;
    for (int round = 0; round < rounds_max && (b().placed < until || a().sent < sent_until); ++round) step();
    bool right = b().placed == until && a().sent == sent_until;
    // From here on the buffers belong to their owner: late duplicates must not change them.
    const std::vector<std::vector<std::uint8_t>> as_received = in, as_sent = out;
    for (auto& buffer : in) std::memset(buffer.data(), 0x5A, buffer.size());
    // The sender's buffers are reused, so that a late work request would read their new contents.
    for (auto& buffer : out) std::memset(buffer.data(), 0xA5, buffer.size());
    null_provider_replay();
    for (int round = 0; round < 200; ++round) step();
    for (const auto& buffer : in) {
      for (const std::uint8_t byte : buffer) right = right && byte == 0x5A;
    }
    for (std::size_t i = 0; i < as_received.size(); ++i) right = right && as_received[i] == as_sent[i];
    for (std::uint32_t id = 1; id <= memories; ++id) {
      for (auto& end : ends) end->datapath.remove_memory(id);
    }
    return right;
  }

  const bool registered;
  std::uint32_t memories = 0;
  std::unique_ptr<End> ends[2];
  std::unique_ptr<wire::TxBurst[]> burst;
  int next = 0;
};

}  // namespace

TEST(verbs__each_transport_carries_and_old_copies_change_nothing) {
  for (const VerbsMode mode : {VerbsMode::uc, VerbsMode::rc, VerbsMode::ud}) {
    null_provider_reset({});
    Two two(mode);
    CHECK(two.carry(20, 100'000));
    CHECK(two.carry(20, 1'000));
    CHECK_EQUAL(two.a().failed + two.b().failed, 0);
    CHECK_EQUAL(two.b().datapath.counters().foreign_completions, 0);
  }
}

TEST(verbs__loss_and_duplicates_are_repaired) {
  for (const VerbsMode mode : {VerbsMode::uc, VerbsMode::ud}) {
    NullProviderFaults faults;
    faults.drop_every = 17;
    faults.duplicate_every = 13;
    null_provider_reset(faults);
    Two two(mode);
    CHECK(two.carry(30, 60'000));
    const core::FlowCells& sent = two.a().stack.flow(two.a().flow)->tx.counters();
    CHECK(sent.segments_resent > 0);
  }
}

TEST(verbs__pairs_in_error_are_reestablished) {
  for (const VerbsMode mode : {VerbsMode::uc, VerbsMode::rc, VerbsMode::ud}) {
    null_provider_reset({});
    Two two(mode, 0.02);
    const std::size_t posted = null_provider_posted();
    CHECK(two.carry(30, 60'000));
    CHECK_EQUAL(null_provider_posted(), posted);  // no slot was lost by the resets
    const weft::telemetry::EngineCells& seen = two.a().datapath.counters();
    CHECK(seen.paths_broken > 0);
    CHECK(seen.paths_reestablished > 0);
    CHECK(seen.reestablish_ns_max > 0);
  }
}

TEST(verbs__direct__payload_goes_where_it_belongs_without_a_copy) {
  for (const VerbsMode mode : {VerbsMode::uc, VerbsMode::rc}) {
    null_provider_reset({});
    Two two(mode, 0, true);
    const std::size_t regions = null_provider_regions();
    CHECK(two.carry(20, 100'000));
    CHECK(two.carry(200, 20'000));  // more messages than one memory window serves
    CHECK_EQUAL(two.a().failed + two.b().failed, 0);
    CHECK_EQUAL(two.a().datapath.counters().payload_copied_bytes, 0);
    const std::int64_t total = 20 * 100'000 + 200 * 20'000, written = two.a().datapath.counters().payload_written_bytes;
    CHECK(written >= total && written < total + total / 10);
    CHECK_EQUAL(null_provider_windows(), 0u);
    CHECK_EQUAL(null_provider_regions(), regions);
  }
}

TEST(verbs__direct__loss_duplicates_and_broken_pairs_change_no_byte) {
  for (const VerbsMode mode : {VerbsMode::uc, VerbsMode::rc}) {
    NullProviderFaults faults;
    faults.drop_every = 17;
    faults.duplicate_every = 13;
    null_provider_reset(faults);
    Two two(mode, 0.02, true);
    CHECK(two.carry(30, 60'000));
    CHECK(two.carry(30, 30'000));
    CHECK(two.a().datapath.counters().payload_written_bytes > 0);
    CHECK(two.a().datapath.counters().paths_reestablished > 0);
    CHECK_EQUAL(null_provider_windows(), 0u);
  }
}

TEST(verbs__direct__without_windows_or_room_to_register_bytes_are_copied) {
  NullProviderFaults faults;
  faults.bind = false;
  null_provider_reset(faults);
  {
    Two two(VerbsMode::uc, 0, true);
    CHECK(two.carry(20, 60'000));
    CHECK_EQUAL(two.a().datapath.counters().payload_written_bytes, 0);
    // The sender's memory is registered, although there are no memory windows.
    CHECK_EQUAL(two.a().datapath.counters().payload_copied_bytes, 0);
    CHECK_EQUAL(two.b().datapath.counters().windows_refused, 20);
  }
  null_provider_reset({});
  Two two(VerbsMode::uc, 0, true);
  faults = {};
  faults.regions_max = static_cast<std::uint32_t>(null_provider_regions());
  null_provider_set_faults(faults);
  CHECK(two.carry(20, 60'000));
  CHECK(two.a().datapath.counters().memory_refused > 0);
  CHECK_EQUAL(two.a().datapath.counters().payload_copied_bytes, 20 * 60'000);
}

TEST(verbs__memory__of_a_gpu_by_dma_buf_then_by_address_then_not_at_all) {
  NullProviderFaults faults;
  null_provider_reset(faults);
  Two two(VerbsMode::uc);
  std::vector<std::uint8_t> memory(60'000);
  std::string error;
  const int descriptor = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  const Memory one{1, memory.data(), memory.size(), descriptor, 0};
  CHECK(two.a().datapath.add_memory(one, &error));
  CHECK_EQUAL(two.a().datapath.counters().memory_by_dmabuf, 1);
  two.a().datapath.remove_memory(1);
  faults.dmabuf = false;
  null_provider_set_faults(faults);
  CHECK(two.a().datapath.add_memory(one, &error));
  CHECK_EQUAL(two.a().datapath.counters().memory_by_dmabuf, 1);
  CHECK_EQUAL(two.a().datapath.counters().memory_refused, 0);
  two.a().datapath.remove_memory(1);
  faults.regions_max = static_cast<std::uint32_t>(null_provider_regions());
  null_provider_set_faults(faults);
  CHECK(!two.a().datapath.add_memory(one, &error));
  CHECK_EQUAL(two.a().datapath.counters().memory_refused, 1);
  CHECK(!error.empty());
  ::close(descriptor);
}

TEST(verbs__direct__datagrams_carry_what_is_not_registered) {
  null_provider_reset({});
  Two two(VerbsMode::ud, 0, true);  // UD has no RDMA writes, but sends registered memory without a copy
  CHECK(two.carry(20, 60'000));
  CHECK_EQUAL(two.a().datapath.counters().payload_copied_bytes, 0);
  CHECK_EQUAL(two.a().datapath.counters().payload_written_bytes, 0);
}

TEST(verbs__memory__is_forgotten_only_when_nothing_is_under_way) {
  NullProviderFaults faults;
  faults.complete = false;  // the NIC accepts requests and does not finish them yet
  null_provider_reset({});
  Two two(VerbsMode::uc, 0, true);
  std::vector<std::uint8_t> memory(60'000, 7);
  const std::uint32_t id = two.add(two.a(), &memory);
  const std::size_t regions = null_provider_regions();
  null_provider_set_faults(faults);
  CHECK_EQUAL(two.a().stack.post_send(two.a().now_ns, two.a().flow, {0, memory.data(), 4'000, id, nullptr, nullptr}),
              Status::ok);
  for (int i = 0; i < 10; ++i) two.step();
  CHECK(null_provider_under_way(memory.data(), memory.size()) > 0);
  two.a().datapath.remove_memory(id);
  CHECK_EQUAL(null_provider_under_way(memory.data(), memory.size()), 0);
  CHECK_EQUAL(null_provider_regions(), regions - 1);
}

TEST(verbs__a_completion_that_names_nothing_of_ours_is_counted) {
  null_provider_reset({});
  Two two(VerbsMode::uc);
  ibv_wc odd{};
  odd.status = IBV_WC_SUCCESS;
  odd.opcode = IBV_WC_RECV;
  for (ibv_qp* pair : null_provider_pairs(IBV_QPT_UC)) {
    odd.wr_id = 1u << 30;  // there is no such slot
    odd.byte_len = 100;
    null_provider_complete(pair, odd);
    odd.wr_id = 0;
    odd.byte_len = 1u << 20;  // longer than a slot
    null_provider_complete(pair, odd);
  }
  two.step();
  CHECK_EQUAL(two.a().datapath.counters().foreign_completions + two.b().datapath.counters().foreign_completions,
              2 * 2 * kPaths);
  CHECK(two.carry(5, 50'000));
}

TEST(verbs__what_a_peer_says_of_its_ends_is_checked) {
  null_provider_reset({});
  End mine(options_of(VerbsMode::uc)), other(options_of(VerbsMode::rc)), right(options_of(VerbsMode::uc));
  std::uint16_t paths = 0;
  std::string error;
  CHECK(!mine.datapath.connect_link(mine.peer, {&other.addresses, &other.params}, &paths, &error));
  CHECK(error.find("WEFT_RDMA=mode") != std::string::npos);
  std::mt19937 random(1);
  for (int i = 0; i < 4'000; ++i) {
    std::string params = right.params.substr(0, random() % (right.params.size() + 1));
    for (int flips = static_cast<int>(random() % 3); flips > 0 && !params.empty(); --flips) {
      params[random() % params.size()] = static_cast<char>(random());
    }
    if (params == right.params) continue;
    End fresh(options_of(VerbsMode::uc));
    static_cast<void>(fresh.datapath.connect_link(fresh.peer, {&right.addresses, &params}, &paths, &error));
    CHECK(paths <= kPaths);
    i += 39;
  }
}

TEST(verbs__what_a_closed_link_received_says_nothing_and_gives_its_slots_back) {
  null_provider_reset({});
  Two two(VerbsMode::uc);
  const std::size_t posted = null_provider_posted();
  std::vector<std::uint8_t> memory(4'000, 7);
  CHECK_EQUAL(
      two.a().stack.post_send(two.a().now_ns, two.a().flow, {0, memory.data(), memory.size(), 0, nullptr, nullptr}),
      Status::ok);
  wire::TxBurst* const batch = &two.burst[0];
  CHECK(two.a().stack.poll_transmit(two.a().now_ns, batch));
  two.a().datapath.tx_burst(&batch, 1);
  CHECK(null_provider_posted() < posted);
  two.b().datapath.close_link(two.b().peer);
  const std::int64_t received = two.b().datapath.counters().datagrams_received;
  two.b().datapath.rx_burst(&two.b());
  CHECK_EQUAL(two.b().datapath.counters().datagrams_received, received);
  CHECK_EQUAL(null_provider_posted(), posted);
}

TEST(verbs__a_link_that_closes_gives_its_slots_back) {
  NullProviderFaults nowhere;
  nowhere.deliver = false;
  null_provider_reset(nowhere);
  Two two(VerbsMode::uc);
  for (int i = 0; i < 50; ++i) {
    std::string error, params;
    const auto peer = static_cast<std::uint32_t>(10 + i % 3);
    CHECK(two.a().datapath.open_link({peer, 0, kPaths, &two.a().places}, &params, &error));
    two.a().datapath.close_link(peer);
  }
  CHECK_EQUAL(null_provider_pairs(IBV_QPT_UC).size(), 2u * kPaths);
}
