// One end of a connection through shared memory: moves its messages between the caller's buffers and the lanes. The
// thread of a caller, or a mover's thread, does the work; a lock lets in one at a time.
#pragma once

#include <sys/types.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "native/engine/message_port.h"
#include "native/engine/request_slots.h"
#include "native/local/crew.h"
#include "native/local/help_trials.h"
#include "native/local/lane.h"
#include "native/local/lending.h"
#include "native/local/loans.h"
#include "native/local/mover.h"
#include "native/local/peer_memory.h"
#include "native/local/segment.h"
#include "native/local/violation.h"

namespace weft::engine {
class ConnectionCore;
}

namespace weft::local {

// What the handshake yields: the shared memory, a Unix socket to wake the peer, and the peer process.
struct Half {
  Half() = default;
  ~Half();
  Half(const Half&) = delete;
  Half& operator=(const Half&) = delete;
  std::unique_ptr<Segment> segment;
  int socket = -1;
  pid_t process = 0;  // as the kernel names it; 0: it cannot be seen from here
  bool dialled = false;
};

class Port final : public engine::MessagePort,
                   public Moved,
                   public engine::LoanReturn,
                   public std::enable_shared_from_this<Port> {
 public:
  // `lends`: messages may be copied directly out of the other process, where the kernel allows that.
  Port(std::unique_ptr<Half> half, bool lends, Mover* mover, std::shared_ptr<Crew> crew);
  // To be called once, before the first post. `core` owns this port.
  void attach(const std::shared_ptr<engine::ConnectionCore>& core);

  void post_send(const Posting& send) noexcept override;
  void post_receive(const Posting& receive) noexcept override;
  engine::Engine::Help help() noexcept override;
  void poll() noexcept override;
  void unattend() noexcept override;
  bool begin_sleep(std::int32_t* turn) noexcept override;
  void sleep(std::int32_t turn, std::int64_t timeout_ns) noexcept override;
  void wake_up() noexcept override;
  void on_peer_closed(Status reason) noexcept override;
  void end() noexcept override;
  engine::Loans* loans() noexcept override { return &loans_; }
  const char* name() const noexcept override { return "local"; }
  // Whether this process can copy out of the other one.
  bool copies() const noexcept { return copies_; }
  int copy_error() const noexcept { return peer_.error(); }  // why not (errno); 0: it can, or has not tried
  pid_t process() const noexcept { return half_->process; }
  // A device has copied what the peer lent.
  bool on_taken(std::uint64_t turn, Status status) noexcept override;
  // Whether a message waits for the peer, and none has moved since the last call. For the control loop.
  bool is_stuck() noexcept;

  // Called by the mover's thread:
  int descriptor() const noexcept override { return half_->socket; }
  bool serve() noexcept override;
  void rest() noexcept override;
  bool lapsed() noexcept override;

 private:
  static constexpr std::uint64_t kPosts = engine::RequestSlots::kSlots;
  struct Posts {
    std::array<Posting, kPosts> ring;
    std::atomic<std::uint64_t> posted{0};
    std::atomic<std::uint64_t> taken{0};
    void add(const Posting& post) noexcept {
      const std::uint64_t at = posted.load(std::memory_order_relaxed);
      ring[at % kPosts] = post;
      posted.store(at + 1, std::memory_order_release);
    }
    bool take(Posting* out) noexcept {
      const std::uint64_t at = taken.load(std::memory_order_relaxed);
      if (at == posted.load(std::memory_order_acquire)) return false;
      *out = ring[at % kPosts];
      taken.store(at + 1, std::memory_order_relaxed);
      return true;
    }
    // The next post, which take() will return; null: there is none.
    const Posting* first() const noexcept {
      return waits() ? &ring[taken.load(std::memory_order_relaxed) % kPosts] : nullptr;
    }
    bool waits() const noexcept {
      return taken.load(std::memory_order_relaxed) != posted.load(std::memory_order_acquire);
    }
  };
  // The message that is being moved in a direction.
  struct Moving {
    Posting post;
    std::uint64_t bytes = 0, done = 0;
    std::uint64_t address = 0;  // lent: where it is in the peer's memory
    bool failed = false;
    std::atomic<bool> open{false}, lent{false};
    bool loan = false;
  };

  struct Piece {
    std::uint8_t* at = nullptr;
    std::uint64_t bytes = 0;
  };
  static Piece next_piece(const Moving& moving, std::uint64_t bytes_max) noexcept;
  static void advance(Moving* moving, std::uint64_t bytes) noexcept;

  // Why the connection ends; ok: it does not.
  struct Problem {
    Status status = Status::ok;
    Violation violation;  // connection_closed: what the peer did wrong
    bool ok() const noexcept { return status == Status::ok; }
    void broken(const Violation& by) noexcept {
      status = Status::connection_closed;
      violation = by;
    }
  };

  struct Unsettled {
    Posting post;
    LentCounts lent;  // messages that the peer must have copied
  };

  // Whether a thread may copy out of the peer's memory: the peer decides how long that takes.
  enum class Copies : std::uint8_t { no, yes };
  bool enter() noexcept;
  void leave() noexcept { held_.store(false, std::memory_order_seq_cst); }
  // Moves at most about `bytes_max` bytes each way. True: something moved.
  bool run(std::uint64_t bytes_max, Copies copies) noexcept;
  bool step(std::uint64_t bytes_max, Copies copies, Problem* problem) noexcept;
  bool push(std::uint64_t bytes_max, Problem* problem) noexcept;
  bool reserve(std::uint64_t bytes) noexcept;
  bool begin_send(Problem* problem) noexcept;
  std::uint64_t push_piece(std::uint64_t bytes_max, Problem* problem) noexcept;
  bool starves() noexcept;
  bool is_drained() noexcept;
  bool fail_sends() noexcept;
  void drop_sends(Status reason) noexcept;
  void give_back() noexcept;
  void depart() noexcept;
  bool settle(Problem* problem) noexcept;
  void finish_send(const Posting& post) noexcept;
  void settle_until(const LentCounts& count) noexcept;
  bool pull(std::uint64_t bytes_max, Copies copies, Problem* problem) noexcept;
  bool begin_receive(Problem* problem) noexcept;
  void lend_loan(const Posting& post) noexcept;
  void begin_loan(Problem* problem) noexcept;
  bool end_loans(Problem* problem) noexcept;
  std::uint64_t pull_piece(std::uint64_t bytes_max, Problem* problem) noexcept;
  bool is_measured() const noexcept;
  void note_rate() noexcept;
  std::uint64_t copy_piece(std::uint64_t bytes_max, Problem* problem) noexcept;
  void wake(std::uint32_t what) noexcept;
  static void ring(Side* side) noexcept;
  std::uint32_t needs() const noexcept;
  void arm() noexcept;
  void disarm() noexcept;
  bool copying() const noexcept;
  bool forked() const noexcept;
  void hand_over() noexcept;

  const std::unique_ptr<Half> half_;
  Side& own_;
  Side& other_;
  const bool lends_;
  const int forks_;
  Mover* const mover_;
  const std::shared_ptr<Crew> crew_;
  PeerMemory peer_;
  // Whether this process can copy lent messages. Side::copies tells the peer, which can write there too.
  const bool copies_;
  std::weak_ptr<engine::ConnectionCore> owner_;
  engine::ConnectionCore* core_ = nullptr;  // valid until give_back()
  std::atomic<bool> held_{false}, again_{false};
  std::atomic<bool> ending_{false}, ended_{false};  // end() was called; nothing is moved any more
  std::shared_ptr<engine::ConnectionCore> kept_;    // from end() to depart()
  Posts sends_, receives_;

  const std::size_t out_ring_;  // of the segment

  // Used by the thread that holds the lock.
  LaneWriter out_;
  LaneReader in_;
  LendingTrials trials_;
  HelpTrials help_;
  LendingRates rates_;
  Moving sending_, receiving_;
  bool gave_back_ = false;
  std::atomic<Status> gone_{Status::ok};  // why the peer has ended; ok: it has not
  // Sends that wait for the peer to copy lent messages: their own, or earlier ones, as sends complete in order.
  std::array<Unsettled, kPosts> unsettled_;
  std::atomic<std::uint64_t> finished_{0}, settled_{0};  // sends that went into the array, and that left it
  LentCounts lent_;                                      // messages lent so far
  PortLoans loans_;
  bool loan_lost_ = false;  // a receive will not get its message: none after it may be completed

  std::atomic<std::uint64_t> moves_{0};  // times that something moved
  std::uint64_t moves_seen_ = 0;         // as of the last is_stuck()
  std::atomic<std::uint64_t> polls_{0};  // calls of poll()
  std::uint64_t polls_seen_ = 0;         // as of the mover's last look
  std::atomic<bool> polled_{false};      // the mover looks whether the caller still polls
};

}  // namespace weft::local
