// Host memory from which a message is sent or into which it is received.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace weft::message {

// One of the pieces of memory into which a received message is copied.
struct HostPiece {
  std::uint8_t* data = nullptr;
  std::size_t bytes = 0;
};

// The buffer of a send or receive. It must stay valid until the message is done.
struct HostBuffer {
  void* data = nullptr;
  std::size_t bytes = 0;
  std::uint32_t memory = 0;       // id of the registered memory that contains `data`; 0: none
  std::vector<HostPiece> pieces;  // receives only: the received bytes are copied from `data` into these pieces
};

}  // namespace weft::message
