// The work that the GPU itself does on messages: many pieces gathered or scattered, two arrays reduced, in one launch.
// Launches on a stream of the caller's and returns: waits for nothing, allocates nothing, copies no table.
#pragma once

#include <array>
#include <memory>
#include <string>

#include "native/gpu/driver.h"
#include "native/gpu/jobs.h"

namespace weft::gpu {

// A table in memory that the GPU reads, its own or pinned, at a multiple of 8; it stays until the launch is over.
struct PieceTable {
  Address pieces = 0;  // of Piece; see lay_out
  std::uint64_t count = 0;
};

// `out` and `also` (0: none) may each be `a` or `b` itself; otherwise the arrays do not overlap. All at multiples of an
// element's size; fastest where all are alike modulo 16, slowest where `out` and `also` are not.
struct Reduction {
  Address a = 0, b = 0, out = 0, also = 0;
  std::uint64_t elements = 0;
};

// Any thread may launch. Each launch gives cuLaunchKernel's result, or that of making the context current, or
// kInvalidValue where the arguments cannot be; nothing to do is done at once. What a launch refers to must be there
// until it is over, and nothing tells when but the stream.
class Kernels {
 public:
  // In a context, which outlives it. Null with `error`: built without nvcc, or not for this GPU.
  static std::unique_ptr<Kernels> open(const Driver& driver, Context context, std::string* error);
  // As open(), of an image that the caller has, or null.
  static std::unique_ptr<Kernels> load(const Driver& driver, Context context, const void* image, std::string* error);
  Kernels(const Kernels&) = delete;
  Kernels& operator=(const Kernels&) = delete;
  // All launches must be over.
  ~Kernels();

  // Bytes [begin, end) of the message that the pieces make up, to or from `contiguous`, where byte `begin` comes first:
  // device memory or pinned. No other byte of the pieces or of `contiguous` is touched. Fast at any alignment.
  Result gather(const PieceTable& from, std::uint64_t begin_bytes, std::uint64_t end_bytes, Address contiguous,
                Stream stream) const noexcept;
  Result scatter(Address contiguous, const PieceTable& to, std::uint64_t begin_bytes, std::uint64_t end_bytes,
                 Stream stream) const noexcept;
  Result reduce(ElementType type, Operation operation, const Reduction& reduction, Stream stream) const noexcept;
  // Stays until it is told to leave: see attendant.h.
  Result attend(const AttendJob& job, Stream stream) const noexcept;

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
  Function gather_ = nullptr, scatter_ = nullptr, attend_ = nullptr;
  std::array<std::array<Function, kOperations>, kTypes> reduce_{};
};

}  // namespace weft::gpu
