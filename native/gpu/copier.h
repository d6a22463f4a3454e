// Copies messages between a device and the rings that their stripes pass through, while the network sends and places.
// poll() launches what can be launched and tells what has arrived. One thread uses a copier.
#pragma once

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "native/core/stage.h"
#include "native/gpu/layout.h"
#include "native/gpu/shared_device.h"

namespace weft::gpu {

enum class Way : std::uint8_t { to_host, to_device };  // of a send, of a receive

class Copier;

// One message on its way. Its layout and its stages, which have their rings, are the caller's and stay until quiet(),
// as does its table: of the layout's pieces, for the kernels; of none: runs are copied one by one.
class Transfer {
 public:
  Transfer(Copier* copier, Way way, const Layout& layout, core::Stage* stages, std::uint32_t flows, Stream stream,
           const PieceTable& table);
  Transfer(const Transfer&) = delete;
  Transfer& operator=(const Transfer&) = delete;
  ~Transfer();

  // Who hears that more of a send is in its ring, or more of a receive out of it: as engine::Connection::on_staged.
  // False: not now, say it again.
  class Listener {
   public:
    virtual bool on_staged(std::uint32_t stage) noexcept = 0;

   protected:
    ~Listener() = default;
  };
  // Once around all stripes. True: something moved. After an error nothing more is launched.
  bool poll(Listener* listener) noexcept;
  // Bytes that are where they belong: in rings for a send, on the device for a receive.
  std::uint64_t arrived_bytes() const noexcept;
  // No copy of it is under way: what it refers to may go.
  bool quiet() const noexcept;
  bool failed() const noexcept { return !error_.empty(); }
  const std::string& error() const noexcept { return error_; }

 private:
  static constexpr std::size_t kFlyingMax = 4;  // copies of a stripe: two would do, were they always polled in time
  struct Copy {
    Event done = nullptr;          // or
    Attendant::Ticket ticket = 0;  // where the attendant copies
    std::uint64_t end = 0;         // of the stripe
  };
  struct Lane {
    std::array<Copy, kFlyingMax> flying;
    std::size_t first = 0, count = 0;
    std::uint64_t launched = 0, arrived = 0;
    bool untold = false;
  };
  static constexpr int kRefusedMax = 100;  // times in a row that a context gives no answer: it is gone
  std::uint64_t next_piece(const Lane& lane, const core::Stage& stage) const noexcept;
  std::atomic<std::uint32_t>& settled(const core::Stage& stage, std::uint64_t at) const noexcept {
    return stage.settled[at % stage.ring_bytes / stage.piece_bytes];
  }
  bool launch(Lane* lane, core::Stage* stage) noexcept;
  bool begin_copy(std::uint8_t* host, std::uint64_t begin, std::uint64_t bytes, Copy* made) noexcept;
  bool copy(std::uint8_t* host, std::uint64_t begin, std::uint64_t bytes) noexcept;
  bool attend(std::uint8_t* host, std::uint64_t begin, std::uint64_t bytes, Attendant::Ticket* out) noexcept;
  bool collect(Lane* lane, core::Stage* stage) noexcept;
  void fail(const char* symbol, Result result) noexcept;

  Copier* copier_;
  const Way way_;
  const Layout& layout_;
  const PieceTable table_;
  core::Stage* const stages_;
  const Stream stream_;
  std::vector<Lane> lanes_;
  int refused_ = 0;  // in a row
  std::string error_;
};

class Copier {
 public:
  // Of a device, in its primary context. `image`: of the kernels. Null with `error`.
  static std::unique_ptr<Copier> open(const Driver& driver, int device, std::string* error,
                                      const void* image = kernel_image());
  Copier(const Driver& driver, std::shared_ptr<SharedDevice> shared)
      : driver_(driver), shared_(std::move(shared)), context_(shared_->context()) {}
  Copier(const Copier&) = delete;
  Copier& operator=(const Copier&) = delete;
  // Every transfer must be gone.
  ~Copier();

  // Work of the caller's that comes first must be done: nothing that takes long may get into streams that messages
  // share.
  std::unique_ptr<Transfer> begin(Way way, const Layout& layout, core::Stage* stages, std::uint32_t flows,
                                  const PieceTable& table);
  // Destroys an event of a caller's.
  void drop(Event event) noexcept;
  Context context() const noexcept { return context_; }
  SharedDevice& shared() const noexcept { return *shared_; }

 private:
  friend class Transfer;
  Event take_event(Result* result) noexcept;
  // Has room: see take_event.
  void give_event(Event event) noexcept {
    if (event != nullptr) events_.push_back(event);
  }

  const Driver& driver_;
  const std::shared_ptr<SharedDevice> shared_;
  const Context context_;
  std::vector<Event> events_;  // those that nobody uses
  std::size_t events_made_ = 0;
};

}  // namespace weft::gpu
