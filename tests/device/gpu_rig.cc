// Opens the GPU for the kernel tests, and manages its memory.
#include "tests/device/gpu_rig.h"

#include <dlfcn.h>

#include <cstring>
#include <utility>

#include "native/gpu/kernel_image.h"

namespace weft::test {
namespace {

constexpr const char* kLibrary = "libcuda.so.1";

[[noreturn]] void skip(const std::string& why) {
  std::fprintf(stderr, "skipped: %s\n", why.c_str());
  std::exit(kSkipped);
}

const gpu::Driver& found(const std::string& library) {
  std::string error;
  const gpu::Driver* const driver = gpu::load_driver(library.empty() ? kLibrary : library.c_str(), &error);
  if (driver == nullptr) skip(error);
  return *driver;
}

}  // namespace

Rig::Rig(const std::string& library) : driver(found(library)) {
  void* const handle = ::dlopen(library.empty() ? kLibrary : library.c_str(), RTLD_NOW | RTLD_LOCAL);
#define WEFT_RIG_FIND(name, symbol, parameters)                     \
  name = reinterpret_cast<decltype(name)>(::dlsym(handle, symbol)); \
  if (name == nullptr) skip(std::string("libcuda has no ") + symbol);
  WEFT_RIG_FUNCTIONS(WEFT_RIG_FIND)
#undef WEFT_RIG_FIND
  require("cuDeviceGet", driver.device_get(&device_, 0));
  char text[256] = "";
  require("cuDeviceGetName", device_name(text, sizeof(text), device_));
  name = text;
  require("cuDevicePrimaryCtxRetain", driver.primary_retain(&context_, device_));
  require("cuCtxPushCurrent", driver.context_push(context_));
  require("cuStreamCreate", driver.stream_create(&stream, gpu::kNonBlocking));
  require("cuEventCreate", driver.event_create(&first_, 0));
  require("cuEventCreate", driver.event_create(&last_, 0));
  std::string error;
  // A library given by its path is a fake of libcuda, which needs some kernel image but does not read it.
  kernels = gpu::kernel_image() == nullptr && !library.empty() ? gpu::Kernels::load(driver, context_, "any", &error)
                                                               : gpu::Kernels::open(driver, context_, &error);
  if (kernels == nullptr && gpu::kernel_image() == nullptr) skip(error);
  if (kernels == nullptr) {
    std::fprintf(stderr, "%s\n", error.c_str());
    std::exit(1);
  }
}

Rig::~Rig() {
  kernels.reset();
  static_cast<void>(driver.event_destroy(last_));
  static_cast<void>(driver.event_destroy(first_));
  static_cast<void>(driver.stream_destroy(stream));
  gpu::Context popped = nullptr;
  static_cast<void>(driver.context_pop(&popped));
  static_cast<void>(driver.primary_release(device_));
}

Region::Region(const Rig& rig, Kind kind, std::size_t bytes, bool mirrored)
    : rig_(&rig), kind_(kind), bytes_(bytes), mirror_(mirrored ? bytes : 0) {
  if (bytes == 0) return;
  if (kind == Kind::device) {
    rig.require("cuMemAlloc", rig.memory_alloc(&address_, bytes));
    return;
  }
  void* memory = nullptr;
  rig.require("cuMemHostAlloc", rig.driver.host_alloc(&memory, bytes, gpu::kHostAllocPortable));
  address_ = reinterpret_cast<gpu::Address>(memory);
}

Region::Region(Region&& other) noexcept
    : rig_(other.rig_),
      kind_(other.kind_),
      bytes_(other.bytes_),
      address_(std::exchange(other.address_, 0)),
      mirror_(std::move(other.mirror_)) {}

Region::~Region() {
  if (address_ == 0) return;
  if (kind_ == Kind::device) {
    static_cast<void>(rig_->memory_free(address_));
  } else {
    static_cast<void>(rig_->driver.host_free(reinterpret_cast<void*>(address_)));
  }
}

void Region::upload() {
  if (bytes_ == 0) return;
  if (kind_ == Kind::pinned) {
    std::memcpy(reinterpret_cast<void*>(address_), mirror_.data(), bytes_);
    return;
  }
  rig_->require("cuMemcpyHtoDAsync", rig_->driver.copy_to_device(address_, mirror_.data(), bytes_, rig_->stream));
  rig_->synchronize();
}

std::vector<std::uint8_t> Region::download() const {
  std::vector<std::uint8_t> bytes(bytes_);
  if (kind_ == Kind::device && bytes_ != 0)
    rig_->require("cuMemcpyDtoHAsync", rig_->driver.copy_to_host(bytes.data(), address_, bytes_, rig_->stream));
  rig_->synchronize();
  if (kind_ == Kind::pinned && bytes_ != 0) std::memcpy(bytes.data(), reinterpret_cast<void*>(address_), bytes_);
  return bytes;
}

}  // namespace weft::test
