// Table of the memory that callers registered. Registering a range again shares its entry, which is removed with its
// last holder.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <tuple>
#include <vector>

#include "native/core/status.h"
#include "native/engine/engine.h"

namespace weft::engine {

class MemoryTable {
 public:
  explicit MemoryTable(std::vector<std::unique_ptr<Engine>>* engines) : engines_(engines) {}

  // `wanted` has no id yet. If the datapath does not register memory, *id is 0: the bytes are copied. GPU memory cannot
  // be copied, so for it that is an error. If this throws bad_alloc, nothing has changed.
  Status add(const datapath::Memory& wanted, std::uint32_t* id);
  void remove(std::uint32_t id);

 private:
  // GPU memory is never shared: freed and allocated again, it can have the same address and another dma-buf.
  using Range = std::tuple<std::uintptr_t, std::size_t>;
  struct Entry {
    std::uint32_t id = 0;
    std::size_t holders = 0;
  };
  bool tell(const datapath::Memory& memory);
  void remove_locked(std::uint32_t id);
  void forget(std::uint32_t id);

  std::vector<std::unique_ptr<Engine>>* engines_;
  std::mutex mutex_;
  std::map<Range, Entry> shared_;
  std::map<std::uint32_t, Range> ranges_;  // of shared entries, by id
  std::uint32_t next_id_ = 1;
  bool complained_ = false;
};

}  // namespace weft::engine
