// Engines are told one after the other, on their own threads: no lock lies between a request and its memory.
// A refusal is no error: what is not registered is copied, and the first time the log says why.
#include "native/engine/memory_table.h"

#include "native/engine/log.h"

namespace weft::engine {

std::uint32_t MemoryTable::add(void* data, std::size_t bytes, int dmabuf, std::uint64_t dmabuf_offset) {
  if (data == nullptr || bytes == 0 || engines_->empty() || !engines_->front()->datapath().registers_memory()) return 0;
  const std::lock_guard<std::mutex> lock(mutex_);
  const Range range{reinterpret_cast<std::uintptr_t>(data), bytes};
  if (const auto known = shared_.find(range); dmabuf < 0 && known != shared_.end()) {
    ++known->second.holders;
    return known->second.id;
  }
  datapath::Memory memory;
  memory.id = next_id_++;
  memory.data = static_cast<std::uint8_t*>(data);
  memory.bytes = bytes;
  memory.dmabuf = dmabuf;
  memory.dmabuf_offset = dmabuf_offset;
  for (const auto& engine : *engines_) {
    bool taken = false;
    std::string error;
    engine->call([&] { taken = engine->add_memory(memory, &error); });
    if (taken) continue;
    forget(memory.id);
    if (!std::exchange(complained_, true)) log(LogLevel::warn, error + "; further refusals are only counted");
    return 0;
  }
  if (dmabuf < 0) {
    shared_[range] = {memory.id, 1};
    ranges_[memory.id] = range;
  }
  return memory.id;
}

void MemoryTable::remove(std::uint32_t id) {
  if (id == 0) return;
  const std::lock_guard<std::mutex> lock(mutex_);
  if (const auto range = ranges_.find(id); range != ranges_.end()) {
    const auto entry = shared_.find(range->second);
    if (--entry->second.holders != 0) return;
    shared_.erase(entry);
    ranges_.erase(range);
  }
  forget(id);
}

void MemoryTable::forget(std::uint32_t id) {
  for (const auto& engine : *engines_) engine->call([&] { engine->remove_memory(id); });
}

}  // namespace weft::engine
