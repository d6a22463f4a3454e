// Memory of a GPU as a region's bytes: known by its CUDA address, read and written by copies on a stream of our own.
// Touches it by no other way, and loads libcuda only where device memory can be.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "native/gpu/driver.h"

namespace weft::softverbs {

// One device, its primary context held while a region lies on it.
class DeviceMemory {
 public:
  DeviceMemory(const gpu::Driver& driver, int device) noexcept : driver_(driver), device_(device) {}
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;
  ~DeviceMemory();
  bool open();
  // When they return the bytes have moved. A stream of its own, which waits for no kernel: one of them may be waiting
  // for the very bytes that are to be copied.
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
// Whether [address, address + bytes) is a GPU's memory, and then how to reach it; nowhere: a GPU's that cannot be
// reached. `certain`: the caller says that it is one's, so libcuda is loaded; otherwise it is asked only where this
// process has loaded it already.
Where find_device_memory(const std::string& library, std::uint64_t address, std::size_t bytes, bool certain,
                         std::shared_ptr<DeviceMemory>* out);

}  // namespace weft::softverbs
