// Moves payload between two UDP sockets in one of several ways, without weft's protocol. A thread sends and another one
// receives, and the processor time of each is measured. Also measures copies in memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "bench/native/loops/datagram_bench.h"
#include "native/core/status.h"

namespace weft::bench {

struct StagesPlan {
  // mmsg: sendmmsg of single datagrams. gso: sendmmsg of trains. zerocopy: the same with MSG_ZEROCOPY. ring: trains
  // through io_uring. ring_zerocopy: IORING_OP_SEND_ZC out of a registered buffer. gso_headers,
  // zerocopy_headers: each datagram begins with a header from other memory, as weft's do.
  std::string sender = "gso";
  // mmsg: recvmmsg of single datagrams. gro: recvmmsg of trains. ring: multishot IORING_OP_RECVMSG of trains.
  // none: nobody receives; packets are dropped on their way.
  std::string receiver = "gro";
  // none: the kernel writes to the memory in which payload stays. A kind of copy_of(): it writes to a buffer that stays
  // in the cache, and the receiver copies from there; if the copy computes a CRC, the sender does so, too.
  std::string copy = "none";
  DatagramEnd from, to;
  int from_cpu = -1, to_cpu = -1;  // -1: any
  const std::uint8_t* source = nullptr;
  std::uint8_t* target = nullptr;
  std::size_t buffer_bytes = 0;  // of each of the two
  std::size_t datagram_bytes = 0;
  std::int64_t warm_bytes = 0, bytes = 0;
};

struct StagesResult {
  std::string missing;  // what this kernel lacks; empty: nothing
  std::int64_t bytes = 0, lost_bytes = 0;
  std::int64_t wrong = 0;  // messages that do not begin with the words that were sent
  std::int64_t sender_ns = 0, receiver_ns = 0;
  std::int64_t other_ns = 0;  // of other threads of this process, such as workers of io_uring
  std::int64_t send_calls = 0, receive_calls = 0;
  std::int64_t train_bytes = 0;              // the longest message that was sent
  std::int64_t messages = 0;                 // trains or single datagrams that arrived
  std::int64_t completions = 0, copied = 0;  // of zero-copy sends; copied: the kernel copied after all
};

Status bench_stages(const StagesPlan& plan, StagesResult* out, std::string* error);

// Copies `bytes` in pieces from one buffer to the other, and sets the processor time that this took. `kind`: as in
// StagesPlan::copy. invalid_argument: this machine has no copy of that kind.
Status bench_copy(const std::string& kind, const std::uint8_t* source, std::uint8_t* target, std::size_t buffer_bytes,
                  std::size_t piece_bytes, std::int64_t bytes, std::int64_t* out_ns);

}  // namespace weft::bench
