// Copies messages between a device and the bounce buffers (rings) of their stripes while the network sends from the
// rings or receives into them. poll() launches copies that can start and handles those that finished. A copier is used
// by one thread.
#pragma once

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "native/core/stage.h"
#include "native/gpu/layout.h"
#include "native/gpu/shared_device.h"

namespace weft::gpu {

enum class Direction : std::uint8_t { to_host, to_device };  // to_host: for a send; to_device: for a receive

class Copier;

// Copies one message. The caller must keep the message's layout, its stages (with their rings) and its piece table
// until quiet() returns true. The table describes the layout's pieces for the kernels; if it is empty, each contiguous
// run is copied separately.
class Transfer {
 public:
  Transfer(Copier* copier, Direction direction, const Layout& layout, core::Stage* stages, std::uint32_t flows,
           Stream stream, const PieceTable& table);
  Transfer(const Transfer&) = delete;
  Transfer& operator=(const Transfer&) = delete;
  ~Transfer();

  // Called when more bytes of a send have reached a ring, or more bytes of a receive have left one (see
  // message::Connection::on_staged). A call that returns false is repeated later.
  class Listener {
   public:
    virtual bool on_staged(std::uint32_t stage) noexcept = 0;

   protected:
    ~Listener() = default;
  };
  // Handles all stripes once. Returns whether anything progressed. After an error no more copies are launched.
  bool poll(Listener* listener) noexcept;
  // How many bytes have been copied: into the rings for a send, to the device for a receive.
  std::uint64_t arrived_bytes() const noexcept;
  // Whether no copy is in progress, so that the memory used by copies may be freed.
  bool quiet() const noexcept;
  bool failed() const noexcept { return !error_.empty(); }
  const std::string& error() const noexcept { return error_; }

 private:
  static constexpr std::size_t kFlyingMax = 4;  // copies in progress per stripe; two would do if no poll() was late
  struct Copy {
    Event done = nullptr;                 // event of a copy in a stream
    PersistentKernel::Ticket ticket = 0;  // ticket of a copy by the persistent kernel; 0: the copy is in a stream
    std::uint64_t end = 0;                // offset in the stripe where the copied bytes end
  };
  struct Lane {
    std::array<Copy, kFlyingMax> flying;
    std::size_t first = 0, count = 0;
    std::uint64_t launched = 0, arrived = 0;
    bool untold = false;
  };
  // After the driver has refused this many times in a row to make a context current, the context counts as destroyed.
  static constexpr int kRefusedMax = 100;
  bool has_work() const noexcept;
  std::uint64_t next_piece(const Lane& lane, const core::Stage& stage) const noexcept;
  std::atomic<std::uint32_t>& released(const core::Stage& stage, std::uint64_t at) const noexcept {
    return stage.released[at % stage.ring_bytes / stage.piece_bytes];
  }
  bool launch(Lane* lane, core::Stage* stage) noexcept;
  bool begin_copy(std::uint8_t* host, std::uint64_t begin, std::uint64_t bytes, Copy* made) noexcept;
  bool copy(std::uint8_t* host, std::uint64_t begin, std::uint64_t bytes) noexcept;
  bool submit(std::uint8_t* host, std::uint64_t begin, std::uint64_t bytes, PersistentKernel::Ticket* out) noexcept;
  bool collect(Lane* lane, core::Stage* stage) noexcept;
  void fail(const char* symbol, Result result) noexcept;

  Copier* copier_;
  const Direction direction_;
  const Layout& layout_;
  const PieceTable table_;
  core::Stage* const stages_;
  const Stream stream_;
  std::vector<Lane> lanes_;
  int refused_ = 0;  // number of times in a row that the driver refused to make the context current
  std::string error_;
};

class Copier {
 public:
  // Opens a device in its primary context. `image`: the compiled kernels. On failure returns null with `error` set.
  static std::unique_ptr<Copier> open(const Driver& driver, int device, std::string* error,
                                      const void* image = kernel_image());
  Copier(const Driver& driver, std::shared_ptr<SharedDevice> shared)
      : driver_(driver), shared_(std::move(shared)), context_(shared_->context()) {}
  Copier(const Copier&) = delete;
  Copier& operator=(const Copier&) = delete;
  // All transfers must have been destroyed before.
  ~Copier();

  // Begins the copies of a message. GPU work of the caller on which they depend must be finished before, because
  // messages share streams, in which nothing may take long.
  std::unique_ptr<Transfer> begin(Direction direction, const Layout& layout, core::Stage* stages, std::uint32_t flows,
                                  const PieceTable& table);
  // Destroys an event that a caller created.
  void drop(Event event) noexcept;
  Context context() const noexcept { return context_; }
  SharedDevice& shared() const noexcept { return *shared_; }

 private:
  friend class SharedCopy;
  friend class Transfer;
  Event take_event(Result* result) noexcept;
  // Never allocates, because take_event() has reserved the space.
  void give_event(Event event) noexcept {
    if (event != nullptr) events_.push_back(event);
  }

  const Driver& driver_;
  const std::shared_ptr<SharedDevice> shared_;
  const Context context_;
  std::vector<Event> events_;  // unused events
  std::size_t events_made_ = 0;
};

}  // namespace weft::gpu
