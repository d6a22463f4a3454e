// Tests policies of live connections: they are chosen by text, changed from other threads, recorded, and unloaded only
// when no engine refers to them. Uses loopback; every wait has a time limit.
#include <atomic>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "native/core/recording.h"
#include "native/engine/clock.h"
#include "native/engine/policies/policy_choice.h"
#include "native/message/runtime.h"
#include "tests/native/check.h"

namespace {

using namespace weft;
using namespace weft::engine;
using namespace weft::message;

constexpr std::int64_t kPatienceNs = 60'000'000'000;

std::string policies() { return (std::filesystem::read_symlink("/proc/self/exe").parent_path() / "policies").string(); }

struct Pair {
  std::shared_ptr<Runtime> runtime;
  std::unique_ptr<Listener> listener;
  std::shared_ptr<Connection> here, there;

  explicit Pair(Knobs knobs, const std::string& own = "") {
    knobs.interfaces = "lo";
    knobs.local = LocalMode::off;
    knobs.engines = 2;
    std::string error;
    CHECK_EQUAL(Runtime::open(knobs, &runtime, &error), Status::ok);
    CHECK_EQUAL(runtime->listen(0, 0, false, own, &listener, &error), Status::ok);
    std::unique_ptr<Dial> dial;
    CHECK_EQUAL(runtime->connect(0, listener->handle(), own, &dial, &error), Status::ok);
    for (const std::int64_t until = now_ns() + kPatienceNs; here == nullptr || there == nullptr;) {
      if (here == nullptr) CHECK(dial->poll(&here) == Status::would_block || here != nullptr);
      if (there == nullptr) static_cast<void>(listener->accept(&there));
      CHECK(now_ns() < until);
    }
  }
  void exchange(std::size_t bytes) {
    std::vector<std::uint8_t> sent(bytes), received(bytes);
    for (std::size_t i = 0; i < bytes; ++i) sent[i] = static_cast<std::uint8_t>((i + bytes) * 2654435761u >> 9);
    Request *send = nullptr, *receive = nullptr;
    CHECK_EQUAL(there->post_receive(received.data(), bytes, 0, &receive), Status::ok);
    CHECK_EQUAL(here->post_send(sent.data(), bytes, 0, &send), Status::ok);
    CHECK_EQUAL(there->wait(receive, kPatienceNs), Status::ok);
    CHECK_EQUAL(here->wait(send, kPatienceNs), Status::ok);
    CHECK_EQUAL(receive->status(), Status::ok);
    CHECK(std::memcmp(sent.data(), received.data(), bytes) == 0);
    here->release(send);
    there->release(receive);
  }
  std::string name(const Connection& connection, const std::string& family) const {
    for (const PolicyInfo& info : connection.policies()) {
      if (info.family == family) return info.name;
    }
    return "none";
  }
};

std::int64_t first_word(const std::string& params) {
  std::int64_t word = 0;
  std::memcpy(&word, params.data(), sizeof word);
  return word;
}

bool refused(policy::Family family, const std::string& text, const std::string& says) {
  PolicyRef made;
  std::string error;
  const bool ok = choose_policy(family, text, {policies()}, &made, &error);
  return !ok && error.find(says) != std::string::npos;
}

}  // namespace

TEST(policy_choice__text_names_a_policy_and_its_parameters) {
  PolicyRef made;
  std::string error;
  CHECK(choose_policy(policy::Family::window, "fixed:window_bytes=77", {}, &made, &error));
  CHECK_EQUAL(made->params.size(), 1u);
  CHECK_EQUAL(made->params[0], 77);
  CHECK(choose_policy(policy::Family::path, "weighted:burst_bytes=5,weight=0.5/0/2", {policies()}, &made, &error));
  CHECK(choose_policy(policy::Family::window, policies() + "/window_swift.so:decrease_max=0.25", {}, &made, &error));
  CHECK(choose_policy(policy::Family::credit, "none", {}, &made, &error));
  CHECK(made == nullptr);
  CHECK(refused(policy::Family::window, "fixed:window_bytes", "needs a value"));
  CHECK(refused(policy::Family::window, "fixed:window_bytes=1/2", "too many values: at most 1"));
  CHECK(refused(policy::Family::window, "fixed:window_bytes=1e3", "not a whole number"));
  CHECK(refused(policy::Family::window, "fixed:window_bytes=1_0", "not a whole number"));
  CHECK(refused(policy::Family::window, "fixed:window_bytes=1180591620717411303424", "too large for 64 bits"));
  CHECK(refused(policy::Family::window, "path/fixed", "path/fixed is a path policy; a window policy is wanted"));
  CHECK(refused(policy::Family::window, "window/teleport", "no window policy 'teleport'"));
  CHECK(choose_policy(policy::Family::window, " window/fixed : window_bytes = 78 ", {}, &made, &error));
  CHECK_EQUAL(made->params[0], 78);
  CHECK(refused(policy::Family::window, "fixed:speed=1", "has no parameter 'speed': choose one of window_bytes"));
  CHECK(refused(policy::Family::window, "swift:decrease_max=inf", "not a finite number"));
  CHECK(refused(policy::Family::window, "none", "no window policy 'none'"));
  CHECK(refused(policy::Family::loss, "fixed:x=1", "it has none"));
}

TEST(policy_choice__sets_and_classes) {
  PolicySet set;
  std::string error;
  CHECK(choose_set("  window=fixed:window_bytes=9   loss=rack ", {policies()}, &set, &error));
  CHECK(set.window != nullptr && set.loss != nullptr && set.path == nullptr && !set.own_credit);
  CHECK(choose_set("credit=none", {policies()}, &set, &error));
  CHECK(set.own_credit && set.credit == nullptr);
  CHECK(choose_set("window=window/fixed: window_bytes=10\tloss=fixed", {policies()}, &set, &error));
  CHECK_EQUAL(set.window->params[0], 10);
  CHECK(!choose_set("window", {policies()}, &set, &error));
  CHECK(!choose_set("speed=fixed", {policies()}, &set, &error));
  std::map<std::int64_t, PolicySet> classes;
  CHECK(choose_classes("3 window=fixed; ;7 loss=fixed path=fixed;", {policies()}, &classes, &error));
  CHECK_EQUAL(classes.size(), 2u);
  CHECK(classes[7].path != nullptr);
  CHECK(!choose_classes("-1 window=fixed", {policies()}, &classes, &error));
  CHECK(!choose_classes("3", {policies()}, &classes, &error));
}

TEST(policy_choice__a_path_may_hold_what_separates_words) {
  const auto folder = std::filesystem::temp_directory_path() / ("weft a=b:c " + std::to_string(std::rand()));
  std::filesystem::create_directories(folder);
  const std::string file = (folder / "good one.so").string();
  std::filesystem::copy_file(policies() + "/window_fixed.so", file);
  PolicySet set;
  std::string error;
  for (const std::string& params : {std::string(), std::string(":window_bytes=11")}) {
    PolicyRef made;
    CHECK(choose_policy(policy::Family::window, " " + file + " " + params, {}, &made, &error));
    CHECK(choose_set("loss=fixed window=" + file + params + " path=fixed", {policies()}, &set, &error));
    CHECK(made->params == set.window->params);
    CHECK(set.path != nullptr);
  }
  CHECK_EQUAL(set.window->params[0], 11);
  std::filesystem::remove_all(folder);
}

TEST(policy_board__changes_reach_live_flows_and_own_choices_stay) {
  Knobs knobs;
  knobs.traffic_classes = "3 window=fixed:window_bytes=200000 path=oblivious";
  Pair pair(knobs), of_class(knobs, "class 3");
  std::string error;
  CHECK_EQUAL(of_class.name(*of_class.here, "window"), "fixed");
  CHECK_EQUAL(of_class.name(*of_class.there, "path"), "oblivious");
  CHECK_EQUAL(pair.name(*pair.here, "window"), "swift");
  of_class.exchange(1 << 20);
  CHECK_EQUAL(pair.runtime->change_policy("window", "fixed:window_bytes=300000", PolicyChange::policy, &error),
              Status::ok);
  CHECK_EQUAL(pair.name(*pair.here, "window"), "fixed");
  CHECK_EQUAL(pair.here->change_policy("window", "window_bytes=400000", PolicyChange::params, &error), Status::ok);
  CHECK_EQUAL(first_word(pair.here->policies()[0].params), 400'000);
  CHECK_EQUAL(first_word(pair.there->policies()[0].params), 300'000);
  // A connection's own parameters stay in force when the defaults' parameters change. They do not count as a choice of
  // policy, so a new default policy replaces the connection's policy.
  CHECK_EQUAL(pair.runtime->change_policy("window", "window_bytes=500000", PolicyChange::params, &error), Status::ok);
  CHECK_EQUAL(first_word(pair.here->policies()[0].params), 400'000);
  CHECK_EQUAL(first_word(pair.there->policies()[0].params), 500'000);
  CHECK_EQUAL(pair.runtime->change_policy("window", "swift", PolicyChange::policy, &error), Status::ok);
  CHECK_EQUAL(pair.name(*pair.here, "window"), "swift");
  CHECK_EQUAL(pair.name(*pair.there, "window"), "swift");
  CHECK_EQUAL(pair.here->change_policy("window", "fixed", PolicyChange::policy, &error), Status::ok);
  CHECK_EQUAL(pair.runtime->change_policy("window", "swift", PolicyChange::policy, &error), Status::ok);
  CHECK_EQUAL(pair.name(*pair.here, "window"), "fixed");
  for (const auto& [family, policy, params] :
       {std::tuple{"path", "reps", ""}, {"loss", "fixed", ""}, {"credit", "grant", ""}}) {
    CHECK_EQUAL(pair.there->change_policy(family, params, PolicyChange::params, &error),
                std::string(family) == "credit" ? Status::invalid_argument : Status::ok);
    CHECK_EQUAL(pair.runtime->change_policy(family, policy, PolicyChange::policy, &error), Status::ok);
    CHECK_EQUAL(pair.name(*pair.there, family), policy);
  }
  CHECK_EQUAL(pair.runtime->change_policy("credit", "none", PolicyChange::policy, &error), Status::ok);
  CHECK_EQUAL(pair.here->change_policy("window", "teleport", PolicyChange::policy, &error), Status::invalid_argument);
  CHECK_EQUAL(pair.here->change_policy("credit", "x=1", PolicyChange::params, &error), Status::invalid_argument);
  CHECK_EQUAL(error, "no credit policy is in use, so it has no parameters to change: choose a policy first");
  pair.exchange(1 << 20);
}

// Two threads change policies and another one records while the main thread sends; mainly for TSan.
TEST(policy_board__changes_from_many_threads_while_data_flows) {
  Knobs knobs;
  knobs.fault_loss = 0.005;
  Pair pair(knobs);
  std::atomic<bool> stopping{false};
  std::atomic<int> changes{0};
  const auto change = [&](bool whole) {
    const char* texts[][2] = {{"window", "fixed"}, {"path", "oblivious"},    {"loss", "fixed"}, {"credit", "grant"},
                              {"window", "swift"}, {"path", "power_of_two"}, {"loss", "rack"},  {"credit", "none"}};
    for (int i = 0; !stopping.load(); ++i) {
      std::string error;
      const auto& [family, text] = texts[i % 8];
      const Status status = whole ? pair.runtime->change_policy(family, text, PolicyChange::policy, &error)
                                  : pair.there->change_policy(family, text, PolicyChange::policy, &error);
      CHECK_EQUAL(status, Status::ok);
      ++changes;
    }
  };
  const std::string file =
      (std::filesystem::temp_directory_path() / ("weft_board_" + std::to_string(std::rand()))).string();
  std::thread one(change, true), other(change, false), recorder([&] {
    while (!stopping.load()) {
      std::string error;
      RecordingStats stats;
      CHECK_EQUAL(pair.runtime->start_recording(file, 1 << 30, nullptr, &error), Status::ok);
      std::this_thread::sleep_for(std::chrono::milliseconds(3));  // some decisions are recorded, or none
      CHECK_EQUAL(pair.runtime->stop_recording(&stats, &error), Status::ok);
      CHECK_EQUAL(stats.error, "");
    }
  });
  // Run until changes of each kind have coincided with data; the limit is for a machine that never runs the other
  // threads.
  for (int i = 0; i < 40 || (changes <= 16 && i < 10'000); ++i) pair.exchange(300'000);
  stopping = true;
  for (std::thread* thread : {&one, &other, &recorder}) thread->join();
  CHECK(changes > 16);
  CHECK_EQUAL(pair.runtime->counters().events_policy_failed, 0);
  std::filesystem::remove(file);
}

TEST(policy_board__a_replaced_library_is_unmapped_after_the_quiet_point) {
  const auto folder = std::filesystem::temp_directory_path() / ("weft_quiet_" + std::to_string(std::rand()));
  std::filesystem::create_directories(folder);
  const std::string copy = (folder / "window_swift.so").string();
  std::filesystem::copy_file(policies() + "/window_swift.so", copy);
  const auto mapped = [&] {
    std::ifstream maps("/proc/self/maps");
    std::string all((std::istreambuf_iterator<char>(maps)), std::istreambuf_iterator<char>());
    return all.find(copy) != std::string::npos;
  };
  Pair pair{Knobs{}};
  std::string error;
  CHECK_EQUAL(pair.here->change_policy("window", copy, PolicyChange::policy, &error), Status::ok);
  pair.exchange(100'000);
  CHECK(mapped());
  CHECK_EQUAL(pair.here->change_policy("window", "fixed", PolicyChange::policy, &error), Status::ok);
  pair.exchange(100'000);
  CHECK(!mapped());
  std::filesystem::remove_all(folder);
}

TEST(recording__an_encoder_names_a_policy_once_and_says_what_it_lost) {
  core::DecisionEncoder encoder(5u << 24);
  const policy::Descriptor& descriptor = policy::fixed(policy::Family::window);
  policy::WindowEvent event{};
  policy::WindowResult result{};
  core::Decision decision;
  decision.descriptor = &descriptor;
  decision.params = descriptor.params_default;
  decision.event = &event;
  decision.result = &result;
  const auto entries = [&] {
    std::vector<core::RecordingEntry> found;
    const auto bytes = encoder.encode(decision);
    for (std::size_t at = 0; at < bytes.size();) {
      core::RecordingEntry entry;
      std::memcpy(&entry, bytes.data() + at, sizeof entry);
      found.push_back(entry);
      at += entry.bytes;
    }
    return found;
  };
  const auto first = entries();
  CHECK_EQUAL(first.size(), 2u);
  CHECK_EQUAL(first[0].type, core::RecordingEntry::policy);
  CHECK_EQUAL(first[1].owner, 5u << 24);
  CHECK_EQUAL(entries().size(), 1u);
  const std::int64_t other = 12345;
  decision.params = &other;
  CHECK_EQUAL(entries().size(), 2u);
  encoder.drop();  // an entry was dropped, so the policy must be written again
  CHECK_EQUAL(entries().size(), 2u);
  const auto gap = encoder.encode_gap(3);
  CHECK_EQUAL(gap.size(), sizeof(core::RecordingEntry) + 8);
}

TEST(recording__a_full_ring_counts_and_never_waits) {
  RecorderTap tap(0, 4096);
  policy::WindowEvent event{};
  policy::WindowResult result{};
  core::Decision decision;
  decision.descriptor = &policy::fixed(policy::Family::window);
  decision.params = decision.descriptor->params_default;
  decision.event = &event;
  decision.result = &result;
  for (int i = 0; i < 1000; ++i) tap.on_decision(decision);
  CHECK(tap.lost() > 900);
  CHECK_EQUAL(tap.decisions() + tap.lost(), 1000);
  std::vector<std::byte> out;
  CHECK(tap.take(&out) <= 4096);
  tap.on_decision(decision);  // the first entry that this writes reports how many decisions were dropped
  out.clear();
  CHECK(tap.take(&out) > 0);
  core::RecordingEntry entry;
  std::memcpy(&entry, out.data(), sizeof entry);
  CHECK_EQUAL(entry.type, core::RecordingEntry::gap);
}
