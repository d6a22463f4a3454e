// Copies pieces of a send into a ring once the ring's previous bytes there are acknowledged, and pieces of a receive
// out of the ring once all their bytes have arrived. A copy is in progress until its own event is done, in whatever
// order the copies were launched.
#include "native/gpu/copier.h"

#include <algorithm>
#include <new>

namespace weft::gpu {

Transfer::Transfer(Copier* copier, Direction direction, const Layout& layout, core::Stage* stages, std::uint32_t flows,
                   Stream stream, const PieceTable& table)
    : copier_(copier),
      direction_(direction),
      layout_(layout),
      table_(table),
      stages_(stages),
      stream_(stream),
      lanes_(flows) {}

Transfer::~Transfer() {
  for (Lane& lane : lanes_) {
    for (; lane.count != 0; --lane.count, ++lane.first) copier_->give_event(lane.flying[lane.first % kFlyingMax].done);
  }
}

void Transfer::fail(const char* symbol, Result result) noexcept {
  if (!error_.empty()) return;
  try {
    error_ = copier_->driver_.say(symbol, result);
  } catch (const std::bad_alloc&) {
    error_ = "out of memory";  // short enough for std::string to store it without an allocation
  }
}

// Size of the next piece that can be copied now; 0: no piece can.
std::uint64_t Transfer::next_piece(const Lane& lane, const core::Stage& stage) const noexcept {
  const std::int64_t stripe_bytes = stage.stripe_bytes.load(std::memory_order_acquire);
  if (stripe_bytes < 0 || lane.count == kFlyingMax) return 0;
  const auto bytes =
      std::min<std::uint64_t>(static_cast<std::uint64_t>(stripe_bytes) - lane.launched, stage.piece_bytes);
  if (bytes == 0) return 0;
  const std::uint32_t count = released(stage, lane.launched).load(std::memory_order_acquire);
  if (direction_ == Direction::to_device) {
    // A piece's count of bytes that the network has placed stays full until the piece has been copied out, and pieces
    // one ring's length apart share a count. So a piece is copied only after the piece one ring's length before it has
    // left the ring; the network places its bytes only after that, too.
    return lane.launched < lane.arrived + stage.ring_bytes && count == bytes ? bytes : 0;
  }
  return lane.launched < stage.ring_bytes || count == stage.piece_bytes ? bytes : 0;
}

bool Transfer::launch(Lane* lane, core::Stage* stage) noexcept {
  bool any = false;
  for (std::uint64_t bytes; !failed() && (bytes = next_piece(*lane, *stage)) != 0; any = true) {
    if (direction_ == Direction::to_host) released(*stage, lane->launched).store(0, std::memory_order_relaxed);
    std::uint8_t* const place = stage->ring + lane->launched % stage->ring_bytes;
    Copy made;
    if (!begin_copy(place, stage->begin + lane->launched, bytes, &made)) break;
    made.end = lane->launched += bytes;
    lane->flying[(lane->first + lane->count++) % kFlyingMax] = made;
  }
  return any;
}

// Launches a copy in a stream, or by the persistent kernel while a stream waits for a message. Returns false if the
// launch failed; then no part of the copy is in progress.
bool Transfer::begin_copy(std::uint8_t* host, std::uint64_t begin, std::uint64_t bytes, Copy* made) noexcept {
  PersistentKernel& kernel = copier_->shared().persistent_kernel();
  std::unique_lock lock(kernel.mutex());
  if (kernel.takes_copies()) return submit(host, begin, bytes, &made->ticket);
  Result result = kSuccess;
  made->done = copier_->take_event(&result);
  if (made->done == nullptr) {
    fail("cuEventCreate", result);
    return false;
  }
  const bool copied = copy(host, begin, bytes);
  if (copied && (result = copier_->driver_.event_record(made->done, stream_)) != kSuccess)
    fail("cuEventRecord", result);
  if (!failed()) return true;
  lock.unlock();  // the wait below may depend on a thread that needs the lock
  // After a failed launch, copies may be in progress that no event covers, so this waits for the whole stream. It is
  // the only blocking wait. If it fails too, the context is unusable and the copies have ended.
  static_cast<void>(copier_->driver_.stream_synchronize(stream_));
  copier_->give_event(made->done);
  return false;
}

// Submits copies to the persistent kernel. Only the ticket of the last one is kept, because jobs finish in order.
// Submitting fails only if the context is destroyed.
bool Transfer::submit(std::uint8_t* host, std::uint64_t begin, std::uint64_t bytes,
                      PersistentKernel::Ticket* out) noexcept {
  PersistentKernel& kernel = copier_->shared().persistent_kernel();
  const bool gathers = direction_ == Direction::to_host;
  const auto here = reinterpret_cast<std::uintptr_t>(host);  // the GPU sees pinned memory at the same address
  Result result = kSuccess;
  if (table_.count != 0) {
    result = kernel.submit(gathers, table_, begin, begin + bytes, here, out);
  } else {
    layout_.each_run(begin, bytes, [&](Address there, std::uint64_t offset, std::uint64_t length) {
      result = kernel.submit(gathers, there, length, here + (offset - begin), out);
      return result == kSuccess;
    });
  }
  if (result != kSuccess) fail("cuEventQuery", result);
  return result == kSuccess;
}

// Launches the copies of a range of the message. Returns false if a launch failed; other copies may then be in
// progress.
bool Transfer::copy(std::uint8_t* host, std::uint64_t begin, std::uint64_t bytes) noexcept {
  const Driver& driver = copier_->driver_;
  if (table_.count != 0 && copier_->shared().kernels() != nullptr && layout_.scattered(begin, bytes)) {
    const auto here = reinterpret_cast<std::uintptr_t>(host);  // the GPU sees pinned memory at the same address
    const Kernels& kernels = *copier_->shared().kernels();
    const Result result = direction_ == Direction::to_host
                              ? kernels.gather(table_, begin, begin + bytes, here, stream_)
                              : kernels.scatter(here, table_, begin, begin + bytes, stream_);
    if (result != kSuccess) fail("cuLaunchKernel", result);
    return result == kSuccess;
  }
  return layout_.each_run(begin, bytes, [&](Address there, std::uint64_t offset, std::uint64_t length) {
    std::uint8_t* const here = host + (offset - begin);
    const Result result = direction_ == Direction::to_host ? driver.copy_to_host(here, there, length, stream_)
                                                           : driver.copy_to_device(there, here, length, stream_);
    if (result != kSuccess) fail(direction_ == Direction::to_host ? "cuMemcpyDtoHAsync" : "cuMemcpyHtoDAsync", result);
    return result == kSuccess;
  });
}

bool Transfer::collect(Lane* lane, core::Stage* stage) noexcept {
  bool any = false;
  for (; lane->count != 0; any = true) {
    const Copy& copy = lane->flying[lane->first % kFlyingMax];
    const Result result = copy.done != nullptr ? copier_->driver_.event_query(copy.done)
                                               : copier_->shared().persistent_kernel().query(copy.ticket);
    if (result == kNotReady || result == kSuccess) refused_ = 0;
    if (result == kNotReady) break;
    if (result != kSuccess) {
      fail("cuEventQuery", result);
      if (++refused_ < kRefusedMax) break;
    }
    copier_->give_event(copy.done);
    const std::uint64_t from = lane->arrived;
    ++lane->first;
    --lane->count;
    if (failed()) continue;  // after an error, the bytes of a finished copy are not used
    lane->arrived = copy.end;
    if (direction_ == Direction::to_host) {
      stage->limit.store(lane->arrived, std::memory_order_release);
      lane->untold = true;
    } else {
      released(*stage, from).store(0, std::memory_order_relaxed);
      stage->limit.store(lane->arrived + stage->ring_bytes, std::memory_order_release);
      lane->untold = true;  // the remote sender may wait for this room in the ring
    }
  }
  return any;
}

// Whether a copy is in progress or can be launched, or the listener must be called: most messages wait for their peers.
bool Transfer::has_work() const noexcept {
  for (std::size_t i = 0; i < lanes_.size(); ++i) {
    if (lanes_[i].count != 0 || lanes_[i].untold || next_piece(lanes_[i], stages_[i]) != 0) return true;
  }
  return false;
}

bool Transfer::poll(Listener* listener) noexcept {
  if (!has_work()) return false;
  const Current current(copier_->driver_, copier_->context_);
  if (current.result() != kSuccess) {
    fail("cuCtxPushCurrent", current.result());
    // If the driver refuses only for a short time to make the context current, copies may still be in progress. After
    // kRefusedMax consecutive refusals the context counts as destroyed, and then no copy is in progress any more.
    if (++refused_ < kRefusedMax) return false;
    for (Lane& lane : lanes_) {
      for (; lane.count != 0; --lane.count, ++lane.first)
        copier_->give_event(lane.flying[lane.first % kFlyingMax].done);
    }
    return false;
  }
  bool any = false;
  for (std::size_t i = 0; i < lanes_.size(); ++i) {
    any |= collect(&lanes_[i], &stages_[i]);
    any |= launch(&lanes_[i], &stages_[i]);
    if (lanes_[i].untold) lanes_[i].untold = !listener->on_staged(static_cast<std::uint32_t>(i));
  }
  return any;
}

std::uint64_t Transfer::arrived_bytes() const noexcept {
  std::uint64_t bytes = 0;
  for (const Lane& lane : lanes_) bytes += lane.arrived;
  return bytes;
}

bool Transfer::quiet() const noexcept {
  return std::all_of(lanes_.begin(), lanes_.end(), [](const Lane& lane) { return lane.count == 0; });
}

std::unique_ptr<Copier> Copier::open(const Driver& driver, int device, std::string* error, const void* image) {
  std::shared_ptr<SharedDevice> shared = SharedDevice::open(driver, device, image, error);
  return shared == nullptr ? nullptr : std::make_unique<Copier>(driver, std::move(shared));
}

Copier::~Copier() {
  const Current current(driver_, context_);
  // Errors are ignored, because a destroyed context has freed these events already.
  for (const Event event : events_) static_cast<void>(driver_.event_destroy(event));
}

void Copier::drop(Event event) noexcept {
  const Current current(driver_, context_);
  static_cast<void>(driver_.event_destroy(event));  // an error means that a destroyed context has freed it
}

// Returns an unused event or creates one. It reserves space in `events_` for every event created, so that give_event()
// never allocates.
Event Copier::take_event(Result* result) noexcept {
  if (!events_.empty()) {
    const Event event = events_.back();
    events_.pop_back();
    return event;
  }
  *result = kOutOfMemory;
  try {
    events_.reserve(events_made_ + 1);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
  Event made = nullptr;
  *result = driver_.event_create(&made, kDisableTiming);
  if (*result != kSuccess) return nullptr;
  ++events_made_;
  return made;
}

std::unique_ptr<Transfer> Copier::begin(Direction direction, const Layout& layout, core::Stage* stages,
                                        std::uint32_t flows, const PieceTable& table) {
  const Stream stream = shared_->next_stream(direction == Direction::to_host ? 0 : 1);
  return std::make_unique<Transfer>(this, direction, layout, stages, flows, stream, table);
}

}  // namespace weft::gpu
