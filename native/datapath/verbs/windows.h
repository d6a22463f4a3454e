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

class WindowPool {
 public:
  // A key's lowest eight bits change with each binding and then repeat, so a window is deallocated after this many
  // uses. A new window's bits start where the provider chooses, so only its index protects against late packets for an
  // old one.
  static constexpr std::uint32_t kUsesMax = 100;

  WindowPool() = default;
  WindowPool(const WindowPool&) = delete;
  WindowPool& operator=(const WindowPool&) = delete;
  ~WindowPool() { shut(); }

  // False with `error` if the device has no memory windows.
  bool start(const Ibv* ibv, ibv_pd* pd, const QpTraits& traits, const ibv_gid& gid, std::uint16_t lid,
             std::string* error);
  void shut() noexcept;
  bool started() const noexcept { return keeper_.get() != nullptr; }

  // Returns the key of a window onto part of `region`; 0 if none is available.
  std::uint32_t open(ibv_mr* region, std::uint8_t* data, std::uint64_t bytes) noexcept;
  // The key is invalid when this returns. Unknown keys are ignored.
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
  FarQp itself_;
  QueuePair keeper_;  // connected to itself; used only for binding
  std::vector<Window> idle_;
  std::unordered_map<std::uint32_t, Window> open_;  // by key
  std::uint64_t asked_ = 0;
};

}  // namespace weft::datapath
