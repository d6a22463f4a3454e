// The receiving end of a connection with grouped receives: one irecv posts several buffers, each with the tag of its
// send. The buffers become plain receives, in their order, and a message tells the sender their tags.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <mutex>

#include "native/core/status.h"
#include "native/message/runtime.h"
#include "native/plugin/group_tags.h"

namespace weft::nccl {

class ReceiveGroups {
 public:
  static constexpr unsigned kSlots = 64;
  struct Buffer {
    void* data = nullptr;
    std::size_t capacity_bytes = 0;
    const void* mhandle = nullptr;
    std::uint32_t memory = 0;  // the runtime's registration number
    std::uint32_t channel = 0;
    int tag = 0;
  };

  explicit ReceiveGroups(message::Connection* connection) noexcept : connection_(connection) {}

  // Posts a group under the number `slot`, which must be free. would_block: the engines have no room for all of it, or
  // a group that was refused so is not posted yet; the caller must offer it again, as it was, for a part may be posted.
  Status add(unsigned slot, const Buffer* buffers, int count);
  // Once all receives of the group have ended, sets *done, writes the size of each message to `sizes` (may be null),
  // and frees the slot. An error is that of a receive, and stays.
  Status test(unsigned slot, bool* done, int* sizes);
  // To be called before memory is deregistered. Returns true if a group of which only a part is posted may use it: the
  // rest will not be posted, and the caller must close the connection.
  bool forget(const void* mhandle);
  // Whether a posted group may use the registration.
  bool may_use(const void* mhandle);

 private:
  struct Group {
    std::array<Buffer, kReceivesMax> buffers{};
    std::array<engine::Request*, kReceivesMax> requests{};
    int count = 0, posted = 0;

    bool is_of(const Buffer* given, int given_count) const;
    bool may_use(const void* mhandle) const;
  };
  // A message with tags, until the peer has acknowledged it.
  struct Announcement {
    GroupTags tags{};
    engine::Request* request = nullptr;
  };
  Status post(Group* group);
  Status announce(const Group& group);

  message::Connection* const connection_;
  std::mutex mutex_;
  std::array<Group, kSlots> groups_{};
  Group pending_;                                             // posted in part; count 0: there is none
  std::array<Announcement, 2 * kGroupsMax> announcements_{};  // ring
  std::size_t next_announcement_ = 0;
  Status failure_ = Status::ok;
};

}  // namespace weft::nccl
