// Host memory from which a message is sent or into which it is received.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace weft::message {

// A part of the memory that receives a message.
struct HostPiece {
  std::uint8_t* data = nullptr;
  std::size_t bytes = 0;
};

// The buffer must stay valid until the message is done.
struct HostBuffer {
  void* data = nullptr;
  std::size_t bytes = 0;
  std::uint32_t memory = 0;  // the registration that contains it; 0: none
  std::vector<HostPiece>
      pieces;  // receives: the bytes are copied from `data` into these pieces before the message is done
};

}  // namespace weft::message
