// Accesses memory regions in GPU memory by their CUDA address, through copies in a separate stream. libcuda is loaded
// only if GPU memory can be in use.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "native/gpu/driver.h"

namespace weft::softverbs {

// A GPU. Its primary context is held as long as a region is in its memory.
class DeviceMemory {
 public:
  DeviceMemory(const gpu::Driver& driver, int device) noexcept : driver_(driver), device_(device) {}
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;
  ~DeviceMemory();
  bool open();
  // read() and write() return when the bytes have been copied. They use a separate stream, because the default stream
  // waits for kernels, and a kernel may be waiting for these very bytes.
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
// Tells where [address, address + bytes) is. device: in GPU memory, with `out` set to access it. nowhere: in GPU memory
// that can't be accessed. `certain`: the caller knows that it is GPU memory, so libcuda is loaded if needed; otherwise
// libcuda is only used if this process has loaded it already.
Where find_device_memory(const std::string& library, std::uint64_t address, std::size_t bytes, bool certain,
                         std::shared_ptr<DeviceMemory>* out);

}  // namespace weft::softverbs
