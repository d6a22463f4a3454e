// A libFuzzer entry point for the target of test_fuzz_wire.cc. It is not part of the build; compile it with clang, in
// the top directory and after a build in build/release:
//   clang++ -std=c++20 -g -O1 -march=x86-64-v3 -fsanitize=fuzzer,address,undefined -I. tests/native/wire/fuzz_wire.cc
//     native/core/*.cc native/wire/*.cc native/policy/*.cc build/release/policies/fixed_*.o -o build/fuzz_wire
//   build/fuzz_wire -max_len=1300
#include <cstdint>
#include <cstdlib>

#include "tests/native/mutate.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t bytes) {
  using namespace weft;
  static test::FuzzTarget* target = nullptr;
  static int inputs = 0;
  if (inputs++ % 1000 == 0) {
    delete target;
    target = new test::FuzzTarget(static_cast<std::uint64_t>(inputs) * 2 + 1);
  }
  // The first byte selects the receiving end and whether the CRC is corrected.
  if (bytes == 0) return 0;
  test::Wired packet;
  packet.to = data[0] & 1;
  const wire::RxDatagram cut = wire::datagram_at(data + 1, bytes - 1, false);
  packet.header.assign(cut.header, cut.header + cut.header_bytes);
  packet.payload.assign(cut.payload, cut.payload + cut.payload_bytes);
  if ((data[0] & 2) != 0) test::reseal(&packet.header);
  target->feed(packet);
  if (!target->complaint().empty()) std::abort();
  return 0;
}
