// Whether this process is the one that started the transport, or a forked child of it. Takes no lock, so it is safe
// where any lock may be held by a thread that is gone.
#pragma once

namespace weft::nccl {

// To be called before the first thread is started; false when the kernel refuses the page it needs.
bool mark_parent() noexcept;

// True in a child that was forked after mark_parent.
bool in_forked_child() noexcept;

}  // namespace weft::nccl
