// A connection attempt. NCCL calls connect again and again until the attempt succeeds or fails, or it abandons the
// attempt without a word.
#pragma once

#include <memory>
#include <mutex>
#include <string>

#include "native/core/status.h"
#include "native/message/runtime.h"

namespace weft::nccl {

class Attempt {
 public:
  // `context`: the communicator to which the attempt belongs; null for interface versions without contexts.
  Attempt(const void* context, const control::Handle& handle, std::shared_ptr<message::Runtime> runtime,
          std::unique_ptr<message::Dial> dial);

  const void* context() const noexcept { return context_; }
  const control::Handle& handle() const noexcept { return handle_; }

  // For NCCL's calls. would_block: the attempt is in progress. ok: *connection is open, and uses *runtime. Any other
  // status: the attempt has failed, and *error has the reason.
  Status poll(std::shared_ptr<message::Runtime>* runtime, std::shared_ptr<message::Connection>* connection,
              std::string* error);
  // For the session, while NCCL may have abandoned the attempt. Releases what an attempt holds that has failed; poll()
  // still returns the reason. Returns whether the attempt holds nothing.
  bool release_if_failed();
  // Also releases a connection that the peer has closed, unless poll() was called since the last call of this.
  bool release_if_ended();

 private:
  // What the attempt holds until it ends; members are destroyed in reverse order.
  struct Held {
    std::shared_ptr<message::Runtime> runtime;
    std::unique_ptr<message::Dial> dial;
    std::shared_ptr<message::Connection> connection;
  };
  // The status of the dial; stores its connection or its error. The lock must be held.
  Status look();

  const void* const context_;
  const control::Handle handle_;
  std::mutex mutex_;
  Held held_;
  Status failure_ = Status::would_block;  // would_block: the attempt has not failed
  std::string error_;
  bool polled_ = true;  // since the last release_if_ended()
};

}  // namespace weft::nccl
