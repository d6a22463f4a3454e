// Fuzzes the replay of recordings: no recording crashes it, and each decision is replayed or skipped.
#include <cstring>

#include "native/core/recording.h"
#include "native/sim/replay.h"
#include "tests/native/fuzz/fuzz.h"
#include "tests/native/pair.h"

namespace {

using namespace weft;
using fuzz::require;

constexpr std::size_t kBytesMax = 16'384;

// A recording of two stacks that exchange messages with losses, so that it has decisions of all families.
std::vector<std::byte> record(const core::StackConfig& config) {
  std::vector<std::byte> recording(sizeof core::kRecordingMagic);
  std::memcpy(recording.data(), core::kRecordingMagic, sizeof core::kRecordingMagic);
  std::vector<std::unique_ptr<core::DecisionBuffer>> buffers;
  test::Pair pair(config);
  for (core::u32 end = 0; end < 2; ++end) {
    buffers.push_back(std::make_unique<core::DecisionBuffer>(&recording, kBytesMax, end << 24));
    static_cast<void>(pair.stack[end].trace().subscribe(buffers.back().get(), core::kTraceDecisions));
  }
  static_cast<void>(pair.add_flow());
  core::Random random(5);
  std::vector<core::u8> data = test::pattern(30'000, 1), into(30'000);
  std::vector<core::ReceiveTicket> tickets(4);
  for (core::ReceiveTicket& ticket : tickets) {
    static_cast<void>(pair.receive(1, into.data(), into.size(), &ticket));
    static_cast<void>(pair.send(0, data.data(), data.size()));
    static_cast<void>(
        pair.run([] { return false; }, [&](const test::Wired&) { return random.next() % 10 == 0; }, 30'000'000));
  }
  for (const auto& buffer : buffers) buffer->finish();
  return recording;
}

core::StackConfig shipped_config() {
  core::StackConfig config = test::shipped_config();
  config.credit = test::shipped(policy::Family::credit, "grant");
  return config;
}

}  // namespace

std::vector<fuzz::Input> fuzz::corpus() {
  std::vector<Input> made;
  for (const core::StackConfig& config : {core::StackConfig{}, shipped_config()}) {
    const std::vector<std::byte> whole = record(config);
    const auto* first = reinterpret_cast<const std::uint8_t*>(whole.data());
    made.emplace_back(first, first + whole.size());
    made.emplace_back(first, first + std::min<std::size_t>(whole.size(), 1000));
  }
  return made;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t bytes) {
  static const core::StackConfig config = shipped_config();
  sim::Replay replay;
  for (const policy::Family family :
       {policy::Family::window, policy::Family::credit, policy::Family::path, policy::Family::loss}) {
    replay.add(policy::fixed(family));
  }
  for (const auto* choice : {&config.window, &config.credit, &config.path, &config.loss}) {
    replay.add(*choice->descriptor);
  }
  const bool read = replay.run(std::as_bytes(std::span(data, bytes)));
  require(read || replay.policies().empty(), "what is no recording has policies");
  core::u64 decisions = 0;
  for (const sim::ReplayedPolicy& one : replay.policies()) {
    decisions += one.decisions;
    require(one.differ <= one.decisions, "more answers differ than there are");
    require(one.known || one.decisions == 0, "an unknown policy answered");
  }
  if (decisions != 0) ++fuzz::accepted;
  return 0;
}
