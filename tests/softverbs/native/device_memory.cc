// Keeps one context and stream per GPU in use, shared by the regions in its memory. Called only under the adapter's
// lock.
#include "tests/softverbs/native/device_memory.h"

#include <dlfcn.h>

#include <map>

namespace weft::softverbs {
namespace {

constexpr int kMemoryType = 2, kDeviceOrdinal = 9;  // CU_POINTER_ATTRIBUTE_*
constexpr unsigned kDeviceType = 2;                 // CU_MEMORYTYPE_DEVICE

bool is_loaded(const std::string& library) {
  void* there = ::dlopen(library.c_str(), RTLD_NOW | RTLD_NOLOAD);
  if (there != nullptr) ::dlclose(there);
  return there != nullptr;
}

bool device_of(const gpu::Driver& driver, std::uint64_t address, int* device) {
  unsigned type = 0;
  const int asked[] = {kMemoryType, kDeviceOrdinal};
  void* answers[] = {&type, device};
  return driver.pointer_attributes(2, asked, answers, address) == gpu::kSuccess && type == kDeviceType;
}

}  // namespace

DeviceMemory::~DeviceMemory() {
  if (stream_ != nullptr) {
    const gpu::Current current(driver_, context_);
    static_cast<void>(driver_.stream_destroy(stream_));
  }
  if (context_ != nullptr) static_cast<void>(driver_.primary_release(device_));
}

bool DeviceMemory::open() {
  if (driver_.primary_retain(&context_, device_) != gpu::kSuccess) {
    context_ = nullptr;
    return false;
  }
  const gpu::Current current(driver_, context_);
  return current.result() == gpu::kSuccess && driver_.stream_create(&stream_, gpu::kNonBlocking) == gpu::kSuccess;
}

template <class Copy>
bool DeviceMemory::run(const Copy& copy) const noexcept {
  const gpu::Current current(driver_, context_);
  return current.result() == gpu::kSuccess && copy() == gpu::kSuccess &&
         driver_.stream_synchronize(stream_) == gpu::kSuccess;
}

bool DeviceMemory::read(std::uint64_t from, void* to, std::size_t bytes) const noexcept {
  return run([&] { return driver_.copy_to_host(to, from, bytes, stream_); });
}

bool DeviceMemory::write(std::uint64_t to, const void* from, std::size_t bytes) const noexcept {
  return run([&] { return driver_.copy_to_device(to, from, bytes, stream_); });
}

Where find_device_memory(const std::string& library, std::uint64_t address, std::size_t bytes, bool certain,
                         std::shared_ptr<DeviceMemory>* out) {
  static auto* const known = new std::map<int, std::weak_ptr<DeviceMemory>>();  // by GPU number
  std::string unused;
  if (!certain && !is_loaded(library)) return Where::host;
  const gpu::Driver* driver = gpu::load_driver(library.c_str(), &unused);
  if (driver == nullptr) return Where::host;
  int first = -1, last = -1;
  if (bytes == 0 || !device_of(*driver, address, &first)) return Where::host;
  if (!device_of(*driver, address + bytes - 1, &last) || first != last) return Where::nowhere;
  *out = (*known)[first].lock();
  if (*out != nullptr) return Where::device;
  auto made = std::make_shared<DeviceMemory>(*driver, first);
  if (!made->open()) return Where::nowhere;
  (*known)[first] = *out = made;
  return Where::device;
}

}  // namespace weft::softverbs
