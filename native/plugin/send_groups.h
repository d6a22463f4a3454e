// The sending end of a connection with grouped receives: gives each send the place of its tag in the peer's oldest
// group, and posts the sends of a group in the order of its buffers.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <mutex>

#include "native/core/status.h"
#include "native/message/runtime.h"
#include "native/plugin/group_tags.h"

namespace weft::nccl {

class SendGroups {
 public:
  static constexpr unsigned kSlots = 64;
  struct Send {
    const void* data = nullptr;
    std::size_t bytes = 0;
    const void* mhandle = nullptr;
    std::uint32_t memory = 0;  // the runtime's registration number
    std::uint32_t channel = 0;
  };

  explicit SendGroups(message::Connection* connection) noexcept : connection_(connection) {}

  // Accepts a send under the number `slot`, which must be free, if a buffer of the peer's oldest group waits for its
  // tag; otherwise would_block. An accepted send waits until those for the buffers before its own have come.
  Status add(unsigned slot, int tag, const Send& send);
  // Once the send has ended, sets *done and frees the slot. An error stays.
  Status test(unsigned slot, bool* done, int* size);
  // To be called before memory is deregistered. Returns true if a send that was not posted yet may use it: such ones
  // will not be posted, and the caller must close the connection.
  bool forget(const void* mhandle);

 private:
  static constexpr unsigned kNoSlot = kSlots;
  struct Posted {
    Send send;
    engine::Request* request = nullptr;  // null: the send waits for others of its group
    bool used = false;
  };
  // The peer's oldest group whose sends were not all posted.
  struct Head {
    GroupTags tags{};
    std::array<unsigned, kReceivesMax> slots{};  // of the sends that were accepted
    int posted = 0;
  };
  // Posts what it can, and reads the tags of the next group. The lock must be held.
  Status advance();
  Status post_head();
  // would_block: no group has been announced.
  Status read_tags();
  Status post_tag_receives();

  message::Connection* const connection_;
  std::mutex mutex_;
  std::array<Posted, kSlots> sends_{};
  Head head_;
  std::array<GroupTags, kGroupsMax> arriving_{};  // ring of receives for tags
  std::array<engine::Request*, kGroupsMax> tag_receives_{};
  std::uint64_t receives_posted_ = 0, groups_read_ = 0;
  Status failure_ = Status::ok;
};

}  // namespace weft::nccl
