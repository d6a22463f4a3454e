// The work requests of one burst: a chain that is posted with one doorbell; only its last request is signalled.
#pragma once

#include <cstddef>
#include <cstdint>

#include "native/datapath/verbs/ibv.h"
#include "native/wire/burst.h"

namespace weft::datapath {

class WorkRequests {
 public:
  // `id`: the wr_id of all requests. `address`: the peer's address handle on UD queue pairs, else null.
  WorkRequests(std::uint64_t id, ibv_ah* address, std::uint32_t remote_number, std::uint32_t qkey) noexcept
      : id_(id), address_(address), far_number_(remote_number), qkey_(qkey) {}
  WorkRequests(const WorkRequests&) = delete;
  WorkRequests& operator=(const WorkRequests&) = delete;

  // Appends a request that sends one piece of memory; append_piece() adds a second piece to this request.
  ibv_send_wr& append(ibv_wr_opcode opcode, const ibv_sge& piece) noexcept {
    ibv_send_wr& request = requests_[count_];
    request = {};
    request.wr_id = id_;
    request.opcode = opcode;
    request.sg_list = &pieces_[pieces_count_];
    request.num_sge = 1;
    pieces_[pieces_count_++] = piece;
    if (address_ != nullptr) {
      request.wr.ud.ah = address_;
      request.wr.ud.remote_qpn = far_number_;
      request.wr.ud.remote_qkey = qkey_;
    }
    if (count_ != 0) requests_[count_ - 1].next = &request;
    ++count_;
    return request;
  }
  void append_piece(const ibv_sge& piece) noexcept {
    pieces_[pieces_count_++] = piece;
    ++requests_[count_ - 1].num_sge;
  }

  // Posts all requests. At least one must have been appended.
  bool post(ibv_qp* pair) noexcept {
    requests_[count_ - 1].send_flags |= IBV_SEND_SIGNALED;
    ibv_send_wr* bad = nullptr;
    return ibv_post_send(pair, requests_, &bad) == 0;
  }

 private:
  std::uint64_t id_;
  ibv_ah* address_;
  std::uint32_t far_number_, qkey_;
  std::size_t count_ = 0, pieces_count_ = 0;
  // A segment sent by RDMA write takes two requests. The array is not initialised, because a burst seldom uses all of
  // it.
  ibv_send_wr requests_[2 * wire::kMaxBurstSegments];
  ibv_sge pieces_[2 * wire::kMaxBurstSegments];
};

}  // namespace weft::datapath
