// Memory windows of one port, through which a peer writes a message directly to its destination. A window is opened
// before its receive is advertised and closed before the receive completes, so that the NIC refuses late writes
// (decision 0011, P-1). Binding waits for the NIC's completion, never for the network.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "native/datapath/verbs/queue_pair.h"

namespace weft::datapath {

class MemoryWindowPool {
 public:
  // A window is deallocated after this many uses, because the lowest eight bits of its key change with each binding and
  // then repeat. In a new window's key these bits start at any value, so only the upper 24 bits make the NIC refuse
  // late packets for an old window.
  static constexpr std::uint32_t kUsesMax = 100;

  MemoryWindowPool() = default;
  MemoryWindowPool(const MemoryWindowPool&) = delete;
  MemoryWindowPool& operator=(const MemoryWindowPool&) = delete;
  ~MemoryWindowPool() { shut(); }

  // Returns false with `error` set if the device has no memory windows.
  bool start(const Ibv* ibv, ibv_pd* pd, const QpTraits& traits, const ibv_gid& gid, std::uint16_t lid,
             std::string* error);
  void shut() noexcept;
  bool started() const noexcept { return keeper_.get() != nullptr; }

  // Opens a window onto [data, data + bytes) of `region` and returns its key; 0 if none is available.
  std::uint32_t open(ibv_mr* region, std::uint8_t* data, std::uint64_t bytes) noexcept;
  // Closes a window; its key is invalid when this returns. Unknown keys are ignored.
  void close(std::uint32_t key) noexcept;
  // Closes all open windows onto `region`.
  void close_onto(const ibv_mr* region) noexcept;

 private:
  struct Window {
    ibv_mw* window = nullptr;
    ibv_mr* region = nullptr;
    std::uint32_t uses = 0;
  };
  bool bind(Window* window, std::uint8_t* data, std::uint64_t bytes) noexcept;
  void give_up(Window* window) noexcept;
  void revive() noexcept;

  const Ibv* ibv_ = nullptr;
  ibv_pd* pd_ = nullptr;
  ibv_cq* answers_ = nullptr;
  QpTraits traits_;
  RemoteQp itself_;
  QueuePair keeper_;  // queue pair connected to itself, used only for binding
  std::vector<Window> idle_;
  std::unordered_map<std::uint32_t, Window> open_;  // open windows, by key
  std::uint64_t asked_ = 0;
};

}  // namespace weft::datapath
