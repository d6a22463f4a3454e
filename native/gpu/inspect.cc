// Asks the driver about every piece: where its first byte is, and whether the allocation there has the last one, so
// that freed memory and arrays that extend beyond their allocation are refused. The bytes themselves are not read.
#include "native/gpu/inspect.h"

#include <cstdio>

namespace weft::gpu {
namespace {

constexpr int kMemoryType = 2, kIsManaged = 8, kDeviceOrdinal = 9, kBegin = 11, kLength = 12;  // CU_POINTER_ATTRIBUTE_
constexpr unsigned kOnDevice = 2;                                                              // CU_MEMORYTYPE_DEVICE

std::string text_of(Address address) {
  char text[32];
  static_cast<void>(std::snprintf(text, sizeof text, "0x%llx", static_cast<unsigned long long>(address)));
  return text;
}

// The device that holds the byte at `address`; -1 with `error` set if there is none. `left`: how many bytes of the same
// allocation begin there, if the driver knows; else 0.
int device_at(const Driver& driver, Address address, std::uint64_t* left, std::string* error) {
  unsigned type = 0;
  int managed = 0, ordinal = -1;
  Address begin = 0;
  std::uint64_t length = 0;
  const int asked[] = {kMemoryType, kIsManaged, kDeviceOrdinal, kBegin, kLength};
  void* answers[] = {&type, &managed, &ordinal, &begin, &length};
  const Result result = driver.pointer_attributes(5, asked, answers, address);
  *left = begin <= address && address - begin < length ? length - (address - begin) : 0;
  if (result != kSuccess) {
    *error = driver.say("cuPointerGetAttributes", result);
    return -1;
  }
  if (managed != 0) {
    *error = "managed memory cannot be used, because it migrates: copy it to device memory, or pass a host array";
    return -1;
  }
  if (type != kOnDevice || ordinal < 0) {
    *error = "no device memory at " + text_of(address) + ": it was freed, or is shorter than the array says" +
             (type == 1 ? ", or is host memory" : "");
    return -1;
  }
  return ordinal;
}

}  // namespace

int device_of(const Driver& driver, const Layout& layout, std::string* error) {
  int device = layout.pieces().empty() ? 0 : -1;
  for (const Piece& piece : layout.pieces()) {
    std::uint64_t left = 0;
    for (const Address address : {piece.address, piece.address + piece.bytes - 1}) {
      if (left >= piece.bytes) break;  // the allocation of the first byte has the last one
      const int found = device_at(driver, address, &left, error);
      if (found < 0) return -1;
      if (device >= 0 && found != device) {
        *error = "its pieces are on device " + std::to_string(device) + " and on device " + std::to_string(found) +
                 ": all pieces of a message must be on the same device";
        return -1;
      }
      device = found;
    }
  }
  return device;
}

bool stream_belongs(const Driver& driver, Stream stream, Context context, std::string* error) {
  Context owner = nullptr;
  const Result result = driver.stream_context(stream, &owner);
  if (result != kSuccess) {
    *error = driver.say("cuStreamGetCtx", result);
    return false;
  }
  int capturing = 0;
  if (driver.stream_capturing(stream, &capturing) == kSuccess && capturing != 0) {
    *error = "is being captured into a graph, which cannot contain messages: use another stream";
    return false;
  }
  if (owner == context) return true;
  *error = "belongs to another device or context than the buffer";
  return false;
}

}  // namespace weft::gpu
