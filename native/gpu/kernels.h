// Kernels that work on messages in GPU memory: gather or scatter many pieces, or reduce two arrays, in one launch on
// the caller's stream. A launch neither waits nor allocates, and does not copy the piece table.
#pragma once

#include <array>
#include <memory>
#include <string>

#include "native/gpu/driver.h"
#include "native/gpu/jobs.h"

namespace weft::gpu {

// A table of pieces in device or pinned memory, 8-byte aligned. It must stay in memory until the launch is finished.
struct PieceTable {
  Address pieces = 0;  // address of an array of Piece; see lay_out()
  std::uint64_t count = 0;
};

// Arrays of a reduction. `out` and `also` (0: not used) may each be `a` or `b`; otherwise the arrays must not overlap.
// All are aligned to the element size. The reduction is fastest if all addresses are equal modulo 16, and slowest if
// those of `out` and `also` are not.
struct Reduction {
  Address a = 0, b = 0, out = 0, also = 0;
  std::uint64_t elements = 0;
};

// Thread-safe. Each launch returns the result of cuLaunchKernel, an error of making the context current, or
// kInvalidValue for invalid arguments. A launch with nothing to do returns at once. All memory that a launch uses must
// stay valid until the launch is finished; only the stream shows when that is.
class Kernels {
 public:
  // `context` must outlive the object. Returns null with `error` set if weft was built without nvcc or not for this
  // GPU.
  static std::unique_ptr<Kernels> open(const Driver& driver, Context context, std::string* error);
  // Like open(), but with the given image. `image` may be null.
  static std::unique_ptr<Kernels> load(const Driver& driver, Context context, const void* image, std::string* error);
  Kernels(const Kernels&) = delete;
  Kernels& operator=(const Kernels&) = delete;
  // All launches must have finished before.
  ~Kernels();

  // gather() copies bytes [begin, end) of a message from its pieces to `contiguous`, which begins with byte `begin`;
  // scatter() copies from `contiguous` to the pieces. `contiguous` is device or pinned memory. No other byte is
  // written. Both are fast at any alignment.
  Result gather(const PieceTable& from, std::uint64_t begin_bytes, std::uint64_t end_bytes, Address contiguous,
                Stream stream) const noexcept;
  Result scatter(Address contiguous, const PieceTable& to, std::uint64_t begin_bytes, std::uint64_t end_bytes,
                 Stream stream) const noexcept;
  Result reduce(ElementType type, Operation operation, const Reduction& reduction, Stream stream) const noexcept;
  // Starts the persistent kernel, which runs until the host tells it to end; see persistent_kernel.h.
  Result start_persistent(const PersistentLaunch& job, Stream stream) const noexcept;

 private:
  static constexpr std::size_t kTypes = 7, kOperations = 3;
  Kernels(const Driver& driver, Context context) : driver_(driver), context_(context) {}
  bool make(const void* image, std::string* error);
  Result move(Function kernel, const PieceTable& table, std::uint64_t begin_bytes, std::uint64_t end_bytes,
              Address contiguous, Stream stream) const noexcept;
  Result launch(Function kernel, std::uint64_t blocks, void* job, Stream stream) const noexcept;

  const Driver& driver_;
  const Context context_;
  Module module_ = nullptr;
  Function gather_ = nullptr, scatter_ = nullptr, persistent_ = nullptr;
  std::array<std::array<Function, kOperations>, kTypes> reduce_{};
};

}  // namespace weft::gpu
