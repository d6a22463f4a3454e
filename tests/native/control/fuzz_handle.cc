// Fuzzes the reader of handles: bytes that are no handle give one line, and whatever is read can be written again.
#include <cstring>

#include "native/control/handle.h"
#include "native/wire/crc32c.h"
#include "tests/native/fuzz/fuzz.h"

namespace {

using namespace weft;
using control::Handle;
using control::HandleFields;
using fuzz::require;

Handle sample(bool v6, std::uint64_t number) {
  HandleFields fields;
  fields.node = number;
  fields.listener = number + 1;
  fields.device = 3;
  if (v6) {
    fields.address.v6.sin6_family = AF_INET6;
    fields.address.v6.sin6_addr.s6_addr[15] = 1;
  } else {
    fields.address.v4.sin_family = AF_INET;
    fields.address.v4.sin_addr.s_addr = 0x0100007f;
  }
  fields.address.set_port(4242);
  Handle handle;
  control::write_handle(fields, &handle);
  return handle;
}

// Where a handle has the checksum of all bytes before it.
std::size_t checksum_at() {
  const Handle good = sample(false, 0x1234'5678'9abc'def0u);
  for (std::size_t at = 4; at + 4 <= control::kHandleBytes; at += 4) {
    const std::uint32_t crc = wire::crc32c(0, good.bytes, at);
    if (std::memcmp(good.bytes + at, &crc, sizeof crc) == 0) return at;
  }
  require(false, "a handle has no CRC-32C of the bytes before it: change checksum_at()");
  return 0;
}

}  // namespace

// An input is a byte that says whether the checksum is left wrong, and then the handle.
std::vector<fuzz::Input> fuzz::corpus() {
  std::vector<Input> made;
  for (const bool v6 : {false, true}) {
    for (const std::uint64_t number : {std::uint64_t{1}, ~std::uint64_t{0} - 1}) {
      const Handle handle = sample(v6, number);
      Input input{0};
      input.insert(input.end(), std::begin(handle.bytes), std::end(handle.bytes));
      made.push_back(std::move(input));
    }
  }
  return made;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t bytes) {
  static const std::size_t at = checksum_at();
  if (bytes == 0) return 0;
  Handle handle;
  std::memcpy(handle.bytes, data + 1, std::min(bytes - 1, sizeof handle.bytes));
  if ((data[0] & 1) == 0) {
    const std::uint32_t crc = wire::crc32c(0, handle.bytes, at);
    std::memcpy(handle.bytes + at, &crc, sizeof crc);
  }
  HandleFields fields, again;
  std::string error;
  const bool good = control::read_handle(handle, &fields, &error);
  require(good == error.empty(), "a handle is read, and there is an error; or neither");
  require(error.find('\n') == std::string::npos, "an error of several lines");
  if (!good) return 0;
  ++fuzz::accepted;
  Handle rewritten;
  control::write_handle(fields, &rewritten);
  require(control::read_handle(rewritten, &again, &error), "what was read cannot be written again: " + error);
  require(again.node == fields.node && again.listener == fields.listener && again.device == fields.device &&
              again.address.text() == fields.address.text() && again.address.port() == fields.address.port(),
          "what was read changes when it is written again");
  return 0;
}
