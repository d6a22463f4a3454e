// GPU memory that NICs access: how it is registered, and which messages need no bounce buffer.
#pragma once

#include "native/message/device_worker.h"
#include "native/message/runtime.h"

namespace weft::message {

// The address of contiguous memory, which a NIC can access; null if the memory has several pieces or none.
std::uint8_t* contiguous(const gpu::Layout& layout) noexcept;

// Whether a message of this registered memory needs no bounce buffer: only sends whose payload the engines do not read.
// Receives always need one, because the payload of a resent segment is in the datagram and a CPU must copy it.
bool is_read_in_place(const Connection& connection, Backlog::Direction direction, const gpu::Layout& layout,
                      std::uint32_t memory) noexcept;

// GPU memory as Runtime::register_memory() takes it: with a dma-buf, or with its address if the driver exports none.
class DeviceExport {
 public:
  DeviceExport(DeviceWorker* worker, const gpu::Layout& layout) noexcept;
  DeviceExport(const DeviceExport&) = delete;
  DeviceExport& operator=(const DeviceExport&) = delete;
  ~DeviceExport();  // closes the dma-buf; registrations keep a descriptor of their own
  const datapath::Memory& memory() const noexcept { return memory_; }

 private:
  datapath::Memory memory_;
};

}  // namespace weft::message
