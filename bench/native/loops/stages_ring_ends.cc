// Sends and receives trains through io_uring: SENDMSG, SEND_ZC out of a registered buffer, and multishot RECVMSG into
// a ring of provided buffers.
#include <linux/udp.h>
#include <netinet/in.h>
#include <sys/mman.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>

#include "bench/native/loops/stages_ends.h"
#include "bench/native/loops/stages_ring.h"

namespace weft::bench::stages {
namespace {

class RingSender final : public Sender {
 public:
  explicit RingSender(Outgoing* outgoing) : out_(*outgoing), zero_copy_(out_.plan->sender == "ring_zerocopy") {}

  bool open(std::string* missing) override {
    // IORING_OP_SEND_ZC takes no control messages, so its socket cuts all messages.
    const int cut = zero_copy_ ? static_cast<int>(out_.plan->datagram_bytes) : 0;
    if (!set_option(out_.descriptor, IPPROTO_UDP, UDP_SEGMENT, cut, "UDP_SEGMENT", missing)) return false;
    if (!ring_.open(zero_copy_ ? kOpSendZc : static_cast<std::uint8_t>(IORING_OP_SENDMSG), missing)) return false;
    if (!zero_copy_) return true;
    const iovec all{const_cast<std::uint8_t*>(out_.plan->source), out_.plan->buffer_bytes};
    return ring_.register_with(IORING_REGISTER_BUFFERS, &all, 1, "registering a buffer with io_uring", missing);
  }

  std::int64_t send(std::string* error) override {
    if (!zero_copy_) out_.fill(&batch_, kTrains, out_.train_bytes, true);
    for (std::size_t i = 0; i < kTrains; ++i) {
      io_uring_sqe* const entry = ring_.prepare();
      entry->fd = out_.descriptor;
      entry->msg_flags = MSG_NOSIGNAL;
      if (zero_copy_) {
        entry->opcode = kOpSendZc;
        entry->addr = reinterpret_cast<std::uint64_t>(out_.next(out_.train_bytes));
        entry->len = static_cast<std::uint32_t>(out_.train_bytes);
        entry->ioprio = kFixedBuffer | kReportUsage;
      } else {
        entry->opcode = IORING_OP_SENDMSG;
        entry->addr = reinterpret_cast<std::uint64_t>(&batch_.headers[i].msg_hdr);
        entry->len = 1;
      }
    }
    ++out_.calls;
    int failed = ring_.enter(kTrains);
    awaited_ += static_cast<int>(kTrains);
    while (failed == 0 && (failed = reap()) == 0 && awaited_ > 0) {
      ++out_.calls;
      failed = ring_.enter(1);
    }
    if (failed == 0) return static_cast<std::int64_t>(kTrains * out_.train_bytes);
    *error = refused("sending through io_uring", -failed);
    return -1;
  }

  bool finish(std::string* error) override {
    for (int tries = 0; notifications_ > out_.completions; ++tries) {
      if (tries == 2'000 || ring_.enter(0) != 0 || reap() != 0) {
        *error = "io_uring did not tell of all zero-copy sends that they were complete";
        return false;
      }
      if (notifications_ > out_.completions) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return true;
  }

 private:
  // Takes all completions. A zero-copy send has two: its result, and a notification that its memory is free.
  int reap() {
    int failed = 0;
    for (const io_uring_cqe* one = ring_.peek(); one != nullptr; one = ring_.peek()) {
      if ((one->flags & kNotification) != 0) {
        ++out_.completions;
        if ((static_cast<std::uint32_t>(one->res) & kUsageCopied) != 0) ++out_.copied;
      } else {
        --awaited_;
        if ((one->flags & kMore) != 0) ++notifications_;
        if (one->res < 0) failed = one->res;
      }
      ring_.done();
    }
    return failed;
  }

  Outgoing& out_;
  const bool zero_copy_;
  int awaited_ = 0;
  std::int64_t notifications_ = 0;
  Ring ring_;
  Batch batch_{};
};

class RingReceiver final : public Receiver {
 public:
  explicit RingReceiver(Incoming* incoming) : in_(*incoming) {}
  ~RingReceiver() override {
    if (buffers_ != nullptr) ::munmap(buffers_, kBuffers * sizeof(RingBuffer));
  }

  bool open(std::string* missing) override {
    if (!set_option(in_.descriptor, IPPROTO_UDP, UDP_GRO, 1, "UDP_GRO", missing)) return false;
    if (!ring_.open(kOpSendZc, missing)) return false;  // multishot RECVMSG came with it, in Linux 6.0
    void* const made =
        ::mmap(nullptr, kBuffers * sizeof(RingBuffer), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (made == MAP_FAILED) {
      *missing = refused("mmap", errno);
      return false;
    }
    buffers_ = static_cast<RingBuffer*>(made);
    RingBufferPlan plan{};
    plan.address = reinterpret_cast<std::uint64_t>(buffers_);
    plan.entries = kBuffers;
    if (!ring_.register_with(kRegisterBufferRing, &plan, 1, "IORING_REGISTER_PBUF_RING", missing)) return false;
    for (std::uint16_t id = 0; id < kBuffers; ++id) provide(id);
    message_.msg_controllen = CMSG_SPACE(sizeof(int));
    return true;
  }

  std::int64_t receive(std::string* error) override {
    const io_uring_cqe* one = ring_.peek();
    if (one == nullptr) {
      if (!armed_) arm();
      ++in_.calls;
      if (const int failed = ring_.enter(0); failed != 0) {
        *error = refused("io_uring_enter", -failed);
        return -1;
      }
    }
    std::int64_t bytes = 0;
    for (one = ring_.peek(); one != nullptr; one = ring_.peek()) {
      armed_ = (one->flags & kMore) != 0;
      if (one->res >= 0) {
        bytes += take(*one);
      } else if (one->res != -ENOBUFS) {
        *error = refused("receiving through io_uring", -one->res);
        return -1;
      }
      ring_.done();
    }
    return bytes;
  }

 private:
  static constexpr std::uint16_t kBuffers = 64;  // a power of two, as io_uring wants
  // Payload of kSlotBytes has its head and control messages before it.
  static constexpr std::size_t kRoom = kSlotBytes + 4096;

  void arm() {
    io_uring_sqe* const entry = ring_.prepare();
    entry->opcode = IORING_OP_RECVMSG;
    entry->fd = in_.descriptor;
    entry->addr = reinterpret_cast<std::uint64_t>(&message_);
    entry->len = 1;
    entry->flags = IOSQE_BUFFER_SELECT;
    entry->ioprio = kRecvMultishot;
    entry->buf_group = 0;
    armed_ = true;
  }

  void provide(std::uint16_t id) {
    RingBuffer& next = buffers_[tail_ % kBuffers];
    places_[id] = in_.place(0, kRoom);
    ++in_.placed;
    next.address = reinterpret_cast<std::uint64_t>(places_[id]);
    next.bytes = static_cast<std::uint32_t>(kRoom);
    next.id = id;
    std::atomic_ref<std::uint16_t>(buffers_[0].tail).store(++tail_, std::memory_order_release);
  }

  std::int64_t take(const io_uring_cqe& one) {
    const auto id = static_cast<std::uint16_t>(one.flags >> IORING_CQE_BUFFER_SHIFT);
    ReceivedHead head;
    std::memcpy(&head, places_[id], sizeof head);
    in_.arrived(places_[id] + sizeof head + message_.msg_controllen, head.payload_bytes);
    provide(id);
    return head.payload_bytes;
  }

  Incoming& in_;
  Ring ring_;
  RingBuffer* buffers_ = nullptr;
  std::uint8_t* places_[kBuffers] = {};
  std::uint16_t tail_ = 0;
  bool armed_ = false;
  msghdr message_{};
};

}  // namespace

std::unique_ptr<Sender> ring_sender(Outgoing* outgoing) { return std::make_unique<RingSender>(outgoing); }
std::unique_ptr<Receiver> ring_receiver(Incoming* incoming) { return std::make_unique<RingReceiver>(incoming); }

}  // namespace weft::bench::stages
