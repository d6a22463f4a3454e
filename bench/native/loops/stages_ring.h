// io_uring through system calls, without liburing. What Linux has had since 5.19 is declared here, as older headers
// lack it.
#pragma once

#include <linux/io_uring.h>

#include <cstddef>
#include <cstdint>
#include <string>

namespace weft::bench::stages {

inline constexpr unsigned kSingleIssuer = 1U << 12, kDeferTaskrun = 1U << 13;  // IORING_SETUP_
inline constexpr std::uint8_t kOpSendZc = 47;                                  // IORING_OP_SEND_ZC
inline constexpr unsigned kRegisterBufferRing = 22;                            // IORING_REGISTER_PBUF_RING
inline constexpr std::uint16_t kRecvMultishot = 1U << 1, kFixedBuffer = 1U << 2, kReportUsage = 1U << 3;
inline constexpr std::uint32_t kMore = 1U << 1, kNotification = 1U << 3;  // IORING_CQE_F_
inline constexpr std::uint32_t kUsageCopied = 1U << 31;                   // IORING_NOTIF_USAGE_ZC_COPIED

// struct io_uring_buf. In a ring, `tail` of the first one is the ring's tail.
struct RingBuffer {
  std::uint64_t address;
  std::uint32_t bytes;
  std::uint16_t id;
  std::uint16_t tail;
};
// struct io_uring_buf_reg
struct RingBufferPlan {
  std::uint64_t address;
  std::uint32_t entries;
  std::uint16_t group, flags;
  std::uint64_t reserved[3];
};
// struct io_uring_recvmsg_out: precedes name, control messages and payload.
struct ReceivedHead {
  std::uint32_t name_bytes, control_bytes, payload_bytes, flags;
};
static_assert(sizeof(RingBuffer) == 16 && sizeof(RingBufferPlan) == 40 && sizeof(ReceivedHead) == 16);

// A submission and a completion queue. One thread opens and uses it.
class Ring {
 public:
  Ring() = default;
  ~Ring();
  Ring(const Ring&) = delete;
  Ring& operator=(const Ring&) = delete;

  // `opcode` is checked, too. False, and `missing`: what the kernel lacks or refuses.
  bool open(std::uint8_t opcode, std::string* missing);
  bool register_with(unsigned what, const void* argument, unsigned count, const char* name, std::string* missing);
  // The next entry, cleared. There are kEntries at most before enter().
  io_uring_sqe* prepare();
  // Submits what was prepared and runs completions that are due; waits for `wait_for` of them. Negative: -errno.
  int enter(unsigned wait_for);
  // The oldest completion, or null; done() releases it.
  const io_uring_cqe* peek() const;
  void done();

  static constexpr unsigned kEntries = 16, kCompletions = 1024;

 private:
  bool knows(std::uint8_t opcode) const;

  int descriptor_ = -1;
  void* rings_ = nullptr;
  void* entries_map_ = nullptr;
  std::size_t rings_bytes_ = 0, entries_bytes_ = 0;
  io_uring_params params_{};
  io_uring_sqe* entries_ = nullptr;
  io_uring_cqe* completions_ = nullptr;
  unsigned *submit_tail_ = nullptr, *complete_head_ = nullptr, *complete_tail_ = nullptr;
  unsigned prepared_ = 0;
};

}  // namespace weft::bench::stages
