// Copies between pieces and a contiguous buffer. Each warp copies one chunk, so that uneven pieces make no difference.
// Only the requested bytes are written, and a word is read only if all its bytes are requested.
#pragma once

#include "native/gpu/jobs.h"
#include "native/gpu/words_device.cuh"

namespace weft::gpu::device {

// Number of lanes of the warp for which the predicate holds. On the host, where each thread runs alone, the predicate
// is evaluated for all lanes.
template <class Predicate>
WEFT_DEVICE u32 lanes_where(u32 lane, Predicate predicate) {
#if defined(__CUDA_ARCH__)
  return static_cast<u32>(__popc(__ballot_sync(0xffffffffu, predicate(lane))));
#else
  static_cast<void>(lane);
  u32 count = 0;
  for (u32 each = 0; each < kWarpLanes; ++each) count += predicate(each) ? 1 : 0;
  return count;
#endif
}

WEFT_DEVICE u64 piece_offset(u64 pieces, u64 index) { return load<u64>(pieces + index * sizeof(Piece) + 16); }
WEFT_DEVICE Piece load_piece(u64 pieces, u64 index) {
  const u64 at = pieces + index * sizeof(Piece);
  return {load<u64>(at), load<u64>(at + 8), load<u64>(at + 16)};
}

// Index of the last of the pieces [low, high) that begins at or before byte `at`; `low` if none does. The whole warp
// searches together and divides the range by 32 in each step: for 32,768 pieces that takes three dependent reads
// instead of fifteen.
WEFT_DEVICE u64 find_piece(u32 lane, u64 pieces, u64 low, u64 high, u64 at) {
  while (high - low > 1) {
    const u64 step = (high - low + kWarpLanes - 1) / kWarpLanes;
    low += step * lanes_where(lane, [=](u32 each) {
             const u64 probe = low + step * (each + 1);
             return probe < high && piece_offset(pieces, probe) <= at;
           });
    if (high - low > step) high = low + step;
  }
  return low;
}

// Copies 16-byte words to aligned addresses. The source addresses are `skip_bytes` past a multiple of 16.
template <bool kSkips>
WEFT_DEVICE void copy_words(u32 lane, u64 to, u64 from, u32 words, u32 skip_bytes) {
  for (u32 first = lane; first < words; first += kWarpLanes * kBatch) {
    Word batch[kBatch];
    // All loads are issued before any store. Beyond the end, the last word is loaded again, which avoids a branch.
    WEFT_UNROLL
    for (u32 i = 0; i < kBatch; ++i) {
      const u32 word = first + i * kWarpLanes;
      const u64 at = from + u64{sizeof(Word)} * (word < words ? word : words - 1);
      batch[i] = load_anywhere<kSkips>(at, skip_bytes);
    }
    WEFT_UNROLL
    for (u32 i = 0; i < kBatch; ++i) {
      const u32 word = first + i * kWarpLanes;
      if (word < words) store(to + u64{sizeof(Word)} * word, batch[i]);
    }
  }
}

// One lane's part of a warp's copy: 16-byte words, with single bytes at both ends. If source and destination are
// aligned differently, one more word at each end is copied byte by byte, because the source's first and last words may
// contain other bytes.
WEFT_DEVICE void copy_bytes(u32 lane, u64 to, u64 from, u32 bytes) {
  const u32 skip_bytes = static_cast<u32>(from - to) % kWordBytes;
  const u32 spare_bytes = skip_bytes == 0 ? 0 : kWordBytes;
  const u32 head_bytes = static_cast<u32>(0 - to) % kWordBytes + spare_bytes;
  if (bytes < head_bytes + spare_bytes + kWordBytes) {  // at most 62 bytes: perhaps no full word between the ends
    for (u32 i = lane; i < bytes; i += kWarpLanes) store(to + i, load<u8>(from + i));
    return;
  }
  const u32 words = (bytes - head_bytes - spare_bytes) / kWordBytes;
  const u32 tail_at = head_bytes + words * kWordBytes;
  // Head and tail have at most 31 bytes each.
  const bool has_head = lane < head_bytes, has_tail = lane < bytes - tail_at;
  const u8 head = has_head ? load<u8>(from + lane) : u8{0};
  const u8 tail = has_tail ? load<u8>(from + tail_at + lane) : u8{0};
  if (skip_bytes == 0) {
    copy_words<false>(lane, to + head_bytes, from + head_bytes, words, 0);
  } else {
    copy_words<true>(lane, to + head_bytes, from + head_bytes, words, skip_bytes);
  }
  if (has_head) store(to + lane, head);
  if (has_tail) store(to + tail_at + lane, tail);
}

// One lane's part of the work of warp number `warp` in the launch.
template <bool kGathers>
WEFT_DEVICE void move_pieces(const PiecesJob& job, u64 warp, u32 lane) {
  // The first chunk is shorter, so that all other chunks begin at a cache line.
  const u64 skew_bytes = job.contiguous % kLineBytes, range_bytes = job.end_bytes - job.begin_bytes;
  const u64 chunk_end = (warp + 1) * job.chunk_bytes - skew_bytes;
  const u64 end = job.begin_bytes + (chunk_end < range_bytes ? chunk_end : range_bytes);
  const u64 begin = job.begin_bytes + (warp == 0 ? 0 : warp * job.chunk_bytes - skew_bytes);
  if (begin >= end) return;
  u64 index = find_piece(lane, job.pieces, 0, job.count, begin);
  Piece piece = load_piece(job.pieces, index);
  while (piece.offset_bytes < end) {
    const bool last = index + 1 == job.count;
    // Loads the next piece early, while the current piece is copied.
    const Piece next = last ? Piece{0, 0, end} : load_piece(job.pieces, index + 1);
    const u64 piece_end = piece.offset_bytes + piece.bytes;
    const u64 from = piece.offset_bytes > begin ? piece.offset_bytes : begin, to = piece_end < end ? piece_end : end;
    if (from < to) {
      const u64 there = job.contiguous + (from - job.begin_bytes), here = piece.address + (from - piece.offset_bytes);
      copy_bytes(lane, kGathers ? there : here, kGathers ? here : there, static_cast<u32>(to - from));
    }
    if (last) break;
    piece = next;
    ++index;
    // Skips consecutive empty pieces by a search, as there may be very many.
    if (piece.bytes == 0 && piece.offset_bytes < end) {
      index = find_piece(lane, job.pieces, index, job.count, piece.offset_bytes);
      piece = load_piece(job.pieces, index);
    }
  }
}

}  // namespace weft::gpu::device
