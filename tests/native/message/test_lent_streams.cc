// Tests streams lent to producers of device memory: each has one user at a time, and is lent again when its work is
// done.
#include "native/message/lent_streams.h"
#include "tests/native/gpu_fixture.h"

using namespace weft::test;
namespace gpu = weft::gpu;

namespace {

std::unique_ptr<gpu::Copier> copier() {
  std::string error;
  auto made = gpu::Copier::open(driver(), 0, &error);
  CHECK_EQUAL(error, "");
  return made;
}

}  // namespace

TEST(lent_streams__a_lent_stream_has_one_user) {
  const auto device = copier();
  LentStreams streams(driver(), *device);
  std::string error;
  const gpu::Stream first = streams.lend(&error), second = streams.lend(&error);
  CHECK_EQUAL(error, "");
  CHECK(first != nullptr);
  CHECK(second != nullptr);
  CHECK(first != second);
  streams.give_back({nullptr, first});
  CHECK(streams.lend(&error) == first);
  streams.give_back({nullptr, first});
  streams.give_back({nullptr, second});
}

TEST(lent_streams__every_stream_and_event_is_freed) {
  const int before = live();
  {
    const auto device = copier();
    LentStreams streams(driver(), *device);
    std::string error;
    for (int i = 0; i < 3; ++i) {
      const gpu::Stream lent = streams.lend(&error);
      const gpu::Current current(driver(), device->context());
      gpu::Event event = nullptr;
      CHECK(driver().event_create(&event, gpu::kDisableTiming) == gpu::kSuccess);
      CHECK(driver().event_record(event, lent) == gpu::kSuccess);
      streams.give_back({event, lent});
    }
  }
  CHECK_EQUAL(live(), before);
}

TEST(lent_streams__a_driver_that_makes_no_stream_is_an_error) {
  const auto device = copier();
  LentStreams streams(driver(), *device);
  std::string error;
  fail_at("cuStreamCreate", 1);
  std::vector<gpu::Stream> all;  // all streams that the device made in advance
  while (const gpu::Stream one = streams.lend(&error)) all.push_back(one);
  CHECK(error.find("cuStreamCreate") == 0);
  fail_at(nullptr, 0);
  for (const gpu::Stream one : all) streams.give_back({nullptr, one});
}
