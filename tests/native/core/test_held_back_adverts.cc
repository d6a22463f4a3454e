// Tests that a receiver whose messages are short advertises several receives at once, and that a long message never
// waits for an advertisement that is held back.
#include <algorithm>
#include <array>
#include <memory>
#include <vector>

#include "tests/native/check.h"
#include "tests/native/pair.h"

using namespace weft::core;
using weft::test::Pair;
using weft::test::pattern;
using weft::test::Wired;

namespace {

constexpr u64 kCapacity = 65'536, kShort = 16, kLong = 60'000, kAhead = 8;
constexpr i64 kSoonNs = 1'000'000;  // a tenth of the delay after which what is held back is advertised anyway

// End 1 has receives posted ahead, for messages of up to 64 KB, as NCCL has.
class Line {
 public:
  Line() : pair_(weft::test::shipped_config()), out_(pattern(kLong, 1)), in_(kAhead, std::vector<u8>(kCapacity)) {
    CHECK(pair_.opened);
    for (u64 i = 0; i < kAhead; ++i) post();
  }

  void post() {
    const u64 slot = posted_++ % kAhead;
    tickets_[slot].agreed_bytes.store(-1);
    tickets_[slot].stripes_placed.store(0);
    CHECK_EQUAL(pair_.receive(1, in_[slot].data(), kCapacity, &tickets_[slot]), weft::Status::ok);
  }
  // Sends one message and waits until it is there. Returns how long that took.
  i64 move(u64 bytes) {
    const i64 begin_ns = pair_.now_ns;
    CHECK_EQUAL(pair_.send(0, out_.data(), bytes), weft::Status::ok);
    expected_ += bytes;
    CHECK(pair_.run([this] { return pair_.received_bytes(1) == expected_; },
                    [this](const Wired& packet) {
                      adverts_ += packet.type() == weft::wire::Type::advert ? 1 : 0;
                      return false;
                    }));
    const i64 took_ns = pair_.now_ns - begin_ns;
    const std::vector<u8>& in = in_[moved_++ % kAhead];
    CHECK(std::equal(out_.begin(), out_.begin() + static_cast<std::ptrdiff_t>(bytes), in.begin()));
    CHECK_EQUAL(pair_.events(1, Event::Kind::stripe_placed), 1);
    return took_ns;
  }
  u64 adverts() const { return adverts_; }

 private:
  Pair pair_;
  std::vector<u8> out_;
  std::vector<std::vector<u8>> in_;
  std::array<ReceiveTicket, kAhead> tickets_;
  u64 posted_ = 0, moved_ = 0, expected_ = 0, adverts_ = 0;
};

}  // namespace

TEST(held_back_adverts__one_for_several_short_messages) {
  Line line;
  for (int i = 0; i < 8; ++i) {
    line.move(kShort);
    line.post();
  }
  const u64 before = line.adverts();
  for (int i = 0; i < 64; ++i) {
    line.move(kShort);
    line.post();
  }
  CHECK(line.adverts() - before >= 8);
  CHECK(line.adverts() - before <= 24);
}

TEST(held_back_adverts__each_receive_of_long_messages_has_one_at_once) {
  Line line;
  for (int i = 0; i < 8; ++i) {
    line.move(kLong);
    line.post();
  }
  const u64 before = line.adverts();
  for (int i = 0; i < 32; ++i) {
    CHECK(line.move(kLong) < kSoonNs);
    line.post();
  }
  CHECK(line.adverts() - before >= 32);
}

TEST(held_back_adverts__a_long_message_after_any_number_of_short_ones_does_not_wait) {
  for (int shorts = 0; shorts < 20; ++shorts) {
    Line line;
    for (int i = 0; i < shorts; ++i) {
      line.move(kShort);
      line.post();
    }
    for (int i = 0; i < 20; ++i) {
      CHECK(line.move(kLong) < kSoonNs);
      line.post();
    }
  }
}

TEST(held_back_adverts__nor_if_the_receiver_posts_no_more) {
  for (int reposted = 0; reposted < 12; ++reposted) {
    for (u64 shorts = 0; shorts < kAhead; ++shorts) {
      Line line;
      for (int i = 0; i < reposted; ++i) {
        line.move(kShort);
        line.post();
      }
      for (u64 i = 0; i < shorts; ++i) line.move(kShort);
      for (u64 i = shorts; i < kAhead; ++i) CHECK(line.move(kLong) < kSoonNs);
    }
  }
}
