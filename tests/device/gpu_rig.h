// A GPU for the kernel tests: memory of exact sizes with a copy on the host, a stream, and times by
// events. The program ends at the first failed call, because later results would mean nothing.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "native/gpu/driver.h"
#include "native/gpu/kernels.h"

namespace weft::test {

constexpr int kSkipped = 77;

// Functions of libcuda that only these tests call.
#define WEFT_RIG_FUNCTIONS(X)                                    \
  X(device_name, "cuDeviceGetName", (char*, int, gpu::DeviceId)) \
  X(memory_alloc, "cuMemAlloc_v2", (gpu::Address*, std::size_t)) \
  X(memory_free, "cuMemFree_v2", (gpu::Address))                 \
  X(elapsed, "cuEventElapsedTime", (float*, gpu::Event, gpu::Event))

class Rig {
 public:
  // Device 0 of the library at this path, which may be a fake. Exits with 77 if there is none.
  explicit Rig(const std::string& library);
  Rig(const Rig&) = delete;
  Rig& operator=(const Rig&) = delete;
  ~Rig();

  void require(const char* symbol, gpu::Result result) const {
    if (result == gpu::kSuccess) return;
    std::fprintf(stderr, "%s\n", driver.say(symbol, result).c_str());
    std::exit(1);
  }
  void synchronize() const { require("cuStreamSynchronize", driver.stream_synchronize(stream)); }
  // The time of the work that `launch` queues, measured by CUDA events.
  template <class Launch>
  double seconds(Launch launch) const {
    require("cuEventRecord", driver.event_record(first_, stream));
    launch();
    require("cuEventRecord", driver.event_record(last_, stream));
    synchronize();
    float milliseconds = 0;
    require("cuEventElapsedTime", elapsed(&milliseconds, first_, last_));
    return static_cast<double>(milliseconds) / 1e3;
  }

  const gpu::Driver& driver;
#define WEFT_RIG_POINTER(name, symbol, parameters) gpu::Result(*name) parameters = nullptr;
  WEFT_RIG_FUNCTIONS(WEFT_RIG_POINTER)
#undef WEFT_RIG_POINTER
  gpu::Stream stream = nullptr;
  std::unique_ptr<gpu::Kernels> kernels;
  std::string name;

 private:
  gpu::DeviceId device_ = 0;
  gpu::Context context_ = nullptr;
  gpu::Event first_ = nullptr, last_ = nullptr;
};

enum class Kind { device, pinned };

// Memory of an exact size, so that compute-sanitizer finds accesses beyond it. Only upload()
// initialises it.
class Region {
 public:
  Region(const Rig& rig, Kind kind, std::size_t bytes, bool mirrored = true);
  Region(Region&& other) noexcept;
  Region(const Region&) = delete;
  Region& operator=(const Region&) = delete;
  ~Region();

  gpu::Address address() const { return address_; }
  std::size_t bytes() const { return bytes_; }
  // The host's copy of the whole region.
  std::vector<std::uint8_t>& mirror() { return mirror_; }
  void upload();
  // The current contents. Waits for the stream.
  std::vector<std::uint8_t> download() const;

 private:
  const Rig* rig_;
  Kind kind_;
  std::size_t bytes_;
  gpu::Address address_ = 0;
  std::vector<std::uint8_t> mirror_;
};

// Compares the GPU's results with the expected results; at a difference, prints it and returns false.
bool check_pieces(const Rig& rig, std::uint64_t seed);
bool check_persistent(const Rig& rig, std::uint64_t seed);
bool check_reduce(const Rig& rig, std::uint64_t seed);
// Reduces every pair of numbers of a 16-bit format whose bit patterns have this distance.
bool check_narrow(const Rig& rig, gpu::ElementType type, std::uint64_t distance);
// Measures the kernels; returns JSON with medians, each compared with a copy of as many bytes.
std::string measure(const Rig& rig, std::uint64_t bytes, int repeats);

}  // namespace weft::test
