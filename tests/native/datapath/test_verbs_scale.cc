// Tests 256 paths to each of 1,000 peers: their heap memory, and that an operation on one path does not search all
// others. Uses the stub provider, whose own memory is not on the counted heap.

#include <time.h>

#include <memory>
#include <vector>

#include "native/datapath/verbs/verbs_datapath.h"
#include "tests/native/check.h"
#include "tests/native/counted.h"
#include "tests/native/verbs/stub_provider.h"

using namespace weft::datapath;
namespace wire = weft::wire;

namespace {

#ifdef __SANITIZE_THREAD__
constexpr std::uint32_t kPeers = 100;  // few peers, because TSan finds nothing more in a single-threaded test
#else
constexpr std::uint32_t kPeers = 1'000;
#endif
constexpr std::uint16_t kPaths = 256;
constexpr long kBytesPerPathMax = 160;
constexpr std::int64_t kEachNsMax = 60'000'000'000;  // CPU time that one operation on all paths may take

std::int64_t now_ns() {
  timespec now{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return std::int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

struct NoSink final : RxSink {
  void on_datagram(std::uint32_t, const wire::RxDatagram&) override {}
};

struct Many {
  explicit Many(VerbsMode mode) : datapath(options_of(mode), stub_provider()), places(1) {
    places[0].port = "null0:1";
    std::string error;
    CHECK(datapath.open(&error));
  }
  static VerbsOptions options_of(VerbsMode mode) {
    VerbsOptions options;
    options.mode = mode;
    options.segment_bytes = 4096;
    return options;
  }
  void open() {
    std::string params, error;
    std::uint16_t agreed = 0;
    for (std::uint32_t peer = 0; peer < kPeers; ++peer) {
      CHECK(datapath.open_link({peer, 0, kPaths, &places}, &params, &error));
      CHECK(datapath.connect_link(peer, {&addresses, &params}, &agreed, &error));
      CHECK_EQUAL(agreed, kPaths);
    }
  }
  void break_all() {
    const auto burst = std::make_unique<wire::TxBurst>();
    wire::TxBurst* const one = burst.get();
    one->count = 1;
    one->header_bytes = static_cast<std::uint16_t>(wire::encode_data(one->headers, {}, {}));
    stub_provider_refuse(true);
    for (one->peer = 0; one->peer < kPeers; ++one->peer) {
      for (int path = 0; path < kPaths; ++path) {
        one->path = static_cast<std::uint8_t>(path);
        datapath.tx_burst(&one, 1);
      }
    }
    stub_provider_refuse(false);
  }
  // Polls until all paths work again; fails if that takes too long.
  void reestablish_all() {
    NoSink sink;
    const std::int64_t until_ns = now_ns() + kEachNsMax;
    while (datapath.counters().paths_reestablished < std::int64_t{kPeers} * kPaths && now_ns() < until_ns) {
      datapath.rx_burst(&sink);
    }
  }
  void close() {
    for (std::uint32_t peer = 0; peer < kPeers; ++peer) datapath.close_link(peer);
  }

  VerbsDatapath datapath;
  std::vector<Place> places;
  std::vector<SocketAddress> addresses{1};
};

template <class Work>
void quickly(const char* what, const Work& work) {
  const std::int64_t begin_ns = now_ns();
  work();
  const std::int64_t spent_ns = now_ns() - begin_ns;
  std::printf("     %s: %ld ms\n", what, static_cast<long>(spent_ns / 1'000'000));
  CHECK(spent_ns <= kEachNsMax);
}

}  // namespace

TEST(verbs_scale__256_paths_to_1000_peers_are_small_and_quick) {
  for (const VerbsMode mode : {VerbsMode::uc, VerbsMode::rc, VerbsMode::ud}) {
    stub_provider_reset({});
    Many many(mode);
    const long before = weft::test::live_bytes.load();
    quickly("open", [&] { many.open(); });
    const long bytes = (weft::test::live_bytes.load() - before) / (long{kPeers} * kPaths);
    std::printf("     %s: %ld bytes a path\n", mode_name(mode), bytes);
    CHECK(bytes <= kBytesPerPathMax);
    // Each path to each peer has its own queue pair; over UD there are only 256, which all peers share.
    const std::int64_t pairs = mode == VerbsMode::ud ? kPaths : std::int64_t{kPeers} * kPaths;
    CHECK_EQUAL(stub_provider_asked().queue_pairs, pairs + 1);
    CHECK_EQUAL(stub_provider_asked().send_requests, pairs * kSendsPerQp + kControlSends);
    quickly("break", [&] { many.break_all(); });
    CHECK_EQUAL(many.datapath.counters().paths_broken, std::int64_t{kPeers} * kPaths);
    quickly("close", [&] { many.close(); });
    CHECK_EQUAL(stub_provider_asked().addresses, 0);
  }
}

TEST(verbs_scale__what_is_shared_is_reestablished_once) {
  for (const VerbsMode mode : {VerbsMode::uc, VerbsMode::ud}) {
    stub_provider_reset({});
    Many many(mode);
    many.open();
    many.break_all();
    const std::int64_t before = stub_provider_asked().calls, pairs = stub_provider_asked().queue_pairs - 1;
    quickly("reestablish", [&] { many.reestablish_all(); });
    CHECK_EQUAL(many.datapath.counters().paths_reestablished, std::int64_t{kPeers} * kPaths);
    CHECK_EQUAL(stub_provider_asked().calls - before, 5 * pairs);  // changes to ERR, RESET, INIT, RTR, RTS
    many.close();
  }
}
