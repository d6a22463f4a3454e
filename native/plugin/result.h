// Maps each Status to a result code of NCCL. The code in_progress is not used: an operation in progress is reported as
// success with a null request.
#pragma once

#include "native/core/status.h"
#include "native/plugin/abi_common.h"

namespace weft::nccl {

// NCCL reports "remote error" to the user as a failure of the peer, and "invalid usage" as a mistake of the user.
constexpr Result result_of(Status status) noexcept {
  switch (status) {
    case Status::ok:
    case Status::would_block:
      return Result::success;
    case Status::invalid_argument:
      return Result::invalid_argument;
    case Status::message_too_long:
    case Status::version_mismatch:
    case Status::authentication_failed:
    case Status::forked_child:
      return Result::invalid_usage;
    case Status::connection_closed:
    case Status::peer_dead:
    case Status::peer_silent:
    case Status::peer_stalled:
    case Status::refused:
    case Status::timed_out:
    case Status::no_progress:
      return Result::remote_error;
    case Status::address_unavailable:
    case Status::out_of_memory:
    case Status::out_of_descriptors:
    case Status::system_error:
    case Status::device_unavailable:
    case Status::device_error:
    case Status::cancelled:
      return Result::system_error;
    case Status::internal_error:
      return Result::internal_error;
  }
  return Result::internal_error;
}

}  // namespace weft::nccl
