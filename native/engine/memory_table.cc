// Registers memory with one engine after the other, on the engine's thread, so that engines look up memory without a
// lock. If a datapath refuses memory, messages are copied instead, and the first refusal is logged.
#include "native/engine/memory_table.h"

#include <string>
#include <utility>

#include "native/engine/log.h"

namespace weft::engine {

Status MemoryTable::add(const datapath::Memory& wanted, std::uint32_t* id) {
  *id = 0;
  if (wanted.data == nullptr || wanted.bytes == 0) return Status::ok;
  const bool copies = !wanted.on_device;
  const Status of_no_use = copies ? Status::ok : Status::address_unavailable;
  if (engines_->empty() || !engines_->front()->datapath().registers_memory()) return of_no_use;
  const std::lock_guard<std::mutex> lock(mutex_);
  const Range range{reinterpret_cast<std::uintptr_t>(wanted.data), wanted.bytes};
  if (const auto known = shared_.find(range); copies && known != shared_.end()) {
    ++known->second.holders;
    *id = known->second.id;
    return Status::ok;
  }
  datapath::Memory memory = wanted;
  memory.id = next_id_++;
  if (copies) {
    ranges_[memory.id] = range;
    shared_[range] = {memory.id, 1};
  }
  bool taken = false;
  try {
    taken = tell(memory);
  } catch (...) {
    remove_locked(memory.id);
    throw;
  }
  if (!taken) {
    remove_locked(memory.id);
    return of_no_use;
  }
  *id = memory.id;
  return Status::ok;
}

bool MemoryTable::tell(const datapath::Memory& memory) {
  for (const auto& engine : *engines_) {
    bool taken = false;
    std::string error;
    engine->call([&] { taken = engine->datapath().add_memory(memory, &error); });
    if (taken) continue;
    if (!std::exchange(complained_, true))
      log(LogLevel::warn, error + "; further refusals to register memory are not logged");
    return false;
  }
  return true;
}

void MemoryTable::remove(std::uint32_t id) {
  if (id == 0) return;
  const std::lock_guard<std::mutex> lock(mutex_);
  remove_locked(id);
}

void MemoryTable::remove_locked(std::uint32_t id) {
  if (const auto range = ranges_.find(id); range != ranges_.end()) {
    const auto entry = shared_.find(range->second);
    if (--entry->second.holders != 0) return;
    shared_.erase(entry);
    ranges_.erase(range);
  }
  forget(id);
}

void MemoryTable::forget(std::uint32_t id) {
  for (const auto& engine : *engines_) engine->call([&] { engine->datapath().remove_memory(id); });
}

}  // namespace weft::engine
