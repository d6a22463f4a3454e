// The two ends of bench_stages(): what each way of sending and receiving has in common.
#pragma once

#include <sys/socket.h>
#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "bench/native/loops/stages_bench.h"

namespace weft::bench::stages {

inline constexpr std::size_t kTrainBytesMax = 65'000;
inline constexpr std::size_t kSlotBytes = 65'536;  // the largest train that GRO delivers
inline constexpr std::size_t kTrains = 4;          // sent and received by a call, as in weft's UDP datapath
inline constexpr std::size_t kDatagrams = 32;      // the same without trains
inline constexpr std::size_t kControlBytes = 64;
inline constexpr std::size_t kSegmentsMax = 64;  // of a train; older kernels take no more
inline constexpr std::size_t kHeaderBytes = 32;  // about as long as weft's

// Copies bytes and returns a checksum, or 0 if it computes none. Null: this machine has none of that kind.
// plain: memcpy. streaming: with non-temporal stores. checked: weft's own copy, which computes a CRC-32C.
// checked_streaming: the CRC in a first pass, then as streaming.
using Copy = std::uint32_t (*)(std::uint8_t* to, const std::uint8_t* from, std::size_t bytes);
Copy copy_of(const std::string& kind);
// Makes non-temporal stores visible to other threads in order; called before messages are handed over.
void settle_copies();

// Walks over the part of a buffer that a train divides, again and again.
class Walk {
 public:
  Walk(std::size_t buffer_bytes, std::size_t train_bytes) : end_(buffer_bytes / train_bytes * train_bytes) {}
  std::size_t pass(std::size_t bytes) {
    if (at_ + bytes > end_) at_ = 0;
    at_ += bytes;
    return at_ - bytes;
  }

 private:
  std::size_t end_, at_ = 0;
};

// The headers of a call of sendmmsg or recvmmsg.
struct Batch {
  mmsghdr headers[kDatagrams];
  iovec vectors[kTrains * kSegmentsMax * 2];
  alignas(8) char control[kDatagrams][kControlBytes];
};

// Payload that a sender has yet to send, and what it counts.
struct Outgoing {
  const StagesPlan* plan;
  int descriptor;
  std::size_t train_bytes;
  Walk walk;
  bool gathers = false;  // each datagram begins with a header that lies elsewhere
  std::int64_t calls = 0, completions = 0, copied = 0;
  std::uint32_t checksum = 0;

  // Sets up the headers of the next `count` messages; with GSO each is cut into datagrams.
  void fill(Batch* batch, std::size_t count, std::size_t message_bytes, bool cuts);
  // The vectors of a message; returns how many.
  std::size_t gather(std::size_t message_bytes, iovec* out);
  // The address of the next payload; computes the CRC of each datagram if the plan asks for it.
  const std::uint8_t* next(std::size_t bytes);
};

// Where a receiver puts payload, and what it counts.
struct Incoming {
  const StagesPlan* plan;
  int descriptor;
  std::size_t train_bytes;
  Walk expected;
  std::size_t placed = 0;  // messages whose memory is in use
  std::int64_t calls = 0, messages = 0, wrong = 0;
  std::uint32_t checksum = 0;

  // Where the message after the next `ahead` ones goes, if each has this much room. Old ones are overwritten.
  std::uint8_t* place(std::size_t ahead, std::size_t each) const;
  // Counts a message and compares its first words with what was sent.
  void arrived(const std::uint8_t* data, std::size_t bytes);
};

class Sender {
 public:
  virtual ~Sender() = default;
  // All are called by the thread that sends. False, and `missing`: what the kernel lacks.
  virtual bool open(std::string* missing) = 0;
  // Sends the next messages; returns their bytes, or -1 and an error.
  virtual std::int64_t send(std::string* error) = 0;
  // Waits until the kernel has released all memory.
  virtual bool finish(std::string* error) = 0;
};

class Receiver {
 public:
  virtual ~Receiver() = default;
  virtual bool open(std::string* missing) = 0;
  // Takes messages that have arrived, without waiting; returns their bytes, or -1 and an error.
  virtual std::int64_t receive(std::string* error) = 0;
};

std::unique_ptr<Sender> socket_sender(Outgoing* outgoing);
std::unique_ptr<Receiver> socket_receiver(Incoming* incoming);
std::unique_ptr<Sender> ring_sender(Outgoing* outgoing);
std::unique_ptr<Receiver> ring_receiver(Incoming* incoming);

// "SO_ZEROCOPY: Protocol not available", with the text of an errno value.
std::string refused(const char* what, int number);
bool set_option(int descriptor, int level, int option, int value, const char* name, std::string* missing);

}  // namespace weft::bench::stages
