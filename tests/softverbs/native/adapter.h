// The emulated NIC of this process: one thread that accesses memory asynchronously, as hardware does, and one lock for
// all state shared with callers. It starts with the first opened device and stops with the last. It needs its own
// thread, because late packets must arrive while no caller polls, and sleeping callers must be woken.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <unordered_map>

#include "tests/softverbs/native/link.h"
#include "tests/softverbs/native/memory.h"
#include "tests/softverbs/native/network.h"
#include "tests/softverbs/native/objects.h"
#include "tests/softverbs/native/settings.h"

namespace weft::softverbs {

enum class Count { sent, received, lost, reordered, late, duplicated, stalled, refused, full, unreachable, kinds };

class Adapter {
 public:
  static Adapter& the();

  // Defined in adapter.cc:
  Context* open(ibv_device* device, std::uint32_t index);
  void close(Context* context);
  std::int64_t count(Count what) const noexcept { return counts_[static_cast<std::size_t>(what)]; }

  // The caller of the functions below must hold `mutex`, except for poll(), which locks it if the queue is not empty.
  std::mutex mutex;
  Settings settings;
  Memory memory;

  // Defined in completions.cc:
  int poll(Cq* queue, int most, ibv_wc* out);
  void complete(Cq* queue, const ibv_wc& done, bool solicited);
  static void forget(Cq* queue, std::uint32_t pair);
  static void ring(Cq* queue);
  static void raise(Context* context, ibv_event_type type, Qp* pair, Cq* queue);

  // Defined in queue_pairs.cc:
  Qp* add_pair(ibv_pd* pd, const ibv_qp_init_attr& wanted);
  void remove_pair(Qp* pair);
  int modify(Qp* pair, const ibv_qp_attr& wanted, int mask);
  // Moves the queue pair to the error state: flushes its posted requests, and raises `event` if one is given.
  void fail(Qp* pair, std::optional<ibv_event_type> event);
  Qp* find(std::uint32_t number) noexcept;

  // Defined in requester.cc:
  int post_send(Qp* pair, ibv_send_wr* request, ibv_send_wr** bad);
  int bind(Qp* pair, Window* window, const ibv_mw_bind& wanted);
  // Defined in responder.cc:
  static int post_receive(Receives* to, std::uint32_t pieces_most, const ibv_recv_wr* request);
  void flush_receives(Qp* pair);

 private:
  using Nanoseconds = std::int64_t;

  // Defined in adapter.cc:
  void round(std::int64_t now_ns, bool* more, std::int64_t* due_ns);
  void run();
  bool take_arrivals(Nanoseconds now_ns);
  void arrive(const Packet& packet, const std::uint8_t* payload);
  Link::Sent send(Nanoseconds now_ns, const Packet& packet, const std::uint8_t* payload) noexcept;
  void answer(Nanoseconds now_ns, const Packet& packet);
  void touch(Qp* pair);
  void add(Count what) noexcept { ++counts_[static_cast<std::size_t>(what)]; }

  // Defined in requester.cc:
  bool transmit(Nanoseconds now_ns, Qp* pair);
  bool begin(Nanoseconds now_ns, Qp* pair, Request* request);
  bool bind_now(Qp* pair, Request* request);
  enum class Left { went, waits, failed };
  Left send_packet(Nanoseconds now_ns, Qp* pair, Request* request);
  bool gather(const Qp& pair, const Request& request, std::uint32_t offset, std::uint32_t bytes) noexcept;
  void retire(Qp* pair);
  void complete_request(Qp* pair, const Request& request, ibv_wc_status status);
  void fail_request(Qp* pair, std::size_t which, ibv_wc_status status);
  void go_back(Qp* pair);
  void acknowledge(Nanoseconds now_ns, Qp* pair, std::uint32_t next_psn);
  void on_answer(Nanoseconds now_ns, Qp* pair, const Packet& packet);
  void on_time(Nanoseconds now_ns, Qp* pair);
  Nanoseconds due_ns(Nanoseconds now_ns, const Qp& pair) const noexcept;

  // Defined in responder.cc:
  void on_data(Nanoseconds now_ns, Qp* pair, const Packet& packet, const std::uint8_t* payload);
  bool in_order(Nanoseconds now_ns, Qp* pair, const Packet& packet);
  void on_datagram(Qp* pair, const Packet& packet, const std::uint8_t* payload);
  // The result of handling a packet. RC reports it to the sender, UC does not.
  enum class Verdict { ok, not_ready, invalid, access };
  Verdict place(Qp* pair, const Packet& packet, const std::uint8_t* payload);
  bool take_receive(Qp* pair);
  bool scatter(const Qp& pair, const Receive& receive, std::uint32_t offset, const std::uint8_t* from,
               std::uint32_t bytes);
  void complete_receive(Qp* pair, const Packet& packet, ibv_wc_status status, std::uint32_t bytes);
  void reply(Nanoseconds now_ns, Qp* pair, Kind kind, std::uint32_t psn);

  std::set<Context*> contexts_;
  std::unordered_map<std::uint32_t, std::unique_ptr<Qp>> pairs_;  // queue pairs by number
  std::set<std::uint32_t> busy_;                                  // numbers of the queue pairs with send requests
  std::uint32_t next_number_ = 17;
  Link link_;
  HeldPackets held_;
  std::deque<Packet> answers_;  // acknowledgments and NACKs to send when the peer's socket buffer has room
  std::array<std::uint8_t, kMtuBytesMax> out_{}, in_{};
  std::array<std::atomic<std::int64_t>, static_cast<std::size_t>(Count::kinds)> counts_{};
  std::thread thread_;
  std::mutex opening_;  // held while a device is opened or closed; locked before `mutex`
  bool asleep_ = false, stopping_ = false;
};

std::int64_t now_ns() noexcept;

}  // namespace weft::softverbs
