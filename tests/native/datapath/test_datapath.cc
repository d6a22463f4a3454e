// Tests that sockets on loopback deliver bursts unchanged (order, sizes, marks), and that faults are injected by seed.
#include <sys/socket.h>
#include <unistd.h>

#include <memory>
#include <vector>

#include "native/datapath/udp/interfaces.h"
#include "native/datapath/udp/udp_datapath.h"
#include "tests/native/check.h"

namespace {

using namespace weft::datapath;
namespace wire = weft::wire;

struct Sink final : RxSink {
  void on_datagram(std::uint32_t port, const wire::RxDatagram& datagram) override {
    ports.push_back(port);
    std::vector<std::uint8_t> bytes(datagram.header, datagram.header + datagram.header_bytes);
    bytes.insert(bytes.end(), datagram.payload, datagram.payload + datagram.payload_bytes);
    datagrams.push_back(bytes);
    split_right = split_right && datagram.header_bytes == wire::kDataBytes;
  }
  std::vector<std::uint32_t> ports;
  std::vector<std::vector<std::uint8_t>> datagrams;
  bool split_right = true;
};

// `count` data segments; each payload is filled with the segment's number, and the last one is shorter.
std::unique_ptr<wire::TxBurst> burst_of(const std::vector<std::uint8_t>& payload, std::uint16_t count,
                                        std::uint32_t bytes, std::uint32_t last_bytes) {
  auto burst = std::make_unique<wire::TxBurst>();
  burst->count = count;
  burst->header_bytes = wire::kDataBytes;
  burst->datagram_bytes = static_cast<std::uint32_t>(wire::kDataBytes) + bytes;
  for (std::uint16_t i = 0; i < count; ++i) {
    wire::Common common;
    wire::Data data;
    data.seq = i;
    common.body_bytes = static_cast<std::uint16_t>(i + 1 == count ? last_bytes : bytes);
    burst->payload[i] = {payload.data() + i * bytes, common.body_bytes};
    wire::encode_data(burst->headers + i * wire::kDataBytes, common, data);
  }
  return burst;
}

SocketAddress loopback(bool v6) {
  SocketAddress address;
  if (v6) {
    address.v6.sin6_family = AF_INET6;
    address.v6.sin6_addr = in6addr_loopback;
  } else {
    address.v4.sin_family = AF_INET;
    address.v4.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  }
  return address;
}

// Two datapaths with one path between them, over loopback.
struct Ends {
  explicit Ends(bool v6) {
    places[0].address = loopback(v6);
    addresses[0] = loopback(v6);
    std::string error;
    CHECK(a.open(&error) && b.open(&error));
    CHECK(a.open_link({0, 0, 1, &places}, &words_of_a, &error));
    CHECK(b.open_link({0, 0, 1, &places}, &words_of_b, &error));
    std::uint16_t paths = 0;
    CHECK(a.connect_link(0, {&addresses, &words_of_b}, &paths, &error));
    CHECK_EQUAL(paths, 1u);
  }
  std::uint16_t port_of_b() const {
    return static_cast<std::uint16_t>(static_cast<std::uint8_t>(words_of_b[1]) |
                                      static_cast<std::uint8_t>(words_of_b[2]) << 8);
  }
  std::vector<Place> places{1};
  std::vector<SocketAddress> addresses{1};
  std::string words_of_a, words_of_b;
  UdpDatapath a{{}}, b{{}};
};

void carry(bool v6, std::uint16_t count, std::uint32_t bytes, std::uint32_t last_bytes) {
  Ends ends(v6);
  UdpDatapath &a = ends.a, &b = ends.b;
  std::vector<std::uint8_t> payload(std::size_t{count} * bytes);
  for (std::size_t i = 0; i < payload.size(); ++i) payload[i] = static_cast<std::uint8_t>(i * 7 + i / 251);
  const auto burst = burst_of(payload, count, bytes, last_bytes);
  wire::TxBurst* const bursts[] = {burst.get()};
  a.tx_burst(bursts, 1);
  CHECK_EQUAL(a.counters().datagrams_sent, count);
  Sink sink;
  for (int i = 0; i < 1000 && sink.datagrams.size() < count; ++i) {
    b.wait(1'000'000);
    b.rx_burst(&sink);
  }
  CHECK_EQUAL(sink.datagrams.size(), count);
  CHECK(sink.split_right);
  for (std::uint16_t i = 0; i < count; ++i) {
    const std::uint32_t expected = i + 1 == count ? last_bytes : bytes;
    CHECK_EQUAL(sink.datagrams[i].size(), wire::kDataBytes + expected);
    CHECK(std::memcmp(sink.datagrams[i].data() + wire::kDataBytes, payload.data() + i * bytes, expected) == 0);
  }
}

}  // namespace

TEST(udp__a_train_arrives_as_it_left) {
  for (const bool v6 : {false, true}) {
    carry(v6, 7, 8936, 8936);
    carry(v6, 7, 8936, 100);
    carry(v6, 44, 1400, 1);
    carry(v6, 1, 60'000, 60'000);
    carry(v6, 64, 512, 512);
  }
}

TEST(udp__marks_come_through) {
  Ends ends(false);
  UdpDatapath& b = ends.b;
  // A socket that sends packets with the mark of a congested switch.
  const int marker = ::socket(AF_INET, SOCK_DGRAM, 0);
  const int congested = 3;
  CHECK(::setsockopt(marker, IPPROTO_IP, IP_TOS, &congested, sizeof congested) == 0);
  SocketAddress to = loopback(false);
  to.set_port(ends.port_of_b());
  const char bytes[] = "any bytes do";
  CHECK(::sendto(marker, bytes, sizeof bytes, 0, &to.any, to.bytes()) > 0);
  ::close(marker);
  struct MarkSink final : RxSink {
    void on_datagram(std::uint32_t port, const wire::RxDatagram& datagram) override {
      static_cast<void>(port);
      marked = datagram.congestion_experienced;
      ++seen;
    }
    bool marked = false;
    int seen = 0;
  } sink;
  for (int i = 0; i < 1000 && sink.seen == 0; ++i) {
    b.wait(1'000'000);
    b.rx_burst(&sink);
  }
  CHECK_EQUAL(sink.seen, 1);
  CHECK(sink.marked);
}

TEST(udp__an_address_that_is_not_ours_is_an_error) {
  UdpDatapath datapath({});
  std::string error, params;
  CHECK(datapath.open(&error));
  std::vector<Place> places(1);
  places[0].address = loopback(false);
  places[0].address.v4.sin_addr.s_addr = htonl(0xC0000201);  // 192.0.2.1, reserved for documentation
  CHECK(!datapath.open_link({0, 0, 8, &places}, &params, &error));
  CHECK(error.find("192.0.2.1") != std::string::npos);
}

TEST(udp__what_a_peer_says_of_its_ends_is_checked) {
  Ends ends(false);
  std::vector<SocketAddress> none, other{loopback(true)};
  std::uint16_t paths = 0;
  for (const std::string& params : {std::string(), std::string("u"), std::string("u1"), std::string(600, 'u')}) {
    std::string error;
    CHECK(!ends.b.connect_link(0, {&ends.addresses, &params}, &paths, &error));
    CHECK(!error.empty());
  }
  std::string foreign = ends.words_of_a;
  foreign[0] = 'v';
  std::string error;
  CHECK(!ends.b.connect_link(0, {&ends.addresses, &foreign}, &paths, &error));
  CHECK(error.find("WEFT_DATAPATH") != std::string::npos);
  CHECK(!ends.b.connect_link(0, {&none, &ends.words_of_a}, &paths, &error));
  CHECK(!ends.b.connect_link(0, {&other, &ends.words_of_a}, &paths, &error));
  CHECK(!ends.b.connect_link(7, {&ends.addresses, &ends.words_of_a}, &paths, &error));
  CHECK(ends.b.connect_link(0, {&ends.addresses, &ends.words_of_a}, &paths, &error));
}

TEST(interfaces__loopback_is_there) {
  std::string error;
  bool found = false;
  for (const Interface& each : list_interfaces(&error)) {
    if (!each.loopback) continue;
    found = true;
    CHECK(each.up);
    CHECK(each.mtu_bytes >= 1500);
    CHECK_EQUAL(train_bytes_max(each, false), train_bytes_max(each, true) + 20);
    CHECK(train_bytes_max(each, false) <= 65'493);
  }
  CHECK(found);
}

TEST(faults__rates_and_seeds) {
  FaultRates rates;
  rates.seed = 5;
  rates.loss = 0.1;
  rates.duplicate = 0.1;
  rates.reorder = 0.1;
  rates.corrupt = 0.1;
  std::vector<std::uint8_t> payload(100);
  std::vector<std::vector<std::vector<std::uint8_t>>> runs;
  for (int run = 0; run < 2; ++run) {
    FaultInjector injector(rates);
    Sink sink;
    for (std::uint16_t i = 0; i < 10'000; ++i) {
      const auto burst = burst_of(payload, 1, 100, 100);
      wire::RxDatagram datagram{burst->headers, wire::kDataBytes, payload.data(), 100, false};
      injector.offer(0, datagram, &sink);
    }
    injector.release_all(&sink);
    const weft::telemetry::EngineCells& counters = injector.counters();
    for (const weft::telemetry::Cell* count : {&counters.injected_loss, &counters.injected_duplicate,
                                               &counters.injected_reorder, &counters.injected_corrupt}) {
      CHECK(*count > 700 && *count < 1300);
    }
    CHECK_EQUAL(counters.injected_loss, counters.injected_loss_data);
    CHECK_EQUAL(static_cast<std::int64_t>(sink.datagrams.size()),
                10'000 - counters.injected_loss + counters.injected_duplicate);
    runs.push_back(sink.datagrams);
  }
  CHECK(runs[0] == runs[1]);
}
