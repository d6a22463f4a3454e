// Opaque handles for NCCL, which NCCL's interface passes as pointers. Looking up a closed or finalized handle finds
// nothing, so a late call is an error instead of a use after free. Handles are never reused, except those of requests,
// which may be reused once NCCL was told that the request is done.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace weft::nccl {

// The kind of object that a handle names. Handles of another kind are refused. Nonzero, so that no handle is a null
// pointer.
enum class HandleKind : std::uint8_t {
  context = 0xC1,
  comm = 0xC2,
  listener = 0xC3,
  request = 0xC4,
  memory = 0xC5,
  profiler = 0xC6,   // a communicator that the profiler observes
  operation = 0xC7,  // an operation that the profiler recorded; the rest of the handle is its record's id
  profiled = 0xC8,   // another event in progress: a channel, a step or a kernel
  api_call = 0xCC,   // a program's call of NCCL; the handle also has its time and whether a CUDA graph captures it
  // With a chained profiler, NCCL gets handles that each name a pair: the handle of weft's profiler and that of the
  // chained one.
  chained_context = 0xC9,
  chained_event = 0xCA,
  chained_operation = 0xCB,
};

// A handle's fields from the top bit: kind (8 bits), part (8), generation (28), index (20). `part` is the slot of a
// request.
struct OpaqueHandle {
  HandleKind kind;
  std::uint8_t part;
  std::uint32_t generation, index;

  static constexpr unsigned kIndexBits = 20, kGenerationBits = 28;
  static constexpr std::uint32_t kIndexMask = (1U << kIndexBits) - 1, kGenerationMask = (1U << kGenerationBits) - 1;

  static OpaqueHandle of(const void* value) noexcept {
    const auto bits = reinterpret_cast<std::uintptr_t>(value);
    return {static_cast<HandleKind>(bits >> 56), static_cast<std::uint8_t>(bits >> 48),
            static_cast<std::uint32_t>(bits >> kIndexBits) & kGenerationMask,
            static_cast<std::uint32_t>(bits) & kIndexMask};
  }
  void* value() const noexcept {
    return reinterpret_cast<void*>(std::uintptr_t{static_cast<std::uint8_t>(kind)} << 56 | std::uintptr_t{part} << 48 |
                                   std::uintptr_t{generation} << kIndexBits | index);
  }
};
static_assert(sizeof(void*) == 8);

// Maps handles to objects. Lookups take no lock; as with pointers, a handle must not be closed while another thread
// uses it.
template <typename Object>
class HandleTable {
 public:
  explicit HandleTable(HandleKind kind) noexcept : kind_(kind) {}
  HandleTable(const HandleTable&) = delete;
  HandleTable& operator=(const HandleTable&) = delete;
  ~HandleTable() {
    for (std::atomic<Block*>& block : blocks_) delete block.load(std::memory_order_relaxed);
  }

  // Adds an object and returns its handle. If the table is full, destroys the object and returns null.
  template <typename Made>
  void* add(std::unique_ptr<Object> object, Made&& on_made) {
    const std::lock_guard lock(mutex_);
    std::uint32_t index = next_;
    if (!free_.empty()) {
      index = free_.back();
    } else if (next_ == kBlocks * kBlockEntries) {
      return nullptr;
    } else if (index % kBlockEntries == 0) {
      free_.reserve(index + kBlockEntries);  // memory for remove(), which must not allocate
      blocks_[index / kBlockEntries].store(new Block, std::memory_order_release);
    }
    generation_ = generation_ == OpaqueHandle::kGenerationMask ? 1 : generation_ + 1;
    Entry& entry = *entry_at(index);
    entry.object = object.release();
    entry.generation.store(generation_, std::memory_order_release);
    if (free_.empty()) {
      ++next_;
    } else {
      free_.pop_back();
    }
    ++count_;
    const OpaqueHandle handle{kind_, 0, generation_, index};
    on_made(entry.object, handle);
    return handle.value();
  }
  void* add(std::unique_ptr<Object> object) {
    return add(std::move(object), [](Object*, OpaqueHandle) {});
  }

  // The handle must be the one that add() returned, in all bits.
  Object* find(const void* value) const noexcept {
    const OpaqueHandle handle = OpaqueHandle::of(value);
    return handle.kind == kind_ && handle.part == 0 ? find(handle) : nullptr;
  }
  // Does not check the kind, because the handle of a request also finds the request's comm.
  Object* find(OpaqueHandle handle) const noexcept {
    const Entry* const entry = entry_at(handle.index);
    const bool known = entry != nullptr && handle.generation != 0 &&
                       entry->generation.load(std::memory_order_acquire) == handle.generation;
    return known ? entry->object : nullptr;
  }

  // Removes an object from the table and returns it; null if the handle is unknown.
  std::unique_ptr<Object> remove(const void* value) {
    const std::lock_guard lock(mutex_);
    return find(value) == nullptr ? nullptr : take(OpaqueHandle::of(value).index);
  }
  // Removes and returns all objects for which `leaves` returns true.
  template <typename Leaves>
  std::vector<std::unique_ptr<Object>> remove_if(Leaves&& leaves) {
    const std::lock_guard lock(mutex_);
    std::vector<std::unique_ptr<Object>> removed;
    removed.reserve(count_);
    for (std::uint32_t index = 0; index < next_; ++index) {
      const Entry& entry = *entry_at(index);
      if (entry.generation.load(std::memory_order_relaxed) != 0 && leaves(*entry.object)) {
        removed.push_back(take(index));
      }
    }
    return removed;
  }

  bool empty() const {
    const std::lock_guard lock(mutex_);
    return count_ == 0;
  }

 private:
  struct Entry {
    std::atomic<std::uint32_t> generation{0};  // 0: the entry is free
    Object* object = nullptr;
  };
  static constexpr std::size_t kBlockEntries = 1024,
                               kBlocks = (std::size_t{1} << OpaqueHandle::kIndexBits) / kBlockEntries;
  using Block = std::array<Entry, kBlockEntries>;

  Entry* entry_at(std::uint32_t index) const noexcept {
    Block* const block = blocks_[index / kBlockEntries].load(std::memory_order_acquire);
    return block == nullptr ? nullptr : &(*block)[index % kBlockEntries];
  }
  // Removes and returns the object at `index`. The lock must be held.
  std::unique_ptr<Object> take(std::uint32_t index) {
    Entry& entry = *entry_at(index);
    entry.generation.store(0, std::memory_order_release);
    free_.push_back(index);
    --count_;
    return std::unique_ptr<Object>(std::exchange(entry.object, nullptr));
  }

  const HandleKind kind_;
  mutable std::mutex mutex_;
  std::array<std::atomic<Block*>, kBlocks> blocks_{};
  std::vector<std::uint32_t> free_;
  std::uint32_t next_ = 0, generation_ = 0;
  std::size_t count_ = 0;
};

}  // namespace weft::nccl
