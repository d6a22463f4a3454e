// The memories that callers registered, each once, however often it was asked for: an entry lives exactly as long as
// somebody holds it, so that none outlives its memory.
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

  // `wanted` without an id. *id is 0 where no engine has a use for it: its bytes are copied, which those on a device
  // cannot be, so that for them it is an error. May throw bad_alloc, and has changed nothing then.
  Status add(const datapath::Memory& wanted, std::uint32_t* id);
  void remove(std::uint32_t id);

 private:
  // GPU memory that was given back and taken anew may have the address of before, and another descriptor: never shared.
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
  std::map<std::uint32_t, Range> ranges_;  // of shared ones, by id
  std::uint32_t next_id_ = 1;
  bool complained_ = false;
};

}  // namespace weft::engine
