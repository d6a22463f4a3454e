// Sends and receives through system calls for many messages, with and without trains and zero copy.
// clang-format off
#include <time.h>  // linux/errqueue.h uses timespec
// clang-format on
#include <linux/errqueue.h>
#include <linux/udp.h>
#include <netinet/in.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>
#include <vector>

#include "bench/native/loops/stages_ends.h"
#include "native/wire/crc32c.h"

#ifndef SO_EE_CODE_ZEROCOPY_COPIED
#define SO_EE_CODE_ZEROCOPY_COPIED 1
#endif

namespace weft::bench::stages {

std::string refused(const char* what, int number) { return std::string(what) + ": " + std::strerror(number); }

bool set_option(int descriptor, int level, int option, int value, const char* name, std::string* missing) {
  if (::setsockopt(descriptor, level, option, &value, sizeof value) == 0) return true;
  *missing = refused(name, errno);
  return false;
}

const std::uint8_t* Outgoing::next(std::size_t bytes) {
  const std::uint8_t* const data = plan->source + walk.pass(bytes);
  if (plan->copy.starts_with("checked")) {
    for (std::size_t at = 0; at < bytes; at += plan->datagram_bytes)
      checksum ^= wire::crc32c(0, data + at, std::min(plan->datagram_bytes, bytes - at));
  }
  return data;
}

std::size_t Outgoing::gather(std::size_t message_bytes, iovec* out) {
  static std::uint8_t header[kHeaderBytes];
  if (!gathers) {
    out[0] = {const_cast<std::uint8_t*>(next(message_bytes)), message_bytes};
    return 1;
  }
  std::size_t used = 0;
  for (std::size_t at = 0; at < message_bytes; at += plan->datagram_bytes) {
    const std::size_t payload_bytes = plan->datagram_bytes - kHeaderBytes;
    out[used++] = {header, kHeaderBytes};
    out[used++] = {const_cast<std::uint8_t*>(next(payload_bytes)), payload_bytes};
  }
  return used;
}

void Outgoing::fill(Batch* batch, std::size_t count, std::size_t message_bytes, bool cuts) {
  iovec* vectors = batch->vectors;
  for (std::size_t i = 0; i < count; ++i) {
    msghdr& header = batch->headers[i].msg_hdr;
    header = msghdr{};
    header.msg_iov = vectors;
    header.msg_iovlen = gather(message_bytes, vectors);
    vectors += header.msg_iovlen;
    if (!cuts) continue;
    header.msg_control = batch->control[i];
    header.msg_controllen = CMSG_SPACE(sizeof(std::uint16_t));
    cmsghdr* const said = CMSG_FIRSTHDR(&header);
    said->cmsg_level = IPPROTO_UDP;
    said->cmsg_type = UDP_SEGMENT;
    said->cmsg_len = CMSG_LEN(sizeof(std::uint16_t));
    const auto size = static_cast<std::uint16_t>(plan->datagram_bytes);
    std::memcpy(CMSG_DATA(said), &size, sizeof size);
  }
}

std::uint8_t* Incoming::place(std::size_t ahead, std::size_t each) const {
  return plan->target + (placed + ahead) % (plan->buffer_bytes / each) * each;
}

void Incoming::arrived(const std::uint8_t* data, std::size_t bytes) {
  const std::size_t at = expected.pass(bytes);
  ++messages;
  if (bytes < 8 || std::memcmp(data, plan->source + at, 8) != 0) ++wrong;
}

namespace {

class SocketSender final : public Sender {
 public:
  explicit SocketSender(Outgoing* outgoing)
      : out_(*outgoing), trains_(out_.plan->sender != "mmsg"), zero_copy_(out_.plan->sender.starts_with("zerocopy")) {}

  bool open(std::string* missing) override {
    if (trains_ && !set_option(out_.descriptor, IPPROTO_UDP, UDP_SEGMENT, 0, "UDP_SEGMENT", missing)) return false;
    return !zero_copy_ || set_option(out_.descriptor, SOL_SOCKET, SO_ZEROCOPY, 1, "SO_ZEROCOPY", missing);
  }

  std::int64_t send(std::string* error) override {
    const std::size_t count = trains_ ? kTrains : kDatagrams;
    for (int tries = 0; tries < kTries; ++tries) {
      const std::size_t each = trains_ ? out_.train_bytes : out_.plan->datagram_bytes;
      out_.fill(&batch_, count, each, trains_);
      const std::size_t done = send_batch(count);
      if (done > 0) return static_cast<std::int64_t>(done * each);
      if (errno == EMSGSIZE && out_.train_bytes > out_.plan->datagram_bytes) {
        // A message whose memory is not copied has at most as many pieces as a packet has fragments.
        out_.train_bytes -= out_.plan->datagram_bytes;
      } else if (errno != ENOBUFS && errno != EINTR) {
        break;
      }
    }
    *error = refused("sendmmsg", errno);
    return -1;
  }

  bool finish(std::string* error) override {
    for (int tries = 0; zero_copy_ && out_.completions < submitted_; ++tries) {
      reap();
      if (tries == kTries) {
        *error = "the kernel did not tell of all MSG_ZEROCOPY sends that they were complete";
        return false;
      }
      if (out_.completions < submitted_) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return true;
  }

 private:
  static constexpr int kTries = 2'000;

  // Returns how many messages were sent; errno says why none or not all.
  std::size_t send_batch(std::size_t count) {
    const int flags = MSG_NOSIGNAL | (zero_copy_ ? MSG_ZEROCOPY : 0);
    std::size_t done = 0;
    int failed = 0;
    while (done < count && failed == 0) {
      ++out_.calls;
      const int sent = ::sendmmsg(out_.descriptor, batch_.headers + done, static_cast<unsigned>(count - done), flags);
      failed = sent > 0 ? 0 : errno;
      done += static_cast<std::size_t>(std::max(sent, 0));
      if (zero_copy_) reap();
    }
    submitted_ += static_cast<std::int64_t>(done);
    errno = failed;
    return done;
  }

  // Reads completions from the error queue. Each stands for a range of messages.
  void reap() {
    for (;;) {
      alignas(8) char control[128];
      msghdr header{};
      header.msg_control = control;
      header.msg_controllen = sizeof control;
      if (::recvmsg(out_.descriptor, &header, MSG_ERRQUEUE | MSG_DONTWAIT) < 0) return;
      for (cmsghdr* at = CMSG_FIRSTHDR(&header); at != nullptr; at = CMSG_NXTHDR(&header, at)) {
        if (at->cmsg_level != SOL_IP || at->cmsg_type != IP_RECVERR) continue;
        sock_extended_err said;
        std::memcpy(&said, CMSG_DATA(at), sizeof said);
        if (said.ee_origin != SO_EE_ORIGIN_ZEROCOPY) continue;
        const std::int64_t count = std::int64_t{said.ee_data} - std::int64_t{said.ee_info} + 1;
        out_.completions += count;
        if ((said.ee_code & SO_EE_CODE_ZEROCOPY_COPIED) != 0) out_.copied += count;
      }
    }
  }

  Outgoing& out_;
  const bool trains_, zero_copy_;
  std::int64_t submitted_ = 0;
  Batch batch_{};
};

class SocketReceiver final : public Receiver {
 public:
  explicit SocketReceiver(Incoming* incoming)
      : in_(*incoming), trains_(in_.plan->receiver != "mmsg"), copy_(copy_of(in_.plan->copy)) {
    if (copy_ != nullptr) staging_.resize(kTrains * kSlotBytes);
  }

  bool open(std::string* missing) override {
    if (copy_ == nullptr && in_.plan->copy != "none") {
      *missing = "no copy of that kind is built for this processor";
      return false;
    }
    return !trains_ || set_option(in_.descriptor, IPPROTO_UDP, UDP_GRO, 1, "UDP_GRO", missing);
  }

  std::int64_t receive(std::string* error) override {
    const std::size_t count = trains_ ? kTrains : kDatagrams;
    const std::size_t each = trains_ ? kSlotBytes : in_.plan->datagram_bytes;
    for (std::size_t i = 0; i < count; ++i) {
      batch_.vectors[i] = {copy_ != nullptr ? &staging_[i * each] : in_.place(i, each), each};
      msghdr& header = batch_.headers[i].msg_hdr;
      header = msghdr{};
      header.msg_iov = &batch_.vectors[i];
      header.msg_iovlen = 1;
      header.msg_control = batch_.control[i];
      header.msg_controllen = kControlBytes;
    }
    ++in_.calls;
    const int got = ::recvmmsg(in_.descriptor, batch_.headers, static_cast<unsigned>(count), MSG_DONTWAIT, nullptr);
    if (got < 0 && errno != EAGAIN && errno != EINTR) {
      *error = refused("recvmmsg", errno);
      return -1;
    }
    std::int64_t bytes = 0;
    for (int i = 0; i < got; ++i) {
      const auto* data = static_cast<const std::uint8_t*>(batch_.vectors[i].iov_base);
      in_.arrived(data, batch_.headers[i].msg_len);
      if (copy_ != nullptr) copy_out(data, batch_.headers[i].msg_len);
      bytes += batch_.headers[i].msg_len;
    }
    if (copy_ != nullptr) settle_copies();
    in_.placed += static_cast<std::size_t>(std::max(got, 0));
    return bytes;
  }

 private:
  void copy_out(const std::uint8_t* data, std::size_t bytes) {
    for (std::size_t at = 0; at < bytes; at += in_.plan->datagram_bytes) {
      const std::size_t piece = std::min(in_.plan->datagram_bytes, bytes - at);
      in_.checksum ^= copy_(in_.plan->target + target_.pass(piece), data + at, piece);
    }
  }

  Incoming& in_;
  const bool trains_;
  const Copy copy_;
  Walk target_{in_.plan->buffer_bytes, in_.train_bytes};
  std::vector<std::uint8_t> staging_;
  Batch batch_{};
};

}  // namespace

std::unique_ptr<Sender> socket_sender(Outgoing* outgoing) { return std::make_unique<SocketSender>(outgoing); }
std::unique_ptr<Receiver> socket_receiver(Incoming* incoming) { return std::make_unique<SocketReceiver>(incoming); }

}  // namespace weft::bench::stages
