// The table of memory that callers have registered. Registering the same range again returns the same id; the entry is
// removed with its last registration.
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

  // Registers memory and sets *id. If the datapath does not register it, *id is 0 and messages are copied; for GPU
  // memory, which cannot be copied, that is an error. If this throws bad_alloc, nothing has changed.
  Status add(const datapath::Memory& wanted, std::uint32_t* id);
  void remove(std::uint32_t id);

 private:
  // Address and size of host memory that several registrations share. Registrations of GPU memory share nothing: the
  // same address may belong to another dma-buf after a new allocation.
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
  std::map<std::uint32_t, Range> ranges_;  // by the id of a registration in shared_: its range
  std::uint32_t next_id_ = 1;
  bool complained_ = false;
};

}  // namespace weft::engine
