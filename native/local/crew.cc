// Pieces of a message are taken by an atomic counter, so that a helper which comes late, or never, holds up nobody.
#include "native/local/crew.h"

#include <pthread.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <exception>

#include "native/engine/clock.h"
#include "native/engine/exceptions.h"
#include "native/engine/futex.h"
#include "native/engine/setup/usable_cores.h"
#include "native/engine/signals_blocked.h"

namespace weft::local {
namespace {

constexpr std::size_t kHelpersMax = 7;
constexpr std::uint64_t kHelpedBytes = 256 * 1024;  // for each helper; less is over before one has woken up
constexpr std::uint64_t kPieceBytesMin = 64 * 1024, kPieceBytesMax = 256 * 1024;
constexpr std::uint64_t kPiecesEach = 4;  // about as many pieces as that for each thread
constexpr std::int64_t kIdleShare = 8;    // a helper looks for work for no more than this part of its last work
constexpr int kLooks = 2'000;             // at helpers that finish their pieces, before the thread sleeps
constexpr std::uint32_t kVainMax = 8;     // help is asked for at least once in 2^8 copies
constexpr std::int64_t kStopPatienceNs = 1'000'000'000, kStopNapNs = 1'000'000;
constexpr std::int64_t kForeverNs = 3'600'000'000'000;

}  // namespace

std::size_t copiers_of(const engine::Knobs& knobs) {
  if (knobs.copiers != 0) return static_cast<std::size_t>(knobs.copiers);
  const double cores = engine::usable_cores();
  return cores < 3 ? 1 : cores < 8 ? 2 : 3;
}

// A copy that several threads make. It is on the stack of the thread that asked for it.
struct Crew::Job {
  const PeerMemory* peer = nullptr;
  std::uint8_t* to = nullptr;
  std::uint64_t address = 0, bytes = 0, piece_bytes = 0;
  std::atomic<std::uint64_t> next{0};    // the first byte that no thread has taken
  std::atomic<std::uint64_t> helped{0};  // bytes that helpers have copied
  std::atomic<PeerMemory::Copied> outcome{PeerMemory::Copied::whole};
  std::atomic<int> error{0};
  std::atomic<std::int32_t> busy{0};  // helpers that have not left it; a futex
};

Crew::Crew(std::size_t helpers, std::int64_t spin_ns) : spin_ns_(spin_ns) {
  for (std::size_t i = 0; i < std::min(helpers, kHelpersMax); ++i) helpers_.push_back(std::make_unique<Helper>());
}

Crew::~Crew() = default;  // the threads, which own it too, have ended or never ran

void Crew::start() noexcept {
  if (helpers_.empty() || started_.exchange(true)) return;
  const engine::SignalsBlocked blocked;
  for (const auto& helper : helpers_) {
    running_.fetch_add(1);
    try {
      helper->thread = std::thread([self = shared_from_this(), one = helper.get()] { self->run(one); });
      ::pthread_setname_np(helper->thread.native_handle(), "weft-copy");
      helper->running.store(true);
    } catch (const std::exception&) {  // out of memory or threads
      running_.fetch_sub(1);
      return;
    }
  }
}

void Crew::stop() noexcept {
  if (!started_.load() || stopping_.exchange(true)) return;
  const std::int64_t until_ns = engine::now_ns() + kStopPatienceNs;
  std::int64_t left_ns = kStopPatienceNs;
  for (std::int32_t running = 0; (running = running_.load()) != 0 && left_ns > 0;
       left_ns = until_ns - engine::now_ns()) {
    // Again and again: a thread may be about to sleep.
    for (const auto& helper : helpers_) engine::futex_wake_all(&helper->state);
    engine::futex_wait(&running_, running, std::min(left_ns, kStopNapNs));
  }
  for (const auto& helper : helpers_) {
    if (helper->thread.joinable()) running_.load() == 0 ? helper->thread.join() : helper->thread.detach();
  }
}

void Crew::run(Helper* helper) noexcept {
  engine::prepare_exceptions();
  for (std::int64_t patience_ns = 0; await_offer(helper, patience_ns);) {
    const std::int64_t worked_ns = work(helper);
    patience_ns = std::min(worked_ns / kIdleShare, spin_ns_);
  }
  running_.fetch_sub(1);
  engine::futex_wake_all(&running_);
}

// Looks for an offer for a while, then sleeps until there is one. False: the thread is to end.
bool Crew::await_offer(Helper* helper, std::int64_t patience_ns) noexcept {
  const auto offered = [&] { return kind(helper->state.load(std::memory_order_seq_cst)) == kOffered; };
  for (const std::int64_t begin_ns = engine::now_ns(); patience_ns > 0;) {
    for (int look = 0; look < 16; ++look, engine::relax()) {
      if (offered()) return true;
    }
    patience_ns = engine::now_ns() - begin_ns < patience_ns ? patience_ns : 0;
  }
  helper->asleep.store(true, std::memory_order_seq_cst);
  while (!offered() && !stopping_.load()) {
    const std::int32_t state = helper->state.load(std::memory_order_seq_cst);
    if (kind(state) == kOffered || stopping_.load()) break;
    engine::futex_wait(&helper->state, state, kForeverNs);
  }
  helper->asleep.store(false, std::memory_order_seq_cst);
  return !stopping_.load();
}

// Does what was offered, unless that was withdrawn. Returns how long it took.
std::int64_t Crew::work(Helper* helper) noexcept {
  std::int32_t state = helper->state.load(std::memory_order_seq_cst);
  if (kind(state) != kOffered || !helper->state.compare_exchange_strong(state, with(state, kWorking))) return 0;
  Job* const job = helper->job;
  const std::int64_t begin_ns = engine::now_ns();
  job->helped.fetch_add(copy_pieces(job), std::memory_order_relaxed);
  const std::int64_t worked_ns = engine::now_ns() - begin_ns;
  helper->state.store(with(state, kIdle), std::memory_order_seq_cst);
  // From the next line on the job may be gone. Its address still serves to wake the thread that waits there.
  std::atomic<std::int32_t>* const busy = &job->busy;
  if (busy->fetch_sub(1, std::memory_order_acq_rel) == 1) engine::futex_wake_all(busy);
  return worked_ns;
}

// Copies pieces that no other thread has taken, and returns how many bytes.
std::uint64_t Crew::copy_pieces(Job* job) noexcept {
  using Copied = PeerMemory::Copied;
  std::uint64_t copied = 0;
  while (job->outcome.load(std::memory_order_relaxed) == Copied::whole) {
    const std::uint64_t at = job->next.fetch_add(job->piece_bytes, std::memory_order_relaxed);
    if (at >= job->bytes) break;
    const std::uint64_t bytes = std::min(job->piece_bytes, job->bytes - at);
    const Copied outcome = job->peer->copy(job->to + at, job->address + at, bytes);
    const int why = errno;
    copied += bytes;
    Copied whole = Copied::whole;
    if (outcome != Copied::whole && job->outcome.compare_exchange_strong(whole, outcome)) job->error.store(why);
  }
  return copied;
}

bool Crew::offer_to(Helper* helper, Job* job, std::int32_t* offered) noexcept {
  std::int32_t state = helper->state.load(std::memory_order_relaxed);
  if (kind(state) != kIdle || !helper->running.load(std::memory_order_relaxed)) return false;
  if (!helper->state.compare_exchange_strong(state, with(state, kClaimed, 1), std::memory_order_acquire)) return false;
  helper->job = job;
  *offered = with(state, kOffered, 1);
  job->busy.fetch_add(1, std::memory_order_relaxed);
  helper->state.store(*offered, std::memory_order_seq_cst);
  if (helper->asleep.load(std::memory_order_seq_cst)) engine::futex_wake_all(&helper->state);
  return true;
}

// The job's thread has no more to copy: waits for the pieces that helpers have taken.
void Crew::await_helpers(Job* job) noexcept {
  for (int look = 0; look < kLooks && job->busy.load(std::memory_order_acquire) != 0; ++look) engine::relax();
  for (std::int32_t busy = 0; (busy = job->busy.load(std::memory_order_acquire)) != 0;)
    engine::futex_wait(&job->busy, busy, kForeverNs);
}

bool Crew::is_worth_asking() noexcept {
  const std::uint32_t left_out = left_out_.load(std::memory_order_relaxed);
  if (left_out == 0) return true;
  left_out_.store(left_out - 1, std::memory_order_relaxed);
  return false;
}

// Help of less than an eighth was hardly worth waking a thread.
void Crew::on_help(std::uint64_t bytes, std::uint64_t helped_bytes) noexcept {
  const std::uint32_t vain = vain_.load(std::memory_order_relaxed);
  if (helped_bytes >= bytes / 8) {
    if (vain != 0) vain_.store(0, std::memory_order_relaxed);
    return;
  }
  vain_.store(std::min(vain + 1, kVainMax), std::memory_order_relaxed);
  left_out_.store((std::uint32_t{1} << vain) - 1, std::memory_order_relaxed);
}

PeerMemory::Copied Crew::copy(const PeerMemory& peer, void* to, std::uint64_t address, std::uint64_t bytes,
                              std::uint64_t* helped_bytes) noexcept {
  *helped_bytes = 0;
  const std::size_t helpers = std::min<std::size_t>(helpers_.size(), bytes / kHelpedBytes);
  if (helpers == 0 || stopping_.load(std::memory_order_relaxed) || !is_worth_asking())
    return peer.copy(to, address, bytes);
  Job job;
  job.peer = &peer;
  job.to = static_cast<std::uint8_t*>(to);
  job.address = address;
  job.bytes = bytes;
  const std::uint64_t even = bytes / (kPiecesEach * (helpers + 1)) / kPieceBytesMin * kPieceBytesMin;
  job.piece_bytes = std::clamp(even, kPieceBytesMin, kPieceBytesMax);
  std::array<std::int32_t, kHelpersMax> offers{};
  std::array<bool, kHelpersMax> asked{};
  std::size_t count = 0;
  for (std::size_t i = 0; i < helpers_.size() && count < helpers; ++i) {
    asked[i] = offer_to(helpers_[i].get(), &job, &offers[i]);
    count += asked[i] ? 1 : 0;
  }
  static_cast<void>(copy_pieces(&job));
  for (std::size_t i = 0; i < helpers_.size(); ++i) {
    std::int32_t offered = offers[i];  // withdrawn unless the helper has taken it
    if (!asked[i] || !helpers_[i]->state.compare_exchange_strong(offered, with(offered, kIdle))) continue;
    job.busy.fetch_sub(1, std::memory_order_relaxed);
  }
  await_helpers(&job);
  *helped_bytes = job.helped.load(std::memory_order_relaxed);
  on_help(bytes, *helped_bytes);
  errno = job.error.load();
  return job.outcome.load();
}

}  // namespace weft::local
