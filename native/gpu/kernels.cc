// Launches the kernels and divides the work among warps (bytes) or blocks (words and elements). All kernel functions
// are looked up at the start, because a driver may load code lazily, which can synchronise the device.
#include "native/gpu/kernels.h"

#include <algorithm>

#include "native/gpu/kernel_image.h"

namespace weft::gpu {
namespace {

constexpr std::uint64_t kChunkBytesMin = 4 << 10;   // with less per warp, finding a piece costs as much as copying it
constexpr std::uint64_t kChunkBytesMax = 32 << 10;  // with more per warp, the last warps delay the end
constexpr std::uint64_t kChunksWanted = 8'192;      // a few chunks for each warp that the largest GPUs run at a time
constexpr std::uint64_t kBlocksMax = 0x7fff'ffff;   // CUDA's limit for the first dimension of a grid

constexpr std::uint64_t quotient_up(std::uint64_t a, std::uint64_t b) { return a / b + (a % b != 0 ? 1 : 0); }

#define WEFT_TYPE_NAME(name, bytes) #name,
constexpr const char* kTypeNames[] = {WEFT_REDUCE_TYPES(WEFT_TYPE_NAME)};
#undef WEFT_TYPE_NAME
#define WEFT_TYPE_BYTES(name, bytes) bytes,
constexpr std::uint64_t kElementBytes[] = {WEFT_REDUCE_TYPES(WEFT_TYPE_BYTES)};
#undef WEFT_TYPE_BYTES
#define WEFT_OPERATION_NAME(name) #name,
constexpr const char* kOperationNames[] = {WEFT_REDUCE_OPERATIONS(WEFT_OPERATION_NAME)};
#undef WEFT_OPERATION_NAME

// Divides a reduction into words and single elements. There are words only if `out` and `also` are aligned alike. If a
// source is aligned differently, one word less is used at each end, because the source's first and last words would
// extend beyond the array.
ReduceJob shaped(const Reduction& reduction, std::uint64_t element_bytes) {
  ReduceJob job{reduction.a, reduction.b, reduction.out, reduction.also, reduction.elements, 0, 0};
  if (job.also != 0 && (job.also - job.out) % kWordBytes != 0) return job;
  const bool alike = (job.a - job.out) % kWordBytes == 0 && (job.b - job.out) % kWordBytes == 0;
  const std::uint64_t spare_bytes = alike ? 0 : kWordBytes;
  const std::uint64_t head_bytes = (0 - job.out) % kWordBytes + spare_bytes, bytes = job.elements * element_bytes;
  if (bytes < head_bytes + spare_bytes + kWordBytes) return job;
  job.head_elements = head_bytes / element_bytes;
  job.words = (bytes - head_bytes - spare_bytes) / kWordBytes;
  return job;
}

}  // namespace

std::unique_ptr<Kernels> Kernels::open(const Driver& driver, Context context, std::string* error) {
  return load(driver, context, kernel_image(), error);
}

std::unique_ptr<Kernels> Kernels::load(const Driver& driver, Context context, const void* image, std::string* error) {
  if (image == nullptr) {
    const char* const why = why_no_kernels();
    *error = why == nullptr ? "no kernel image was given" : std::string("built without nvcc: ") + why;
    return nullptr;
  }
  std::unique_ptr<Kernels> kernels(new Kernels(driver, context));
  return kernels->make(image, error) ? std::move(kernels) : nullptr;
}

bool Kernels::make(const void* image, std::string* error) {
  static_assert(std::size(kTypeNames) == kTypes && std::size(kOperationNames) == kOperations);
  const Current current(driver_, context_);
  if (current.result() != kSuccess) {
    *error = driver_.say("cuCtxPushCurrent", current.result());
    return false;
  }
  Result result = driver_.module_load_data(&module_, image);
  if (result != kSuccess) {
    module_ = nullptr;
    *error = driver_.say("cuModuleLoadData", result) +
             " (the kernels need compute capability 8.0, and a driver as new as the nvcc that compiled them)";
    return false;
  }
  const auto find = [&](Function* function, const std::string& name) {
    result = driver_.module_function(function, module_, name.c_str());
    if (result != kSuccess) *error = driver_.say("cuModuleGetFunction", result) + " (" + name + ")";
    return result == kSuccess;
  };
  if (!find(&gather_, "weft_gather") || !find(&scatter_, "weft_scatter") || !find(&persistent_, "weft_persistent"))
    return false;
  for (std::size_t type = 0; type < kTypes; ++type) {
    for (std::size_t operation = 0; operation < kOperations; ++operation) {
      const std::string name = std::string("weft_reduce_") + kTypeNames[type] + "_" + kOperationNames[operation];
      if (!find(&reduce_[type][operation], name)) return false;
    }
  }
  return true;
}

Kernels::~Kernels() {
  if (module_ == nullptr) return;
  const Current current(driver_, context_);
  static_cast<void>(driver_.module_unload(module_));  // an error means that a destroyed context has unloaded it
}

Result Kernels::launch(Function kernel, std::uint64_t blocks, void* job, Stream stream) const noexcept {
  if (blocks > kBlocksMax) return kInvalidValue;
  const Current current(driver_, context_);
  if (current.result() != kSuccess) return current.result();
  void* parameters[] = {job};
  return driver_.launch_kernel(kernel, static_cast<unsigned>(blocks), 1, 1, kBlockThreads, 1, 1, 0, stream, parameters,
                               nullptr);
}

Result Kernels::move(Function kernel, const PieceTable& table, std::uint64_t begin_bytes, std::uint64_t end_bytes,
                     Address contiguous, Stream stream) const noexcept {
  if (begin_bytes == end_bytes) return kSuccess;
  if (begin_bytes > end_bytes || table.count == 0 || table.pieces % alignof(Piece) != 0) return kInvalidValue;
  const std::uint64_t bytes = end_bytes - begin_bytes;
  std::uint64_t chunk_bytes = kChunkBytesMin;
  while (chunk_bytes < kChunkBytesMax && bytes / chunk_bytes > kChunksWanted) chunk_bytes *= 2;
  const std::uint64_t chunks = quotient_up(bytes + contiguous % kLineBytes, chunk_bytes);
  PiecesJob job{table.pieces, table.count, begin_bytes, end_bytes, contiguous, chunk_bytes};
  return launch(kernel, quotient_up(chunks, kBlockThreads / kWarpLanes), &job, stream);
}

Result Kernels::gather(const PieceTable& from, std::uint64_t begin_bytes, std::uint64_t end_bytes, Address contiguous,
                       Stream stream) const noexcept {
  return move(gather_, from, begin_bytes, end_bytes, contiguous, stream);
}

Result Kernels::scatter(Address contiguous, const PieceTable& to, std::uint64_t begin_bytes, std::uint64_t end_bytes,
                        Stream stream) const noexcept {
  return move(scatter_, to, begin_bytes, end_bytes, contiguous, stream);
}

Result Kernels::start_persistent(const PersistentLaunch& job, Stream stream) const noexcept {
  PersistentLaunch told = job;
  return launch(persistent_, kPersistentBlocks, &told, stream);
}

Result Kernels::reduce(ElementType type, Operation operation, const Reduction& reduction,
                       Stream stream) const noexcept {
  const auto row = static_cast<std::size_t>(type), column = static_cast<std::size_t>(operation);
  if (row >= kTypes || column >= kOperations) return kInvalidValue;
  const std::uint64_t element_bytes = kElementBytes[row];
  if ((reduction.a | reduction.b | reduction.out | reduction.also) % element_bytes != 0) return kInvalidValue;
  if (reduction.elements == 0) return kSuccess;
  ReduceJob job = shaped(reduction, element_bytes);
  const std::uint64_t others = job.elements - job.words * (kWordBytes / element_bytes);
  const std::uint64_t blocks = std::max(quotient_up(job.words, std::uint64_t{kBlockThreads} * kBatch),
                                        quotient_up(others, std::uint64_t{kBlockThreads} * kElementBatch));
  return launch(reduce_[row][column], blocks, &job, stream);
}

}  // namespace weft::gpu
