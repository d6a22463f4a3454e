// What one launch of a kernel is told: the only parameter of each, plain data laid out alike for the host and the GPU.
#pragma once

#include <cstdint>

namespace weft::gpu {

// Bytes of a message that lie together. A table of pieces is sorted by offset and none overlaps the next; a piece may
// be empty, and bytes of the message that no piece has are left alone.
struct Piece {
  std::uint64_t address;
  std::uint64_t bytes;
  std::uint64_t offset_bytes;  // where in the message it begins
};
static_assert(sizeof(Piece) == 24);

// Sets where each begins in a message that has them one after another; the message's bytes.
inline std::uint64_t lay_out(Piece* pieces, std::uint64_t count) noexcept {
  std::uint64_t bytes = 0;
  for (std::uint64_t i = 0; i < count; bytes += pieces[i++].bytes) pieces[i].offset_bytes = bytes;
  return bytes;
}

// Bytes [begin, end) of a message, between its pieces and where they lie together.
struct PiecesJob {
  std::uint64_t pieces;  // address of the table
  std::uint64_t count;
  std::uint64_t begin_bytes, end_bytes;
  std::uint64_t contiguous;   // address of byte `begin_bytes` of the message
  std::uint64_t chunk_bytes;  // of the contiguous side, for one warp: a multiple of kLineBytes, less than 4 GB
};

// A job of the kernel that stays, in one of its slots: pieces moved by all of its blocks, each some of the chunks.
struct AttendedJob {
  PiecesJob pieces;
  Piece only;            // the table, of what lies in one piece
  std::uint64_t chunks;  // of all blocks together
  std::uint32_t gathers;
  std::uint32_t generation;  // of the launch that is to do it
  std::uint32_t number;      // written last; jobs are numbered from 1 on, and wrap
};
inline constexpr unsigned kAttendedJobs = 256;    // slots: job n lies in slot n % kAttendedJobs
inline constexpr unsigned kAttendantBlocks = 16;  // of kBlockThreads: enough for what a bus carries

// What the host and the kernel that stays tell each other, in pinned memory.
struct AttendantBoard {
  AttendedJob jobs[kAttendedJobs];
  // The last launch that is to end once it has no job, with all before it.
  alignas(128) std::uint32_t leave;
  alignas(128) std::uint32_t done[kAttendantBlocks];  // by each block: the number of its last job
};
struct AttendJob {
  std::uint64_t board;       // address
  std::uint32_t first;       // number of its first job
  std::uint32_t generation;  // of the launch
};

// out[i] = a[i] op b[i], and the same to `also` where that is not 0: words in the middle, elements on both sides.
struct ReduceJob {
  std::uint64_t a, b, out, also;
  std::uint64_t elements;
  std::uint64_t head_elements;  // before the first of the words
  std::uint64_t words;          // aligned in `out` and `also`; none where that cannot be
};

inline constexpr unsigned kWordBytes = 16;   // the widest access of a thread
inline constexpr unsigned kLineBytes = 128;  // chunks begin at a multiple of it
inline constexpr unsigned kWarpLanes = 32;
inline constexpr unsigned kBlockThreads = 256;
inline constexpr unsigned kBatch = 4;         // words that a thread asks for before it waits for the first
inline constexpr unsigned kElementBatch = 8;  // or elements, where there are no words

// X(name, bytes): the types of elements. The names are those of the kernels too: weft_reduce_f16_sum.
#define WEFT_REDUCE_TYPES(X) X(f32, 4) X(f16, 2) X(bf16, 2) X(f64, 8) X(i32, 4) X(i64, 8) X(u8, 1)
#define WEFT_REDUCE_OPERATIONS(X, ...) X(sum, ##__VA_ARGS__) X(min, ##__VA_ARGS__) X(max, ##__VA_ARGS__)

#define WEFT_ENUMERATOR(name, ...) name,
enum class ElementType : std::uint8_t { WEFT_REDUCE_TYPES(WEFT_ENUMERATOR) };
// Sums of whole numbers wrap. Of floating point, f16 and bf16 are summed in f32 and rounded once, to nearest, ties to
// even; the lesser and the greater of a number and a NaN is the number, and -0 is less than +0. Which NaN comes out is
// not said.
enum class Operation : std::uint8_t { WEFT_REDUCE_OPERATIONS(WEFT_ENUMERATOR) };
#undef WEFT_ENUMERATOR

}  // namespace weft::gpu
