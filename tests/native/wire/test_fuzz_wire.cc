// Passes seeded mutations of real packets to the decoder and to a stack: no crash, no forbidden write, and no event
// with an unknown cookie. fuzz_wire.cc does the same without end.
#include <algorithm>
#include <cstring>

#include "native/wire/crc32c.h"
#include "tests/native/check.h"
#include "tests/native/mutate.h"

using namespace weft::core;
using weft::test::corpus;
using weft::test::FuzzTarget;
using weft::test::mutate;
using weft::test::Wired;
namespace wire = weft::wire;

namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr int kInputs = 60'000;
#else
constexpr int kInputs = 300'000;
#endif

}  // namespace

TEST(fuzz_wire__the_corpus_holds_every_type_of_packet) {
  for (int type = 1; type <= 9; ++type) {
    bool found = false;
    for (const Wired& packet : corpus()) found = found || int{packet.header[3]} == type;
    if (!found) weft::test::fail(__FILE__, __LINE__, "no packet of type " + std::to_string(type));
  }
}

TEST(fuzz_wire__decode) {
  const std::vector<Wired> seeds = corpus();
  Random random(1);
  int accepted = 0;
  for (int i = 0; i < kInputs; ++i) {
    const Wired packet = mutate(seeds[random.next() % seeds.size()], random);
    wire::Packet decoded;
    const wire::Verdict verdict =
        wire::decode(packet.header.data(), packet.header.size(), packet.payload.size(), &decoded);
    if (verdict != wire::Verdict::ok) continue;
    ++accepted;
    // Read an accepted packet up to its last entry, which must not read beyond it.
    u64 sum = 0;
    if (decoded.common.type == wire::Type::nack) {
      for (std::size_t k = 0; k < decoded.nack.count; ++k) sum += decoded.nack.entry(k).seq;
    }
    if (decoded.common.type == wire::Type::advert) {
      for (std::size_t k = 0; k < decoded.advert.count; ++k) sum += decoded.advert.entry(k).capacity_bytes;
    } else if (decoded.common.type == wire::Type::ack) {
      for (std::size_t k = 0; k < 8u * decoded.ack.bitmap_words; ++k) sum += decoded.ack.bitmap[k];
    }
    CHECK(sum != 0xDEAD'BEEF'0000'0001u);
  }
  CHECK(accepted > kInputs / 20);  // otherwise the code after the CRC check was not tested
}

TEST(fuzz_wire__stack) {
  const std::vector<Wired> seeds = corpus();
  Random random(2);
  for (int i = 0; i < kInputs;) {
    FuzzTarget target(random.next());
    for (int k = 0; k < 500; ++k, ++i) {
      target.feed(mutate(seeds[random.next() % seeds.size()], random));
      if (!target.complaint().empty()) weft::test::fail(__FILE__, __LINE__, target.complaint());
    }
  }
}
