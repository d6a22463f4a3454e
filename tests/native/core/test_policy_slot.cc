// Tests in every family that a policy that fails, at its start or later, is replaced by `fixed`, and that an
// event reports this. This file defines the failing policies.
#include <cstring>

#include "native/core/credit_control.h"
#include "native/core/loss_control.h"
#include "native/core/path_set.h"
#include "native/core/window_control.h"
#include "native/policy/loader.h"
#include "tests/native/check.h"

using namespace weft::core;
using weft::policy::Descriptor;
using weft::policy::Family;

namespace {

std::int32_t good(void*, void*, std::int64_t, const void*, const void*, void*) { return 0; }
std::int32_t bad(void*, void*, std::int64_t, const void*, const void*, void*) { return 1; }

// The policy `fixed` of a family, with one hook that fails.
Descriptor failing(Family family, bool at_start) {
  Descriptor made = weft::policy::fixed(family);
  for (auto& hook : made.hooks) hook = at_start ? good : bad;
  made.hooks[weft::policy::hook::start] = at_start ? bad : good;
  std::strcpy(made.name, "broken");
  return made;
}

void expect_failure(Shared& shared, Family family, const char* hook) {
  CHECK_EQUAL(shared.counters->events_policy_failed, 1);
  Event event;
  CHECK(shared.events.poll(&event));
  CHECK_EQUAL(event.kind, Event::Kind::policy_failed);
  CHECK_EQUAL(event.value, static_cast<u64>(family));
  const PolicyFailure& failure = shared.failure_of(family);
  CHECK_EQUAL(weft::policy::failure_text(family, failure.name, failure.hook),
              std::string("the ") + weft::policy::family_name(family) + " policy 'broken' failed in " + hook);
}

}  // namespace

TEST(policy_slot__a_window_policy_that_fails_gives_way) {
  for (const bool at_start : {true, false}) {
    const Descriptor descriptor = failing(Family::window, at_start);
    StackConfig config;
    config.window = {&descriptor, nullptr};
    Shared shared(config);
    WindowControl window(&shared, config.window, 0, 1472);
    CHECK(window.open(1));
    RttEstimator rtt;
    WindowFacts facts;
    facts.rtt = &rtt;
    window.on_ack(facts);
    expect_failure(shared, Family::window, at_start ? "on_start" : "on_ack");
    window.on_ack(facts);
    CHECK_EQUAL(shared.counters->events_policy_failed, 1);
    CHECK(window.window_bytes() >= 2 * 1472);
  }
}

TEST(policy_slot__a_path_policy_that_fails_gives_way) {
  for (const bool at_start : {true, false}) {
    const Descriptor descriptor = failing(Family::path, at_start);
    StackConfig config;
    config.path = {&descriptor, nullptr};
    Shared shared(config);
    PathSet paths(&shared, {}, 0, 4, 1 << 20, 1400);
    PickRequest request;
    request.segment_bytes = 1000;
    bool seen[4] = {};
    for (int i = 0; i < 100; ++i) seen[paths.pick(i, request).path] = true;
    expect_failure(shared, Family::path, at_start ? "on_start" : "pick");
    CHECK_EQUAL(shared.counters->events_policy_failed, 1);
    CHECK(seen[0] && seen[1] && seen[2] && seen[3]);
  }
}

TEST(policy_slot__a_loss_policy_that_fails_gives_way) {
  for (const bool at_start : {true, false}) {
    const Descriptor descriptor = failing(Family::loss, at_start);
    StackConfig config;
    config.loss = {&descriptor, nullptr};
    Shared shared(config);
    LossControl loss(&shared, config.loss, 0, 1472);
    CHECK(loss.open(1));
    RttEstimator rtt;
    FlowPath path;
    LossFacts facts;
    facts.now_ns = 100'000'000;
    facts.rtt = &rtt;
    facts.rto_ns = 1'000'000;
    facts.oldest_sent_ns = facts.newest_sent_ns = 1'000'000;
    const LossCutoff cutoff = loss.on_timer(facts, &path);
    expect_failure(shared, Family::loss, at_start ? "on_start" : "on_timer");
    CHECK(cutoff.sent_before_ns > facts.oldest_sent_ns);
  }
}

TEST(policy_slot__a_credit_policy_that_fails_gives_way) {
  for (const bool at_start : {true, false}) {
    const Descriptor descriptor = failing(Family::credit, at_start);
    StackConfig config;
    config.credit = {&descriptor, nullptr};
    Shared shared(config);
    CreditPort port;
    port.record.resize(64);
    CreditControl credit(&shared, &port, config.credit, 0, 1472);
    CHECK(credit.open());
    CHECK(credit.on_demand(1, 1 << 20, 0));
    expect_failure(shared, Family::credit, at_start ? "on_start" : "on_demand");
    CHECK(credit.granted_bytes() > 0);
  }
}
