// Moves the messages of a connection through shared memory.
//
// A sender writes each message into its lane: its head, and its bytes as room comes; its send is complete when the last
// byte is in the lane, which the peer holds too. Or it lends the message: only the head goes into the lane, and the
// receiver copies the bytes out of the sender's memory; that send is complete when the receiver has counted it.
#include "native/local/port.h"

#include <sched.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "native/core/types.h"
#include "native/datapath/fork_registry.h"
#include "native/engine/clock.h"
#include "native/engine/connection.h"
#include "native/engine/fork_count.h"
#include "native/engine/futex.h"
#include "native/engine/log.h"

namespace weft::local {
namespace {

// Bytes that are moved before the other process hears of them, so that both copy at the same time.
constexpr std::uint64_t kPieceBytes = 32 * 1024;
constexpr std::uint64_t kCopyBytes = 2 * 1024 * 1024;  // of one call of the kernel
constexpr std::uint64_t kTurnBytes = 4 * 1024 * 1024;
constexpr int kLastTurns = 4;
// A caller that polls moves no more than this in a call; longer messages are the mover's.
constexpr std::uint64_t kPolledBytes = 64 * 1024;

}  // namespace

Half::~Half() { datapath::close_socket(socket); }

Port::Port(std::unique_ptr<Half> half, bool lends, Mover* mover, std::shared_ptr<Crew> crew)
    : half_(std::move(half)),
      own_(half_->segment->shared().sides[half_->dialled ? 0 : 1]),
      other_(half_->segment->shared().sides[half_->dialled ? 1 : 0]),
      lends_(lends),
      forks_(engine::fork_count().load()),
      mover_(mover),
      crew_(std::move(crew)),
      peer_(half_->process),
      copies_(lends_ && peer_.open(other_)),
      out_ring_(half_->dialled ? 0 : 1),
      out_(&half_->segment->shared().lanes[out_ring_], half_->segment->shared().rings[out_ring_]),
      in_(&half_->segment->shared().lanes[1 - out_ring_], half_->segment->shared().rings[1 - out_ring_]),
      loans_(&own_, &other_, lends) {
  if (copies_) own_.copies.store(1, std::memory_order_release);
}

void Port::attach(const std::shared_ptr<engine::ConnectionCore>& core) {
  owner_ = core;
  core_ = core.get();
}

bool Port::forked() const noexcept { return forks_ != engine::fork_count().load(std::memory_order_relaxed); }

bool Port::enter() noexcept {
  bool free = false;
  return held_.compare_exchange_strong(free, true, std::memory_order_seq_cst);
}

void Port::post_send(const Posting& send) noexcept {
  sends_.add(send);
  static_cast<void>(run(kPolledBytes, Copies::no));
  hand_over();
}

void Port::post_receive(const Posting& receive) noexcept {
  receives_.add(receive);
  static_cast<void>(run(kPolledBytes, Copies::no));
  hand_over();
}

// After a post: what could not be moved at once waits for a wake-up by the peer, or for the mover if it can go on.
void Port::hand_over() noexcept {
  if (needs() == 0 || polled_.load(std::memory_order_relaxed)) return;
  arm();
  if ((run(kPolledBytes, Copies::no) && needs() != 0) || copying()) mover_->kick(this);
}

engine::Engine::Help Port::help() noexcept {
  if (forked()) return engine::Engine::Help::busy;
  disarm();
  return run(kTurnBytes, Copies::yes) ? engine::Engine::Help::ran : engine::Engine::Help::taken;
}

void Port::poll() noexcept {
  if (forked()) return;
  polls_.store(polls_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  if (!polled_.load(std::memory_order_relaxed) && !polled_.exchange(true)) mover_->watch(this);
  disarm();
  const auto long_one = [](const Moving& moving) {
    return moving.open.load(std::memory_order_relaxed) && moving.bytes > kPolledBytes;
  };
  if (run(kPolledBytes, Copies::yes) && (long_one(sending_) || long_one(receiving_))) mover_->kick(this);
}

void Port::unattend() noexcept {
  if (needs() == 0 || forked()) return;
  arm();
  if (run(kPolledBytes, Copies::no) || copying()) mover_->kick(this);
}

bool Port::serve() noexcept {
  disarm();
  return run(kTurnBytes, Copies::yes);
}

void Port::rest() noexcept {
  if (polled_.load(std::memory_order_relaxed) || needs() == 0) return;
  arm();
  if (run(kPolledBytes, Copies::no)) mover_->kick(this);
}

bool Port::lapsed() noexcept {
  const std::uint64_t polls = polls_.load(std::memory_order_relaxed);
  if (std::exchange(polls_seen_, polls) != polls) return false;
  polled_.store(false);
  return true;
}

std::uint32_t Port::needs() const noexcept {
  std::uint32_t needs = 0;
  if (receives_.waits() || receiving_.open.load(std::memory_order_relaxed)) needs |= kWantsData;
  if (sends_.waits() || sending_.open.load(std::memory_order_relaxed) ||
      finished_.load(std::memory_order_relaxed) != settled_.load(std::memory_order_relaxed))
    needs |= kWantsRoom;
  return needs;
}

bool Port::is_stuck() noexcept {
  const std::uint64_t moves = moves_.load(std::memory_order_relaxed);
  return std::exchange(moves_seen_, moves) == moves && needs() != 0 && !ended_.load(std::memory_order_relaxed);
}

void Port::arm() noexcept {
  // Adds: another thread may have armed what was posted after this one looked.
  own_.wants.fetch_or(needs(), std::memory_order_seq_cst);
  std::atomic_thread_fence(std::memory_order_seq_cst);
}

void Port::disarm() noexcept {
  if (own_.wants.load(std::memory_order_relaxed) != 0) own_.wants.store(0, std::memory_order_relaxed);
}

// Called after this process has published something: either the peer sees it before it sleeps, or this thread sees that
// the peer wants to be woken.
void Port::wake(std::uint32_t what) noexcept {
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if ((other_.wants.load(std::memory_order_relaxed) & what) == 0) return;
  // The peer may want something else by now: as that is cleared too, it must be woken for it.
  if (other_.wants.exchange(0, std::memory_order_seq_cst) == 0) return;
  if (other_.sleepers.load(std::memory_order_seq_cst) != 0) return ring(&other_);
  const std::uint8_t byte = 0;
  static_cast<void>(::send(half_->socket, &byte, 1, MSG_DONTWAIT | MSG_NOSIGNAL));
}

// Wakes the callers of a process that sleep for the connection.
void Port::ring(Side* side) noexcept {
  side->bell.fetch_add(1, std::memory_order_seq_cst);
  engine::shared_futex_wake_all(&side->bell);
}

// Whether a lent message waits to be copied.
bool Port::copying() const noexcept {
  return receiving_.open.load(std::memory_order_relaxed) && receiving_.lent.load(std::memory_order_relaxed);
}

bool Port::begin_sleep(std::int32_t* turn) noexcept {
  if (forked()) return false;
  own_.sleepers.fetch_add(1, std::memory_order_seq_cst);
  *turn = own_.bell.load(std::memory_order_seq_cst);
  arm();
  static_cast<void>(run(kTurnBytes, Copies::yes));
  if (!ended_.load() && gone_.load() == Status::ok) return true;
  wake_up();
  return false;
}

void Port::sleep(std::int32_t turn, std::int64_t timeout_ns) noexcept {
  engine::shared_futex_wait(&own_.bell, turn, timeout_ns);
}

void Port::wake_up() noexcept { own_.sleepers.fetch_sub(1, std::memory_order_seq_cst); }

bool Port::run(std::uint64_t bytes_max, Copies copies) noexcept {
  if (forked()) return false;
  Problem problem;
  bool moved = false, last = false;
  // A thread that finds the lock taken asks its holder to look once more, because it may have looked too early.
  for (again_.store(true, std::memory_order_seq_cst); again_.load(std::memory_order_seq_cst) && enter(); leave()) {
    again_.store(false, std::memory_order_seq_cst);
    if (!ended_.load(std::memory_order_seq_cst)) {
      moved |= step(bytes_max, copies, &problem);
      if (moved) moves_.store(moves_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
    } else if (!gave_back_ && !mover_->is_abandoned()) {
      give_back();
      last = true;
    }
  }
  // The message of a caller that sleeps may be done.
  if (moved && own_.sleepers.load(std::memory_order_seq_cst) != 0) ring(&own_);
  if (last) depart();
  if (problem.ok() || last) return moved;
  // Without the lock, because the connection calls end().
  if (const std::shared_ptr<engine::ConnectionCore> owner = owner_.lock()) {
    const Status gone = gone_.load();
    const bool broken = problem.status == Status::connection_closed;
    if (broken && gone == Status::ok) log_violation(owner->peer_address(), half_->process, problem.violation);
    owner->fail(broken && gone != Status::ok ? gone : problem.status);
  }
  return false;
}

bool Port::step(std::uint64_t bytes_max, Copies copies, Problem* problem) noexcept {
  bool moved = settle(problem);
  if (problem->ok()) moved |= end_loans(problem);
  if (problem->ok()) moved |= push(bytes_max, problem);
  if (problem->ok()) moved |= pull(bytes_max, copies, problem);
  const Status gone = gone_.load(std::memory_order_seq_cst);
  const bool over = loan_lost_ || (!moved && !loans_.any() && (starves() || is_drained()));
  if (gone != Status::ok && problem->ok() && over) problem->status = gone;
  return moved;
}

// A send whose bytes, or whose head if it is lent, are in the ring.
void Port::finish_send(const Posting& post) noexcept {
  const std::uint64_t at = finished_.load(std::memory_order_relaxed);
  unsettled_[at % kPosts] = {post, lent_};
  finished_.store(at + 1, std::memory_order_relaxed);
}

// Completes the sends that wait for no copy by the peer any more.
bool Port::settle(Problem* problem) noexcept {
  const std::uint64_t before = settled_.load(std::memory_order_relaxed);
  if (before == finished_.load(std::memory_order_relaxed)) return false;
  LentCounts count;
  if (!out_.copied(lent_, &count)) {
    problem->broken(out_.violation());
    return false;
  }
  settle_until(count);
  return settled_.load(std::memory_order_relaxed) != before;
}

// `count`: messages that the peer has copied.
void Port::settle_until(const LentCounts& count) noexcept {
  for (std::uint64_t at = settled_.load(std::memory_order_relaxed); at != finished_.load(std::memory_order_relaxed);) {
    const Unsettled first = unsettled_[at % kPosts];
    if (first.lent.lent > count.lent || first.lent.loans > count.loans) return;
    settled_.store(++at, std::memory_order_relaxed);
    core_->on_moved(first.post.slot, first.post.bytes);
  }
}

// The next bytes of a message that lie together in the caller's buffer, or in the bounce buffer, as far as that is
// filled (send) or free (receive).
Port::Piece Port::next_piece(const Moving& moving, std::uint64_t bytes_max) noexcept {
  const std::uint64_t bytes = std::min(moving.bytes - moving.done, bytes_max);
  const core::Stage* const stage = moving.post.stage;
  if (stage == nullptr || bytes == 0) return {moving.post.data + moving.done, bytes};
  const std::uint64_t ready = stage->limit.load(std::memory_order_acquire) - moving.done;
  return {stage->at(moving.done), std::min({bytes, ready, stage->together(moving.done)})};
}

void Port::advance(Moving* moving, std::uint64_t bytes) noexcept {
  if (moving->post.stage != nullptr) moving->post.stage->release(moving->done, bytes);
  moving->done += bytes;
}

// Has memory for the next bytes of the ring, which is only taken as far as it is used.
bool Port::reserve(std::uint64_t bytes) noexcept {
  return out_.position() >= kRingBytes || half_->segment->reserve(out_ring_, out_.position() + bytes);
}

// Takes back all messages that the peer does not hold, and fails their sends unless `reason` is ok.
void Port::drop_sends(Status reason) noexcept {
  LentCounts count;
  if (out_.take_back(lent_, &count)) settle_until(count);
  const auto drop = [&](const Posting& post) {
    if (reason != Status::ok) core_->on_unsent(post.slot, reason);
  };
  for (std::uint64_t at = settled_.load(std::memory_order_relaxed); at != finished_.load(std::memory_order_relaxed);) {
    const Posting post = unsettled_[at % kPosts].post;
    settled_.store(++at, std::memory_order_relaxed);
    drop(post);
  }
  if (sending_.open.exchange(false, std::memory_order_relaxed)) drop(sending_.post);
  for (Posting unsent; sends_.take(&unsent);) drop(unsent);
}

// After the peer has ended.
bool Port::fail_sends() noexcept {
  if ((needs() & kWantsRoom) == 0) return false;
  drop_sends(gone_.load(std::memory_order_relaxed));
  return true;
}

bool Port::push(std::uint64_t bytes_max, Problem* problem) noexcept {
  // What is written after the peer has ended would count as sent and be lost.
  if (gone_.load(std::memory_order_seq_cst) != Status::ok) return fail_sends();
  if (other_.ended.load(std::memory_order_acquire) != 0) return false;
  bool moved = false;
  for (std::uint64_t pushed = 0; problem->ok() && pushed <= bytes_max;) {
    if (!sending_.open.load(std::memory_order_relaxed)) {
      if (!begin_send(problem)) return moved;
      moved = true;
      if (!sending_.open.load(std::memory_order_relaxed)) continue;
    }
    const std::uint64_t bytes = push_piece(std::min(bytes_max, kPieceBytes), problem);
    const bool whole = sending_.done == sending_.bytes;
    if (bytes == 0 && !whole) return moved;
    pushed += std::max(bytes, kAlign);
    moved = true;
    if (!whole) continue;
    sending_.open.store(false, std::memory_order_relaxed);
    finish_send(sending_.post);
    settle(problem);
  }
  return moved;
}

// Writes the head of the next message. False: there is none, or no room.
bool Port::begin_send(Problem* problem) noexcept {
  std::uint64_t room = 0;
  const Posting* const next = sends_.first();
  if (next == nullptr || (next->lent != nullptr && !next->lent->ready.load(std::memory_order_acquire))) return false;
  const std::uint64_t head_bytes = sizeof(Head) + (next->lent != nullptr ? sizeof(engine::Loan) : 0);
  if (!out_.room(&room)) problem->broken(out_.violation());
  if (!reserve(head_bytes)) problem->status = Status::out_of_memory;
  if (room < head_bytes || !problem->ok() || !sends_.take(&sending_.post)) return false;
  const Posting& post = sending_.post;
  if (post.lent != nullptr) {
    lend_loan(post);
    return true;
  }
  const bool lent = lends_ && post.stage == nullptr && post.bytes >= kLendBytes &&
                    other_.copies.load(std::memory_order_acquire) == 1 &&
                    trials_.lends(post.bytes, other_.advice.load(std::memory_order_relaxed));
  sending_.bytes = post.bytes;
  sending_.done = 0;
  const Head head{post.bytes | (lent ? Head::kLent : 0), lent ? reinterpret_cast<std::uintptr_t>(post.data) : 0};
  out_.write(&head, sizeof head);
  if (lent) {
    ++lent_.lent;
    finish_send(post);
    out_.publish();
    wake(kWantsData);
    return true;
  }
  if (post.stage != nullptr) post.stage->set_size(0, post.bytes);
  sending_.open.store(true, std::memory_order_relaxed);
  return true;
}

// Writes more bytes of the message into the lane, and returns how many.
std::uint64_t Port::push_piece(std::uint64_t bytes_max, Problem* problem) noexcept {
  std::uint64_t room = 0;
  if (!out_.room(&room)) {
    problem->broken(out_.violation());
    return 0;
  }
  const std::uint64_t left = sending_.bytes - sending_.done;
  Piece piece = next_piece(sending_, std::min(room, bytes_max));
  if (piece.bytes != left) piece.bytes -= piece.bytes % kAlign;
  if (piece.bytes == 0 && left != 0) return 0;
  if (!reserve(piece.bytes)) {
    problem->status = Status::out_of_memory;
    return 0;
  }
  if (piece.bytes != 0) out_.write(piece.at, piece.bytes);
  advance(&sending_, piece.bytes);
  if (sending_.done == sending_.bytes) out_.align();
  out_.publish();
  wake(kWantsData);
  return piece.bytes;
}

bool Port::pull(std::uint64_t bytes_max, Copies copies, Problem* problem) noexcept {
  bool moved = false;
  if (loan_lost_) return false;
  for (std::uint64_t pulled = 0; problem->ok() && pulled <= bytes_max;) {
    if (!receiving_.open.load(std::memory_order_relaxed)) {
      if (!begin_receive(problem)) break;
      moved = true;
      if (!receiving_.open.load(std::memory_order_relaxed)) continue;  // a device takes it
    }
    if (receiving_.lent && copies == Copies::no) break;
    const std::uint64_t bytes = receiving_.lent ? copy_piece(bytes_max, problem) : pull_piece(bytes_max, problem);
    const bool whole = receiving_.done == receiving_.bytes && !receiving_.failed;
    if (bytes == 0 && !whole) break;
    pulled += std::max(bytes, kAlign);
    moved = true;
    if (!whole) continue;
    receiving_.open.store(false, std::memory_order_relaxed);
    note_rate();
    core_->on_moved(receiving_.post.slot, receiving_.bytes);
  }
  return moved;
}

// The message that is being received may be lent, and its time tells something.
bool Port::is_measured() const noexcept {
  return copies_ && !receiving_.loan && receiving_.bytes >= kLendBytes && receiving_.post.stage == nullptr;
}

// After a message has been received whole.
void Port::note_rate() noexcept {
  if (!is_measured()) return rates_.on_other();
  std::uint64_t waiting = 0;
  const bool next_waits = receives_.waits() && in_.waiting(&waiting) && waiting >= sizeof(Head);
  if (rates_.on_end(receiving_.lent, receiving_.bytes, engine::now_ns(), next_waits))
    own_.advice.store(rates_.advice(), std::memory_order_relaxed);
}

// Whether a receive waits for bytes that have not arrived.
bool Port::starves() noexcept {
  std::uint64_t waiting = 0;
  const bool known = in_.waiting(&waiting);
  if (!receiving_.open.load(std::memory_order_relaxed)) return receives_.waits() && (!known || waiting < sizeof(Head));
  // The peer has taken back what it lent, or lives no more.
  return receiving_.lent || !known || waiting == 0;
}

// Whether no message has begun to arrive.
bool Port::is_drained() noexcept {
  std::uint64_t waiting = 0;
  const bool holds = in_.waiting(&waiting) && waiting >= sizeof(Head);
  return !holds && !receiving_.open.load(std::memory_order_relaxed);
}

// Reads the head of the next message, if one has arrived and a receive is posted.
bool Port::begin_receive(Problem* problem) noexcept {
  std::uint64_t waiting = 0;
  if (!receives_.waits()) return false;
  if (!in_.waiting(&waiting)) problem->broken(in_.violation());
  if (waiting < sizeof(Head) || !problem->ok() || !receives_.take(&receiving_.post)) return false;
  Head head;
  in_.read(&head, sizeof head);
  receiving_.lent = (head.bytes_and_kind & Head::kLent) != 0;
  receiving_.loan = (head.bytes_and_kind & Head::kLoan) != 0;
  receiving_.bytes = head.bytes_and_kind & ~(Head::kLent | Head::kLoan);
  receiving_.address = head.address;
  receiving_.done = 0;
  receiving_.failed = false;
  receiving_.open.store(true, std::memory_order_relaxed);
  if (is_measured()) rates_.on_begin(engine::now_ns());
  if (receiving_.bytes > receiving_.post.bytes) {
    problem->status = Status::message_too_long;
    return false;
  }
  if (receiving_.lent && (!copies_ || receiving_.loan)) {
    problem->broken({"the lent bit of a head", 1});
    return false;
  }
  if ((receiving_.lent || receiving_.loan) && receiving_.bytes == 0) {
    problem->broken({"the size of a lent message", 0, 1, receiving_.post.bytes});
    return false;
  }
  if (receiving_.loan) {
    begin_loan(problem);
    return problem->ok();
  }
  if (receiving_.post.stage != nullptr) receiving_.post.stage->set_size(0, receiving_.bytes);
  if (!receiving_.lent && receiving_.bytes != 0) return true;
  in_.publish();
  wake(kWantsRoom);
  return true;
}

// Copies more bytes of the message out of the lane, and returns how many.
std::uint64_t Port::pull_piece(std::uint64_t bytes_max, Problem* problem) noexcept {
  std::uint64_t waiting = 0;
  if (!in_.waiting(&waiting)) {
    problem->broken(in_.violation());
    return 0;
  }
  const std::uint64_t left = receiving_.bytes - receiving_.done;
  Piece piece = next_piece(receiving_, std::min({waiting, bytes_max, kPieceBytes}));
  if (piece.bytes != left) piece.bytes -= piece.bytes % kAlign;
  if (piece.bytes == 0) return 0;
  in_.read(piece.at, piece.bytes);
  advance(&receiving_, piece.bytes);
  if (receiving_.done == receiving_.bytes) in_.align();
  in_.publish();
  wake(kWantsRoom);
  return piece.bytes;
}

// Copies more bytes of a lent message out of the peer's memory, and returns how many.
std::uint64_t Port::copy_piece(std::uint64_t bytes_max, Problem* problem) noexcept {
  if (receiving_.failed || gone_.load(std::memory_order_seq_cst) != Status::ok) return 0;
  const Piece piece = next_piece(receiving_, std::min(bytes_max, kCopyBytes));
  if (piece.bytes == 0) return 0;
  const std::uint64_t address = receiving_.address + receiving_.done;
  const bool with_help = help_.wants_help(receiving_.bytes);
  std::uint64_t helped_bytes = 0;
  const std::int64_t begin_ns = engine::now_ns();
  const PeerMemory::Copied copied = with_help ? crew_->copy(peer_, piece.at, address, piece.bytes, &helped_bytes)
                                              : peer_.copy(piece.at, address, piece.bytes);
  const int why = errno;
  help_.on_copied(receiving_.bytes, with_help, piece.bytes, helped_bytes, engine::now_ns() - begin_ns);
  if (ended_.load(std::memory_order_seq_cst)) return 0;
  const bool last = receiving_.done + piece.bytes == receiving_.bytes;
  // The sender may have taken the message back while it was copied: only its count says that the bytes are right.
  if (copied != PeerMemory::Copied::whole || (last && !in_.count_copied())) {
    receiving_.failed = true;
    // Else the sender ends the connection, or its process has ended: the control plane says which.
    if (copied == PeerMemory::Copied::unreadable && !in_.taken_back())
      problem->broken({.value = address, .lent_bytes = piece.bytes, .error = why});
    return 0;
  }
  advance(&receiving_, piece.bytes);
  if (last) wake(kWantsRoom);
  return piece.bytes;
}

void Port::on_peer_closed(Status reason) noexcept {
  if (forked()) return;
  gone_.store(reason, std::memory_order_seq_cst);
  // A peer that has ended left no more than the ring holds; one that goes on writing must not keep this thread.
  for (int turn = 0; turn < kLastTurns && run(kRingBytes, Copies::no); ++turn) {
  }
  ring(&own_);
  mover_->kick(this);
}

void Port::end() noexcept {
  if (forked() || ending_.exchange(true)) return;
  kept_ = owner_.lock();
  const bool owned = kept_ != nullptr;  // from the next lines on, the thread that gives back may take it
  own_.ended.store(1, std::memory_order_seq_cst);
  ended_.store(true, std::memory_order_seq_cst);
  if (owned) return static_cast<void>(run(0, Copies::no));
  // Called by the destructor of a connection that no caller has got: the mover's thread may be looking at its messages,
  // but there are none.
  while (!enter()) ::sched_yield();
  const bool first = !gave_back_;
  if (first) give_back();
  leave();
  if (first) depart();
}

// Nothing moves any more. The connection fails the requests.
void Port::give_back() noexcept {
  gave_back_ = true;
  loans_.end();
  drop_sends(Status::ok);
  core_ = nullptr;
  ring(&own_);
  half_->segment->part();
  ring(&own_);
}

// Without the lock, after give_back().
void Port::depart() noexcept {
  mover_->remove(this);
  datapath::close_socket(std::exchange(half_->socket, -1));  // only a thread in step() uses it, and there is none now
  const std::shared_ptr<engine::ConnectionCore> kept = std::move(kept_);
  if (kept != nullptr) kept->on_port_ended();
}

}  // namespace weft::local
