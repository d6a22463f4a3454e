// Opens a datapath in each of two network namespaces, and moves bursts from one to the other.
#include "bench/native/loops/datagram_bench.h"

#include <sched.h>
#include <sys/socket.h>
#include <time.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <vector>

#include "native/datapath/udp/udp_datapath.h"
#include "native/datapath/xdp/xdp_datapath.h"

namespace weft::bench {
namespace {

constexpr std::int64_t kBatch = 32;  // datagrams sent before the other end receives
constexpr std::int64_t kWarm = 2000;
constexpr int kIdleRounds = 3;

std::int64_t clock_ns(clockid_t clock) {
  timespec now{};
  ::clock_gettime(clock, &now);
  return std::int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

std::int64_t thread_ns() { return clock_ns(CLOCK_THREAD_CPUTIME_ID); }

struct Counting final : datapath::RxSink {
  void on_datagram(std::uint32_t, const wire::RxDatagram& datagram) override {
    ++datagrams;
    last_stamp_ns = datagram.stamp_ns;
    stamped += datagram.stamp_ns > begin_ns ? 1 : 0;
  }
  const std::int64_t begin_ns = clock_ns(CLOCK_REALTIME);
  std::int64_t datagrams = 0, stamped = 0, last_stamp_ns = 0;
};

struct End {
  std::unique_ptr<datapath::Datapath> datapath;
  std::vector<datapath::Place> places{1};
  std::string params;
};

bool open_end(const DatagramPlan& plan, const DatagramEnd& wanted, End* end, std::string* error) {
  if (::setns(wanted.name_space, CLONE_NEWNET) != 0) {
    *error = std::string("cannot enter a network namespace: ") + std::strerror(errno);
    return false;
  }
  if (plan.datapath == "xdp") {
    datapath::XdpOptions options;
    options.segment_bytes = static_cast<std::uint32_t>(plan.datagram_bytes);
    end->datapath = std::make_unique<datapath::XdpDatapath>(options);
    end->places[0].port = datapath::kXdpPlace;
  } else {
    end->datapath = std::make_unique<datapath::UdpDatapath>(datapath::UdpOptions{});
  }
  end->places[0].interface_index = wanted.interface_index;
  if (!datapath::resolve(wanted.address, 0, AF_UNSPEC, &end->places[0].address, error)) return false;
  return end->datapath->open(error) && end->datapath->open_link({0, 0, 1, &end->places}, &end->params, error);
}

bool connect_end(const End& far, End* near, std::string* error) {
  const std::vector<datapath::SocketAddress> addresses{far.places[0].address};
  std::uint16_t paths = 0;
  if (!near->datapath->connect_link(0, {&addresses, &far.params}, &paths, error)) return false;
  *error = near->datapath->take_notice();
  return error->empty();
}

std::vector<std::unique_ptr<wire::TxBurst>> make_bursts(const DatagramPlan& plan, const std::uint8_t* payload) {
  std::vector<std::unique_ptr<wire::TxBurst>> bursts;
  for (std::int64_t i = 0; i < std::max<std::int64_t>(kBatch / plan.train, 1); ++i) {
    auto burst = std::make_unique<wire::TxBurst>();
    burst->count = static_cast<std::uint16_t>(plan.train);
    burst->header_bytes = wire::kDataBytes;
    burst->datagram_bytes = static_cast<std::uint32_t>(plan.datagram_bytes);
    const auto bytes = static_cast<std::uint16_t>(plan.datagram_bytes - std::int64_t{wire::kDataBytes});
    for (std::int64_t at = 0; at < plan.train; ++at) {
      wire::Common common;
      common.body_bytes = bytes;
      burst->payload[at] = {payload, bytes};
      wire::encode_data(burst->headers + static_cast<std::size_t>(at) * wire::kDataBytes, common, {});
    }
    bursts.push_back(std::move(burst));
  }
  return bursts;
}

// Moves at least this many datagrams; returns the time spent sending.
std::int64_t move(std::int64_t datagrams, const std::vector<wire::TxBurst*>& bursts, End* from, End* to,
                  Counting* sink) {
  std::int64_t sending_ns = 0, sent = 0;
  while (sent < datagrams) {
    const std::int64_t begin_ns = thread_ns();
    from->datapath->tx_burst(bursts.data(), bursts.size());
    sending_ns += thread_ns() - begin_ns;
    for (const wire::TxBurst* burst : bursts) sent += burst->count;
    for (int idle = 0; idle < kIdleRounds;) idle = to->datapath->rx_burst(sink) == 0 ? idle + 1 : 0;
    from->datapath->rx_burst(sink);  // takes back what was sent
  }
  return sending_ns;
}

}  // namespace

Status bench_datagrams(const DatagramPlan& plan, DatagramResult* out, std::string* error) {
  const bool fits = plan.train >= 1 && plan.train <= std::int64_t{wire::kMaxBurstSegments} && plan.datagrams > 0 &&
                    plan.datagram_bytes > std::int64_t{wire::kDataBytes} && plan.datagram_bytes <= 65'000;
  if (!fits || (plan.datapath != "udp" && plan.datapath != "xdp")) return Status::invalid_argument;
  End from, to;
  if (!open_end(plan, plan.from, &from, error) || !open_end(plan, plan.to, &to, error)) return Status::system_error;
  if (!connect_end(to, &from, error) || !connect_end(from, &to, error)) return Status::system_error;
  const std::vector<std::uint8_t> payload(static_cast<std::size_t>(plan.datagram_bytes), 0x5A);
  const auto made = make_bursts(plan, payload.data());
  std::vector<wire::TxBurst*> bursts;
  for (const auto& burst : made) bursts.push_back(burst.get());
  Counting warm, sink;
  move(kWarm, bursts, &from, &to, &warm);
  const telemetry::EngineCounters before = telemetry::values(to.datapath->counters());
  const telemetry::EngineCounters sent_before = telemetry::values(from.datapath->counters());
  const std::int64_t begin_ns = thread_ns();
  const std::int64_t sending_ns = move(plan.datagrams, bursts, &from, &to, &sink);
  const auto cpu_ns = static_cast<double>(thread_ns() - begin_ns);
  const telemetry::EngineCounters after = telemetry::values(to.datapath->counters());
  const telemetry::EngineCounters sent_after = telemetry::values(from.datapath->counters());
  out->sent = sent_after.datagrams_sent - sent_before.datagrams_sent;
  out->calls = sent_after.calls - sent_before.calls;
  out->received = sink.datagrams;
  // A stamp of the wrong clock would lie in the past or in the future.
  out->stamped = sink.last_stamp_ns <= clock_ns(CLOCK_REALTIME) ? sink.stamped : 0;
  out->bypassed = after.bypass_received - before.bypass_received;
  const auto received = static_cast<double>(std::max<std::int64_t>(sink.datagrams, 1));
  out->cpu_ns = cpu_ns / received;
  out->send_ns = static_cast<double>(sending_ns) / received;
  return Status::ok;
}

}  // namespace weft::bench
