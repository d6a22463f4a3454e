// Memory of a GPU as NICs see it: how it is registered, and which messages they read without a bounce buffer.
#pragma once

#include "native/message/device_worker.h"
#include "native/message/runtime.h"

namespace weft::message {

// The address of memory in one piece, which a NIC can take; null if it has several pieces, or none.
std::uint8_t* contiguous(const gpu::Layout& layout) noexcept;

// Whether the NIC reads a send from this registration in place. Sends are staged if the engines read their payload.
// Receives are always staged, because a resent segment carries its payload in the datagram and a CPU must copy it.
bool is_read_in_place(const Connection& connection, Backlog::Way way, const gpu::Layout& layout,
                      std::uint32_t memory) noexcept;

// What Runtime::register_memory() takes: the dma-buf of the memory, or its address if the driver exports none.
class DeviceExport {
 public:
  DeviceExport(DeviceWorker* worker, const gpu::Layout& layout) noexcept;
  DeviceExport(const DeviceExport&) = delete;
  DeviceExport& operator=(const DeviceExport&) = delete;
  ~DeviceExport();  // closes the dma-buf; a registration has a descriptor of its own
  const datapath::Memory& memory() const noexcept { return memory_; }

 private:
  datapath::Memory memory_;
};

}  // namespace weft::message
