// Parameters of the kernels: one plain struct per kernel, with the same layout on host and GPU.
#pragma once

#include <cstdint>

namespace weft::gpu {

// A contiguous part of a message. A table of pieces is sorted by offset without overlaps. Pieces may be empty, and
// bytes of the message that are in no piece are left alone.
struct Piece {
  std::uint64_t address;
  std::uint64_t bytes;
  std::uint64_t offset_bytes;  // its offset in the message
};
static_assert(sizeof(Piece) == 24);

// Sets the offsets of pieces that follow each other in a message; returns the message's size.
inline std::uint64_t lay_out(Piece* pieces, std::uint64_t count) noexcept {
  std::uint64_t bytes = 0;
  for (std::uint64_t i = 0; i < count; bytes += pieces[i++].bytes) pieces[i].offset_bytes = bytes;
  return bytes;
}

// Copies bytes [begin, end) of a message between its pieces and a contiguous buffer.
struct PiecesJob {
  std::uint64_t pieces;  // address of the table
  std::uint64_t count;
  std::uint64_t begin_bytes, end_bytes;
  std::uint64_t contiguous;   // address of byte `begin_bytes` of the message
  std::uint64_t chunk_bytes;  // of the contiguous side, per warp: a multiple of kLineBytes, less than 4 GB
};

// A job of the attendant, in one of its slots: pieces copied by all its blocks, each doing some of the chunks.
struct AttendedJob {
  PiecesJob pieces;
  Piece only;            // the table, if there is a single piece
  std::uint64_t chunks;  // of all blocks together
  std::uint32_t gathers;
  std::uint32_t generation;  // of the launch that must do it
  std::uint32_t number;      // written last; jobs are numbered from 1 and wrap around, without 0
};
inline constexpr unsigned kAttendedJobs = 256;    // number of slots: job n is in slot n % kAttendedJobs
inline constexpr unsigned kAttendantBlocks = 16;  // of kBlockThreads; enough for the bandwidth of a bus

// State shared by the host and the attendant, in pinned memory.
struct AttendantBoard {
  AttendedJob jobs[kAttendedJobs];
  // Launches up to this generation end once they have no job.
  alignas(128) std::uint32_t leave;
  alignas(128) std::uint32_t done[kAttendantBlocks];  // per block: the number of its last job
};
struct AttendJob {
  std::uint64_t board;       // address
  std::uint32_t first;       // number of the launch's first job
  std::uint32_t generation;  // of the launch
};

// out[i] = a[i] op b[i], and the same to `also` if it is not 0: whole words in the middle, single elements at both
// ends.
struct ReduceJob {
  std::uint64_t a, b, out, also;
  std::uint64_t elements;
  std::uint64_t head_elements;  // elements before the first word
  std::uint64_t words;          // aligned in `out` and `also`; 0 if that is impossible
};

inline constexpr unsigned kWordBytes = 16;   // widest access of a thread
inline constexpr unsigned kLineBytes = 128;  // chunks begin at multiples of it
inline constexpr unsigned kWarpLanes = 32;
inline constexpr unsigned kBlockThreads = 256;
inline constexpr unsigned kBatch = 4;         // words that a thread loads before it waits for the first
inline constexpr unsigned kElementBatch = 8;  // the same for single elements

// X(name, bytes): the element types. The names are part of the kernels' names: weft_reduce_f16_sum.
#define WEFT_REDUCE_TYPES(X) X(f32, 4) X(f16, 2) X(bf16, 2) X(f64, 8) X(i32, 4) X(i64, 8) X(u8, 1)
#define WEFT_REDUCE_OPERATIONS(X, ...) X(sum, ##__VA_ARGS__) X(min, ##__VA_ARGS__) X(max, ##__VA_ARGS__)

#define WEFT_ENUMERATOR(name, ...) name,
enum class ElementType : std::uint8_t { WEFT_REDUCE_TYPES(WEFT_ENUMERATOR) };
// Integer sums wrap. f16 and bf16 are summed in f32 and rounded once, to nearest, ties to even. The minimum and the
// maximum of a number and a NaN are the number, and -0 is less than +0. The bits of a resulting NaN are unspecified.
enum class Operation : std::uint8_t { WEFT_REDUCE_OPERATIONS(WEFT_ENUMERATOR) };
#undef WEFT_ENUMERATOR

}  // namespace weft::gpu
