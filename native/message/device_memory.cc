// Exports GPU memory as a dma-buf, and decides which messages NICs read in place.
#include "native/message/device_memory.h"

#include <unistd.h>

namespace weft::message {

std::uint8_t* contiguous(const gpu::Layout& layout) noexcept {
  const std::vector<gpu::Piece>& pieces = layout.pieces();
  return pieces.size() == 1 ? reinterpret_cast<std::uint8_t*>(pieces.front().address) : nullptr;
}

bool is_read_in_place(const Connection& connection, Backlog::Direction direction, const gpu::Layout& layout,
                      std::uint32_t memory) noexcept {
  return direction == Backlog::Direction::send && memory != 0 && contiguous(layout) != nullptr &&
         !connection.reads_payload();
}

DeviceExport::DeviceExport(DeviceWorker* worker, const gpu::Layout& layout) noexcept {
  memory_.data = contiguous(layout);
  memory_.bytes = layout.bytes();
  memory_.on_device = true;
  if (memory_.data == nullptr) return;
  const gpu::DmaBuf exported = worker->export_dmabuf(reinterpret_cast<std::uintptr_t>(memory_.data), memory_.bytes);
  memory_.dmabuf = exported.descriptor;
  memory_.dmabuf_offset = exported.offset;
}

DeviceExport::~DeviceExport() {
  if (memory_.dmabuf >= 0) ::close(memory_.dmabuf);
}

}  // namespace weft::message
