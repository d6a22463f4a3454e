// A connection's policies, changed and described through the board of its process.
#include "native/message/connection_handle.h"

#include <new>

namespace weft::engine {

Status ConnectionHandle::change_policy(const std::string& family, const std::string& text, PolicyChange what,
                                       std::string* error) noexcept {
  try {
    return board_->change(family, text, what, &core_->flows(), core_->id(), error);
  } catch (const std::bad_alloc&) {
    return Status::out_of_memory;
  }
}

std::vector<PolicyInfo> ConnectionHandle::policies() const { return board_->describe(&core_->flows(), core_->id()); }

}  // namespace weft::engine
