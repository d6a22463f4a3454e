// Tells whether this process is the one that started the transport or a forked child of it. It takes no lock, because
// in a forked child any lock may be held by a thread that does not exist there.
#pragma once

namespace weft::nccl {

// Must be called before the first thread is started. False if the memory page that tells a forked child from its parent
// cannot be mapped.
bool mark_parent() noexcept;

// True in a child that was forked after mark_parent().
bool in_forked_child() noexcept;

}  // namespace weft::nccl
