// Windows onto registered memory, through which a peer writes a message to where it belongs: opened before the receive
// is advertised, closed before it completes, so that what comes late is refused by the NIC (decision 0011, P-1).
// One port's. Waits for the NIC's answer, never for the network.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "native/datapath/verbs/queue_pair.h"

namespace weft::datapath {

class WindowPool {
 public:
  // A key's lowest eight bits change with each opening and closing, and then come round: a window is given up before
  // that. Where a new one's key begins is the provider's choice: only its index makes it differ from a late packet's.
  static constexpr std::uint32_t kUsesMax = 100;

  WindowPool() = default;
  WindowPool(const WindowPool&) = delete;
  WindowPool& operator=(const WindowPool&) = delete;
  ~WindowPool() { shut(); }

  // False with `error` when the device has no windows.
  bool start(const Ibv* ibv, ibv_pd* pd, const QpTraits& traits, const ibv_gid& gid, std::uint16_t lid,
             std::string* error);
  void shut() noexcept;
  bool started() const noexcept { return keeper_.get() != nullptr; }

  // The key of a window onto part of `region`; 0 when there is none to be had.
  std::uint32_t open(ibv_mr* region, std::uint8_t* data, std::uint64_t bytes) noexcept;
  // When it returns the key is dead. Unknown keys are ignored.
  void close(std::uint32_t key) noexcept;
  // Those onto `region` that are open.
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
  QueuePair keeper_;  // joined with itself; carries nothing but bindings
  std::vector<Window> idle_;
  std::unordered_map<std::uint32_t, Window> open_;  // by key
  std::uint64_t asked_ = 0;
};

}  // namespace weft::datapath
