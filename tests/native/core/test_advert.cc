// Tests advertisements: they are repeated until confirmed, accepted once, bounded, and may arrive in any order.
#include <vector>

#include "native/core/advert_ledger.h"
#include "native/core/advertiser.h"
#include "native/core/random.h"
#include "tests/native/check.h"

using namespace weft::core;
namespace wire = weft::wire;
using Permission = AdvertLedger::Permission;

namespace {

struct Packed {
  std::vector<u8> bytes;
  wire::Packet packet;
};

Packed advert(u32 first, const std::vector<u64>& capacities) {
  Packed out;
  out.bytes.resize(wire::kControlBytesMax);
  std::vector<wire::AdvertEntry> entries;
  for (const u64 capacity : capacities) entries.push_back({capacity, 0, 0});
  out.bytes.resize(wire::encode_advert(out.bytes.data(), {}, first, entries.data(), entries.size()));
  CHECK_EQUAL(wire::decode(out.bytes.data(), out.bytes.size(), 0, &out.packet), wire::Verdict::ok);
  return out;
}

}  // namespace

TEST(advertiser__says_it_until_confirmed_with_growing_pauses) {
  Advertiser advertiser;
  CHECK(!advertiser.due());
  advertiser.on_post(0, 3, true, 16);
  CHECK(advertiser.due());
  i64 now_ns = 0, pause_ns = 1000;
  for (int round = 0; round < 6; ++round) {
    CHECK(advertiser.due());
    CHECK_EQUAL(advertiser.first(), 0u);
    advertiser.on_sent(3, now_ns, 1000);
    CHECK(!advertiser.due());
    CHECK_EQUAL(advertiser.poll_timeout(), now_ns + pause_ns);
    advertiser.on_timer(now_ns + pause_ns - 1);
    CHECK(!advertiser.due());
    now_ns += pause_ns;
    advertiser.on_timer(now_ns);
    pause_ns *= 2;
  }
  advertiser.on_sent(3, now_ns, 1000);
  advertiser.on_confirm(3);
  CHECK_EQUAL(advertiser.poll_timeout(), kNever);
  advertiser.on_timer(now_ns + 1'000'000'000);
  CHECK(!advertiser.due());
}

TEST(advertiser__a_partial_confirmation_leaves_the_rest_to_be_said) {
  Advertiser advertiser;
  advertiser.on_post(0, 10, true, 16);
  advertiser.on_sent(10, 0, 1000);
  advertiser.on_confirm(4);
  advertiser.on_confirm(2);   // an old confirmation, which must be ignored
  advertiser.on_confirm(99);  // must be ignored: it confirms receives that were never posted
  advertiser.on_timer(1000);
  CHECK(advertiser.due());
  CHECK_EQUAL(advertiser.first(), 4u);
}

// Each advertisement starts at the confirmed position, so that one that overtakes others is complete by itself.
TEST(advertiser__says_again_what_is_not_confirmed) {
  Advertiser advertiser;
  for (u64 posted = 1; posted <= 16; ++posted) {
    advertiser.on_post(0, posted, true, 16);
    CHECK_EQUAL(advertiser.first(), 0u);
    advertiser.on_sent(posted, 0, 1000);
    CHECK(!advertiser.due());
  }
  advertiser.on_confirm(10);
  advertiser.on_post(0, 40, true, 16);
  CHECK_EQUAL(advertiser.first(), 10u);
  advertiser.on_sent(30, 0, 1000);
  CHECK(!advertiser.due());
  advertiser.on_post(0, 41, true, 16);  // too many to repeat: advertises only new receives
  CHECK_EQUAL(advertiser.first(), 40u);
  advertiser.on_sent(1, 0, 1000);
  CHECK(!advertiser.due());
}

TEST(advertiser__receives_that_no_long_message_waits_for_may_wait) {
  Advertiser advertiser;
  advertiser.on_post(0, 1, false, 16);
  CHECK(!advertiser.due());
  CHECK(advertiser.poll_timeout() != kNever);
  for (u64 posted = 2; posted < 8; ++posted) advertiser.on_post(0, posted, false, 16);
  CHECK(!advertiser.due());
  advertiser.on_post(0, 8, false, 16);  // half of the eager slots: advertised at once
  CHECK(advertiser.due());
  Advertiser alone;
  alone.on_post(5, 1, false, 16);
  alone.on_timer(alone.poll_timeout());
  CHECK(alone.due());
}

TEST(advert_ledger__a_message_goes_eagerly_or_when_its_receive_is_known) {
  AdvertLedger ledger;
  const EagerLimits eager{100, 2};
  CHECK_EQUAL(ledger.may_send(0, 100, eager), Permission::go);
  CHECK_EQUAL(ledger.may_send(1, 100, eager), Permission::go);
  CHECK_EQUAL(ledger.may_send(2, 1, eager), Permission::wait);
  CHECK_EQUAL(ledger.may_send(0, 101, eager), Permission::wait);
  CHECK(ledger.on_advert(advert(0, {500, 0}).packet.advert, 0));
  CHECK_EQUAL(ledger.known(), 2u);
  CHECK_EQUAL(ledger.may_send(0, 500, eager), Permission::go);
  CHECK_EQUAL(ledger.may_send(0, 501, eager), Permission::too_long);
  CHECK_EQUAL(ledger.may_send(1, 0, eager), Permission::go);
  CHECK_EQUAL(ledger.may_send(1, 1, eager), Permission::too_long);
  CHECK_EQUAL(ledger.may_send(3, 100, eager), Permission::go);
  CHECK_EQUAL(ledger.may_send(4, 100, eager), Permission::wait);
  CHECK_EQUAL(ledger.may_send(0, 0, EagerLimits{0, 0}), Permission::go);
}

TEST(advert_ledger__old_news_and_holes_change_nothing) {
  AdvertLedger ledger;
  const EagerLimits eager{0, 0};
  CHECK(ledger.on_advert(advert(0, {10, 20}).packet.advert, 0));
  CHECK(ledger.on_advert(advert(0, {11, 21}).packet.advert, 0));
  CHECK_EQUAL(ledger.may_send(0, 11, eager), Permission::too_long);
  CHECK(ledger.on_advert(advert(3, {40}).packet.advert, 0));
  CHECK_EQUAL(ledger.known(), 2u);
  CHECK(ledger.on_advert(advert(1, {99, 30, 40}).packet.advert, 0));
  CHECK_EQUAL(ledger.known(), 4u);
  CHECK_EQUAL(ledger.may_send(1, 21, eager), Permission::too_long);
  CHECK_EQUAL(ledger.may_send(3, 40, eager), Permission::go);
}

TEST(advert_ledger__keeps_no_more_than_its_bound) {
  AdvertLedger ledger;
  const std::vector<u64> many(wire::kAdvertEntriesMax, 1);
  u64 known = 0;
  while (ledger.on_advert(advert(static_cast<u32>(known), many).packet.advert, 0)) known = ledger.known();
  CHECK(known <= AdvertLedger::kAheadMax);
  CHECK(known + wire::kAdvertEntriesMax > AdvertLedger::kAheadMax);
  CHECK_EQUAL(ledger.known(), known);
  CHECK(ledger.on_advert(advert(static_cast<u32>(known), many).packet.advert, 100));
}

TEST(advert_ledger__capacities_survive_growth_and_32_bits_of_message_numbers) {
  AdvertLedger ledger;
  const EagerLimits eager{0, 0};
  Random random(3);
  u64 next = 0;
  for (int round = 0; round < 4000; ++round) {
    std::vector<u64> capacities;
    const u64 first = ledger.known();
    for (u64 i = random.next() % wire::kAdvertEntriesMax; i != 0; --i) {
      capacities.push_back((first + capacities.size()) * 7919 % 10'007);
    }
    if (!ledger.on_advert(advert(static_cast<u32>(first), capacities).packet.advert, next)) next += 1000;
    for (u64 message = next; message < ledger.known(); message += 1 + random.next() % 50) {
      const u64 capacity = message * 7919 % 10'007;
      CHECK_EQUAL(ledger.may_send(message, capacity, eager), Permission::go);
      CHECK_EQUAL(ledger.may_send(message, capacity + 1, eager), Permission::too_long);
    }
    if (next < ledger.known()) next += random.next() % (ledger.known() - next + 1);
  }
  CHECK(ledger.known() > 50'000);
}
