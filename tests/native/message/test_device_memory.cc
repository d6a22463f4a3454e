// Tests which GPU memory a NIC reads in place, and which part of it is registered.
#include <fcntl.h>

#include "native/message/device_memory.h"
#include "tests/native/gpu_fixture.h"

using namespace weft::test;
namespace gpu = weft::gpu;
using weft::message::Backlog;

TEST(device_memory__only_one_piece_is_contiguous) {
  gpu::Layout layout;
  CHECK(contiguous(layout) == nullptr);
  layout.add(0x1000, 64);
  CHECK_EQUAL(reinterpret_cast<std::uintptr_t>(contiguous(layout)), 0x1000u);
  layout.add(0x9000, 64);
  CHECK(contiguous(layout) == nullptr);
}

TEST(device_memory__a_registered_send_is_read_in_place_unless_engines_read_it) {
  gpu::Layout layout, pieces;
  layout.add(0x1000, 64);
  pieces.add(0x1000, 64);
  pieces.add(0x9000, 64);
  const auto send = Backlog::Direction::send, receive = Backlog::Direction::receive;
  weft::engine::Knobs checked, unchecked;
  checked.payload_crc = weft::engine::CrcMode::on;
  unchecked.payload_crc = weft::engine::CrcMode::off;
  RuntimePair reads(checked), reads_not(unchecked);
  CHECK(!is_read_in_place(*reads.here, send, layout, 1));
  CHECK(is_read_in_place(*reads_not.here, send, layout, 1));
  CHECK(!is_read_in_place(*reads_not.here, receive, layout, 1));
  CHECK(!is_read_in_place(*reads_not.here, send, layout, 0));  // because the memory is not registered
  CHECK(!is_read_in_place(*reads_not.here, send, pieces, 1));
}

TEST(device_memory__an_export_closes_its_descriptor) {
  const auto device = worker(0, kTight);
  const Memory memory(std::vector<std::uint8_t>(1 << 16, 1));
  int descriptor = -1;
  {
    const DeviceExport exported(device.get(), *memory.all());
    CHECK_EQUAL(exported.memory().data, const_cast<Memory&>(memory).data());
    CHECK_EQUAL(exported.memory().bytes, std::uint64_t{1 << 16});
    CHECK(exported.memory().on_device);
    descriptor = exported.memory().dmabuf;
  }
  if (descriptor >= 0) CHECK(::fcntl(descriptor, F_GETFD) == -1);
}
