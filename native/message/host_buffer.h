// Host memory that a message is sent from or received into.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace weft::message {

// Part of the memory that a message is received into.
struct HostPiece {
  std::uint8_t* data = nullptr;
  std::size_t bytes = 0;
};

// The buffer must stay until the message is done.
struct HostBuffer {
  void* data = nullptr;
  std::size_t bytes = 0;
  std::uint32_t memory = 0;       // the registration it lies in; 0: none
  std::vector<HostPiece> pieces;  // receives: where the bytes are copied from `data` before the message is done
};

}  // namespace weft::message
