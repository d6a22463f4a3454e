// Parameters of the kernels: one plain struct per kernel, laid out alike on host and GPU.
#pragma once

#include <cstdint>

namespace weft::gpu {

// A contiguous part of a message. A table of pieces is sorted by offset and has no overlaps. Pieces may be empty. Bytes
// of the message that belong to no piece are not touched.
struct Piece {
  std::uint64_t address;
  std::uint64_t bytes;
  std::uint64_t offset_bytes;  // where the piece begins in the message
};
static_assert(sizeof(Piece) == 24);

// Sets the offsets of pieces that follow one another in a message. Returns the message's size.
inline std::uint64_t lay_out(Piece* pieces, std::uint64_t count) noexcept {
  std::uint64_t bytes = 0;
  for (std::uint64_t i = 0; i < count; bytes += pieces[i++].bytes) pieces[i].offset_bytes = bytes;
  return bytes;
}

// Copies bytes [begin, end) of a message between its pieces and a contiguous buffer.
struct PiecesJob {
  std::uint64_t pieces;  // address of the table of pieces
  std::uint64_t count;
  std::uint64_t begin_bytes, end_bytes;
  std::uint64_t contiguous;  // address of the buffer; it begins with byte `begin_bytes` of the message
  // How many bytes of the buffer each warp handles: a multiple of kLineBytes, less than 4 GB.
  std::uint64_t chunk_bytes;
};

// A copy job of the persistent kernel, in one of its slots. Each block of the persistent kernel copies some of the
// job's chunks.
struct PersistentJob {
  PiecesJob pieces;
  Piece only;            // the table of pieces, if there is a single piece
  std::uint64_t chunks;  // number of chunks of all blocks together
  std::uint32_t gathers;
  std::uint32_t generation;  // number of the launch of the persistent kernel that must do this job
  // Number of the job, written last. Jobs are numbered from 1; the number wraps around and skips 0.
  std::uint32_t number;
};
inline constexpr unsigned kPersistentJobs = 256;   // number of slots; job n is in slot n % kPersistentJobs
inline constexpr unsigned kPersistentBlocks = 16;  // enough blocks for the bandwidth of a PCIe bus

// State in pinned memory, shared by the host and the persistent kernel.
struct PersistentBoard {
  PersistentJob jobs[kPersistentJobs];
  // Launches whose generation is at most this number end once they have no more jobs.
  alignas(128) std::uint32_t leave;
  alignas(128) std::uint32_t done[kPersistentBlocks];  // number of each block's last finished job
};
struct PersistentLaunch {
  std::uint64_t board;       // address of the PersistentBoard
  std::uint32_t first;       // number of the first job of this launch
  std::uint32_t generation;  // generation of this launch
};

// Computes out[i] = a[i] op b[i], and writes it to `also` too unless that is 0. Most elements are handled in 16-byte
// words; those before the first and after the last word are handled one by one.
struct ReduceJob {
  std::uint64_t a, b, out, also;
  std::uint64_t elements;
  std::uint64_t head_elements;  // number of elements before the first word
  std::uint64_t words;          // number of words; each is aligned in `out` and `also`
};

inline constexpr unsigned kWordBytes = 16;   // widest memory access of a thread
inline constexpr unsigned kLineBytes = 128;  // chunks begin at multiples of this
inline constexpr unsigned kWarpLanes = 32;
inline constexpr unsigned kBlockThreads = 256;
inline constexpr unsigned kBatch = 4;         // words that a thread loads before it waits for the first one
inline constexpr unsigned kElementBatch = 8;  // elements that a thread loads before it waits for the first one

// Calls X(name, bytes) for each element type. The names are part of the kernels' names, such as weft_reduce_f16_sum.
#define WEFT_REDUCE_TYPES(X) X(f32, 4) X(f16, 2) X(bf16, 2) X(f64, 8) X(i32, 4) X(i64, 8) X(u8, 1)
#define WEFT_REDUCE_OPERATIONS(X, ...) X(sum, ##__VA_ARGS__) X(min, ##__VA_ARGS__) X(max, ##__VA_ARGS__)

#define WEFT_ENUMERATOR(name, ...) name,
enum class ElementType : std::uint8_t { WEFT_REDUCE_TYPES(WEFT_ENUMERATOR) };
// Sums of integers wrap. f16 and bf16 are added in f32 and rounded once, to nearest, ties to even. Of a number and a
// NaN, both the minimum and the maximum are the number, and -0 is less than +0. The bits of a resulting NaN are
// unspecified.
enum class Operation : std::uint8_t { WEFT_REDUCE_OPERATIONS(WEFT_ENUMERATOR) };
#undef WEFT_ENUMERATOR

}  // namespace weft::gpu
