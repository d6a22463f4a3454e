// Access to memory regions in GPU memory, by their CUDA address, through copies on a separate stream. libcuda is loaded
// only if device memory is possible.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "native/gpu/driver.h"

namespace weft::softverbs {

// One device, whose primary context is held while a region is on it.
class DeviceMemory {
 public:
  DeviceMemory(const gpu::Driver& driver, int device) noexcept : driver_(driver), device_(device) {}
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;
  ~DeviceMemory();
  bool open();
  // Both return when the bytes have been copied. The stream is separate because the default stream waits for kernels,
  // and one of them may be waiting for these very bytes.
  bool read(std::uint64_t from, void* to, std::size_t bytes) const noexcept;
  bool write(std::uint64_t to, const void* from, std::size_t bytes) const noexcept;

 private:
  template <class Copy>
  bool run(const Copy& copy) const noexcept;

  const gpu::Driver& driver_;
  int device_ = 0;
  gpu::Context context_ = nullptr;
  gpu::Stream stream_ = nullptr;
};

enum class Where { host, device, nowhere };
// Whether [address, address + bytes) is GPU memory, and if so an object to access it; nowhere: GPU memory that can't be
// accessed. `certain`: the caller knows that it is GPU memory, so libcuda is loaded if needed; otherwise it is only
// asked if this process has loaded it already.
Where find_device_memory(const std::string& library, std::uint64_t address, std::size_t bytes, bool certain,
                         std::shared_ptr<DeviceMemory>* out);

}  // namespace weft::softverbs
