// The oldest message of each connection and direction always gets pinned memory, if necessary more than the pool has:
// otherwise all memory could belong to messages that wait for others. Later messages wait until the pool has room.
#include "native/message/device_worker.h"

#include <pthread.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "native/core/stripes.h"
#include "native/engine/clock.h"
#include "native/engine/futex.h"
#include "native/engine/signals_blocked.h"
#include "native/gpu/inspect.h"

namespace weft::message {
namespace {

using gpu::kGranuleBytes;
constexpr std::size_t kRingBytesMin = 2 * kGranuleBytes;
constexpr std::size_t kBesideBytes = 2 << 20;  // size of each further pool of pinned memory
constexpr std::int64_t kSpinNs = 50'000;       // time for which the thread polls without sleeping
constexpr std::int64_t kPauseNs = 50'000;
constexpr std::int64_t kSleepNsMax = 3'600'000'000'000;
constexpr const char* kNoMemory = "out of memory";  // so short that std::string does not allocate

constexpr std::size_t up(std::size_t bytes, std::size_t unit) noexcept { return (bytes + unit - 1) / unit * unit; }

}  // namespace

void DeviceRequest::finish(Status status, std::size_t bytes, const std::string& error) noexcept {
  try {
    error_ = error;
  } catch (const std::bad_alloc&) {
    error_ = kNoMemory;
  }
  set(status, bytes);
}

// One message in progress: its bounce buffers, their pinned memory, and the copies.
class DeviceWorker::Job final : public gpu::Transfer::Listener, public engine::LoanTaker {
 public:
  explicit Job(DeviceWorker* by) noexcept : worker(by) {}
  ~Job() override { release(); }
  bool on_staged(std::uint32_t stage) noexcept override { return connection->on_staged(request, stage); }
  std::uint64_t bytes() const noexcept { return layout->bytes(); }
  std::size_t stripes() const noexcept { return core::stripe_count(bytes(), connection->flows()); }
  std::size_t parts() const noexcept { return core::stage_count(bytes(), connection->flows()); }
  bool failed() const noexcept { return failure != Status::ok; }
  // The peer lends the message, for which this job waits, instead of sending its bytes.
  void take(engine::TakenLoan loan) noexcept override {
    taken = std::move(loan);
    is_taken.store(true, std::memory_order_release);
    worker->wake();
  }
  bool is_copying() const noexcept { return is_taken.load(std::memory_order_acquire) && !returned; }
  void release() noexcept {
    for (const PinnedRun& run : runs) PinnedPools::give(run);
    runs.clear();
  }

  DeviceWorker* const worker;
  std::shared_ptr<Connection> connection;
  gpu::Direction direction = gpu::Direction::to_host;
  std::shared_ptr<const gpu::Layout> layout;
  After after;
  std::unique_ptr<core::Stage[]> stages;
  std::unique_ptr<std::atomic<std::uint32_t>[]> released;
  std::vector<PinnedRun> runs;
  gpu::PieceTable table;
  engine::Request* request = nullptr;
  std::shared_ptr<DeviceRequest> told;
  std::unique_ptr<gpu::Transfer> transfer;
  std::unique_ptr<engine::LentSend> lent;  // a send that the peer copies; then there are no stages
  engine::TakenLoan taken;                 // valid if `is_taken`
  std::atomic<bool> is_taken{false};
  std::unique_ptr<LoanCopy> loan_copy;
  bool returned = false;        // the loan was copied, or will not be
  Status failure = Status::ok;  // an error of the device or of the worker; ok: none
  std::string error;
  bool given_up = false;
};

DeviceWorker::DeviceWorker(const gpu::Driver& driver, const DeviceLimits& limits, std::function<void()> on_done)
    : driver_(driver), limits_(limits), on_done_(std::move(on_done)) {}

std::unique_ptr<DeviceWorker> DeviceWorker::open(const gpu::Driver& driver, int device, const DeviceLimits& limits,
                                                 std::function<void()> on_done, std::string* error) {
  std::unique_ptr<DeviceWorker> worker(new DeviceWorker(driver, limits, std::move(on_done)));
  return worker->start(device, error) ? std::move(worker) : nullptr;
}

bool DeviceWorker::start(int device, std::string* error) {
  copier_ = gpu::Copier::open(driver_, device, error, limits_.image);
  if (copier_ == nullptr) return false;
  auto pool = copier_->shared().pool(up(limits_.pool_bytes, kGranuleBytes), kGranuleBytes, error);
  if (pool == nullptr) return false;
  pools_.add(std::move(pool));
  lent_streams_ = std::make_unique<LentStreams>(driver_, *copier_);
  waits_ = StreamWaits::open(driver_, &copier_->shared(), error);
  if (waits_ == nullptr) return false;
  loans_ = std::make_unique<DeviceLoans>(driver_, copier_.get(), device, [this] { wake(); });
  const engine::SignalsBlocked blocked;
  try {
    thread_ = std::thread([this] { run(); });
    ::pthread_setname_np(thread_.native_handle(), ("weft-gpu-" + std::to_string(device)).substr(0, 15).c_str());
  } catch (const std::system_error& problem) {
    *error = std::string("cannot start a GPU's thread: ") + problem.what();
  }
  return thread_.joinable();
}

DeviceWorker::~DeviceWorker() {
  if (thread_.joinable()) {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    wake();
    thread_.join();
  }
  if (copier_ == nullptr) return;
  loans_.reset();
  pools_.retire(&copier_->shared());
}

std::size_t DeviceWorker::pinned_bytes() const {
  const std::lock_guard lock(mutex_);
  return pools_.bytes();
}

std::size_t DeviceWorker::pinned_bytes_lent() const {
  const std::lock_guard lock(mutex_);
  return pools_.lent_bytes();
}

// Takes a ring of this shape for each stage, or none at all. The caller must hold the mutex.
bool DeviceWorker::take_rings(Job* job, const gpu::RingShape& shape) {
  const std::size_t parts = job->parts(), ring = shape.ring_bytes, pieces = ring / shape.piece_bytes;
  job->stages = std::make_unique<core::Stage[]>(parts);
  job->released = std::make_unique<std::atomic<std::uint32_t>[]>(parts * pieces);
  job->runs.reserve(parts);
  // A send needs no ring for the home flow if that carries no stripe; see core::stage_count().
  const std::size_t rings = job->direction == gpu::Direction::to_host ? job->stripes() : parts;
  for (std::size_t i = 0; i < parts; ++i) {
    core::Stage& stage = job->stages[i];
    if (i < rings) {
      const PinnedRun run = pools_.take(ring);
      if (run.begin == nullptr) {
        job->release();
        return false;
      }
      job->runs.push_back(run);
      stage.ring = run.begin;
    }
    stage.ring_bytes = ring;
    stage.piece_bytes = shape.piece_bytes;
    stage.released = &job->released[i * pieces];
    stage.limit.store(job->direction == gpu::Direction::to_host ? 0 : ring, std::memory_order_relaxed);
  }
  return true;
}

// Takes pinned memory for the table of pieces that kernels gather or scatter; if there is none, no kernels are used.
// The caller must hold the mutex.
void DeviceWorker::take_table(Job* job) {
  const std::vector<gpu::Piece>& pieces = job->layout->pieces();
  if (pieces.size() <= 2 || !has_kernels()) return;
  const std::size_t bytes = pieces.size() * sizeof(gpu::Piece);
  job->runs.reserve(job->runs.size() + 1);
  const PinnedRun run = pools_.take(bytes);
  if (run.begin == nullptr) return;
  job->runs.push_back(run);
  std::memcpy(run.begin, pieces.data(), bytes);
  job->table = {reinterpret_cast<std::uintptr_t>(run.begin), pieces.size()};
}

// Takes a ring for each stripe, as large as the stripe or the limit; if the pool has too little memory, tries half of
// the limit, a quarter, and so on. The caller must hold the mutex.
bool DeviceWorker::lend(Job* job) {
  // The sizes of stripes may differ by some memory pages. A message that is shorter than its receive may have fewer
  // stripes, which are longer than those of the receive.
  const std::size_t longest =
      job->direction == gpu::Direction::to_device && job->parts() > 1 ? 2 * core::kStripeBytesMin : 0;
  const std::size_t part = up(std::max<std::size_t>(job->bytes() / job->stripes() + 2 * 4096, longest), kGranuleBytes);
  for (std::size_t most = std::max(limits_.ring_bytes_max, kRingBytesMin); most >= kRingBytesMin; most /= 2) {
    if (take_rings(job, gpu::ring_shape(part, most))) return true;
    if (part <= kRingBytesMin) return false;
  }
  return false;
}

// Adds a pool of pinned memory. Pinning may wait for the device, so the mutex is not locked meanwhile.
bool DeviceWorker::pin_beside() {
  std::string unused;
  auto beside = copier_->shared().pool(kBesideBytes, kGranuleBytes, &unused);
  if (beside == nullptr) return false;
  const std::lock_guard lock(mutex_);
  pools_.add(std::move(beside));
  return true;
}

Status DeviceWorker::post(const std::shared_ptr<Connection>& connection, gpu::Direction direction,
                          std::shared_ptr<const gpu::Layout> layout, const After& after,
                          const std::shared_ptr<DeviceRequest>& request) noexcept try {
  const std::uint64_t bytes = layout->bytes();
  if (bytes > core::kMessageBytesMax) return Status::invalid_argument;
  auto job = std::make_unique<Job>(this);
  job->connection = connection;
  job->direction = direction;
  job->layout = std::move(layout);
  job->told = request;
  std::list<std::unique_ptr<Job>> place;
  Job* const made = place.emplace_back(std::move(job)).get();
  const bool send = direction == gpu::Direction::to_host;
  std::unique_lock lock(mutex_);
  if (send) made->lent = loans_->lend(connection.get(), *made->layout);
  for (bool lent = bytes == 0 || made->lent != nullptr; !lent;) {
    lent = lend(made);
    if (lent) break;
    const bool first = std::none_of(under_way_.begin(), under_way_.end(), [&](const Job* other) {
      return other->connection == connection && other->direction == direction;
    });
    if (!first) return Status::would_block;
    lock.unlock();
    if (!pin_beside()) return Status::out_of_memory;
    lock.lock();
  }
  if (stopping_) return Status::cancelled;
  if (made->lent == nullptr) take_table(made);
  under_way_.reserve(under_way_.size() + 1);
  Status status = Status::ok;
  if (bytes == 0) {
    status = send ? connection->post_send(nullptr, 0, 0, &made->request)
                  : connection->post_receive(nullptr, 0, 0, &made->request);
  } else if (made->lent != nullptr) {
    status = connection->post_lent_send(made->lent.get(), bytes, &made->request);
  } else {
    status = send ? connection->post_staged_send(made->stages.get(), bytes, &made->request)
                  : connection->post_staged_receive(made->stages.get(), bytes, &made->request, made);
  }
  if (status != Status::ok) return status;
  made->after = after;
  under_way_.push_back(made);
  fresh_.splice(fresh_.end(), place);
  lock.unlock();
  wake();
  return Status::ok;
} catch (const std::bad_alloc&) {
  return Status::out_of_memory;
}

void DeviceWorker::cancel(const std::shared_ptr<DeviceRequest>& request, Status reason) noexcept {
  {
    const std::lock_guard lock(mutex_);
    request->finish(reason, 0, "");
    for (std::uint32_t* const word : request->words_) waits_->release(word);
    request->words_.clear();
  }
  on_done_();
}

Status DeviceWorker::mark(gpu::Stream stream, gpu::Event* out, std::string* error) noexcept try {
  *out = nullptr;
  const gpu::Current current(driver_, copier_->context());
  gpu::Event made = nullptr;
  gpu::Result result = current.result();
  const char* called = "cuCtxPushCurrent";
  if (result == gpu::kSuccess && !gpu::stream_belongs(driver_, stream, copier_->context(), error)) {
    return Status::invalid_argument;
  }
  // An idle stream needs no event. Its event could even be queued behind another stream that waits for a message.
  if (result == gpu::kSuccess) {
    result = driver_.stream_query(stream), called = "cuStreamQuery";
    if (result == gpu::kSuccess) return Status::ok;
    if (result == gpu::kNotReady) result = gpu::kSuccess;
  }
  if (result == gpu::kSuccess) result = driver_.event_create(&made, gpu::kDisableTiming), called = "cuEventCreate";
  if (result == gpu::kSuccess) result = driver_.event_record(made, stream), called = "cuEventRecord";
  if (result == gpu::kSuccess) {
    *out = made;
    return Status::ok;
  }
  *error = driver_.say(called, result);
  if (made != nullptr) static_cast<void>(driver_.event_destroy(made));
  return Status::device_error;
} catch (const std::bad_alloc&) {
  *error = kNoMemory;
  return Status::out_of_memory;
}

Status DeviceWorker::reduce(gpu::ElementType type, gpu::Operation operation, const gpu::Reduction& reduction,
                            gpu::Stream stream, const std::vector<gpu::Event>& events, std::string* error) noexcept
    try {
  if (!has_kernels()) {
    *error = copier_->shared().kernels_missing();
    return Status::device_unavailable;
  }
  const gpu::Current current(driver_, copier_->context());
  gpu::Result result = current.result();
  if (result == gpu::kSuccess && !gpu::stream_belongs(driver_, stream, copier_->context(), error)) {
    return Status::invalid_argument;
  }
  const char* called = "cuStreamWaitEvent";
  for (const gpu::Event event : events) {
    if (result == gpu::kSuccess) result = driver_.stream_wait_event(stream, event, 0);
  }
  if (result == gpu::kSuccess) {
    result = copier_->shared().kernels()->reduce(type, operation, reduction, stream), called = "cuLaunchKernel";
  }
  if (result == gpu::kSuccess) return Status::ok;
  *error = driver_.say(called, result);
  return Status::device_error;
} catch (const std::bad_alloc&) {
  *error = kNoMemory;
  return Status::out_of_memory;
}

Status DeviceWorker::passed(gpu::Event mark, std::string* error) noexcept try {
  const gpu::Current current(driver_, copier_->context());
  const gpu::Result result = current.result() != gpu::kSuccess ? current.result() : driver_.event_query(mark);
  if (result == gpu::kSuccess) return Status::ok;
  if (result == gpu::kNotReady) return Status::would_block;
  *error = driver_.say("cuEventQuery", result);
  return Status::device_error;
} catch (const std::bad_alloc&) {
  *error = kNoMemory;
  return Status::device_error;
}

gpu::DmaBuf DeviceWorker::export_dmabuf(gpu::Address address, std::uint64_t bytes) noexcept {
  const gpu::Current current(driver_, copier_->context());
  return current.result() == gpu::kSuccess ? gpu::export_dmabuf(driver_, address, bytes) : gpu::DmaBuf{};
}

Status DeviceWorker::wait_on(const std::shared_ptr<DeviceRequest>& request, gpu::Stream stream,
                             std::string* error) noexcept try {
  {
    const gpu::Current current(driver_, copier_->context());
    if (current.result() != gpu::kSuccess) {
      *error = driver_.say("cuCtxPushCurrent", current.result());
      return Status::device_error;
    }
    if (!gpu::stream_belongs(driver_, stream, copier_->context(), error)) return Status::invalid_argument;
  }
  gpu::PersistentKernel& kernel = copier_->shared().persistent_kernel();
  std::uint32_t* word = nullptr;
  bool done = false;
  kernel.wait_begins();  // StreamWaits::release() ends this wait when it sets the memory word
  {
    const std::lock_guard lock(mutex_);
    done = request->done();
    try {
      request->words_.reserve(request->words_.size() + 1);
      word = done ? nullptr : waits_->take();
    } catch (const std::bad_alloc&) {
      kernel.wait_ends();
      throw;
    }
    if (word != nullptr) request->words_.push_back(word);
  }
  if (word == nullptr) {
    kernel.wait_ends();
    if (done) return Status::ok;
    *error = "this device has 1,024 waiting streams, the maximum, so no other stream can wait for a message now";
    return Status::would_block;
  }
  // Called without the mutex: if the stream's queue is full, this blocks until a message ends, which needs the mutex.
  const gpu::Event passed = waits_->wait(word, stream, error);
  const std::lock_guard lock(mutex_);
  if (passed != nullptr) {
    waits_->add(word, passed);
    return Status::ok;
  }
  const auto held = std::find(request->words_.begin(), request->words_.end(), word);
  if (held != request->words_.end()) request->words_.erase(held);
  waits_->add(word, nullptr);
  return Status::device_error;
} catch (const std::bad_alloc&) {
  *error = kNoMemory;
  return Status::out_of_memory;
}

gpu::Stream DeviceWorker::lend_stream(std::string* error) noexcept try {
  return lent_streams_->lend(error);
} catch (const std::bad_alloc&) {
  *error = kNoMemory;
  return nullptr;
}

void DeviceWorker::drop(const After& after) noexcept {
  if (after.lent_stream != nullptr) return lent_streams_->give_back(after);
  if (after.event != nullptr) copier_->drop(after.event);
}

void DeviceWorker::wake() noexcept {
  wakes_.fetch_add(1, std::memory_order_seq_cst);
  if (asleep_.load(std::memory_order_seq_cst)) engine::futex_wake_all(&wakes_);
}

void DeviceWorker::sleep_a_while(bool busy) noexcept {
  asleep_.store(true, std::memory_order_seq_cst);
  const std::int32_t seen = wakes_.load(std::memory_order_seq_cst);
  bool idle = !loans_->has_work();
  {
    const std::lock_guard lock(mutex_);
    idle = idle && fresh_.empty() && !stopping_;
  }
  if (idle) engine::futex_wait(&wakes_, seen, busy || loans_->busy() ? kPauseNs : kSleepNsMax);
  asleep_.store(false, std::memory_order_relaxed);
}

void DeviceWorker::run() noexcept {
  std::int64_t moved_ns = engine::now_ns();
  for (bool stopping = false;;) {
    {
      const std::lock_guard lock(mutex_);
      jobs_.splice(jobs_.end(), fresh_);
      stopping = stopping_;
    }
    if (stopping && jobs_.empty()) return;
    bool moved = loans_->poll();
    for (auto job = jobs_.begin(); job != jobs_.end();) {
      if (stopping && !(*job)->failed()) (*job)->failure = Status::cancelled;
      try {
        moved |= poll(job->get());
      } catch (const std::bad_alloc&) {
        (*job)->failure = Status::out_of_memory;
      }
      if (!(*job)->told->done()) {
        ++job;
        continue;
      }
      job = jobs_.erase(job);
      on_done_();
    }
    if (moved) moved_ns = engine::now_ns();
    if (jobs_.empty() || engine::now_ns() - moved_ns > kSpinNs) sleep_a_while(!jobs_.empty());
  }
}

// Advances a message. True if it made progress.
bool DeviceWorker::poll(Job* job) {
  loans_->introduce(job->connection);
  if (!job->failed()) begin(job);
  bool moved =
      job->transfer != nullptr && job->transfer->poll(job);  // polled also after a failure, until the copies have ended
  if (job->is_copying()) moved |= copy_loan(job, loans_.get());
  if (job->transfer != nullptr && job->transfer->failed() && !job->failed()) {
    job->failure = Status::device_error;
    job->error = job->transfer->error();
  }
  if (job->failed() && !job->given_up) {
    job->given_up = true;
    // Makes the engines release the bounce buffers; the connection ends, because the peer waits for bytes that will not
    // come.
    if (job->lent != nullptr) {
      job->connection->quiesce(job->lent.get(), sizeof *job->lent);
    } else if (job->bytes() != 0) {
      job->connection->quiesce(job->stages.get(), sizeof(core::Stage) * job->parts());
    }
    if (!job->request->done()) job->connection->close();
  }
  const bool quiet = job->transfer == nullptr || job->transfer->quiet();
  if (!job->request->done() || !quiet || job->is_copying()) return moved;
  // A receive is complete only when its bytes are on the device.
  const bool emptied = job->direction == gpu::Direction::to_host || job->returned ||
                       (job->transfer != nullptr && job->transfer->arrived_bytes() == job->request->bytes());
  if (job->request->status() == Status::ok && !job->failed() && !emptied) return moved;
  finish(job);
  return true;
}

// Starts the copies of a message once the GPU has finished the work that must precede them.
void DeviceWorker::begin(Job* job) {
  if (job->transfer != nullptr || (job->lent != nullptr && job->lent->ready.load(std::memory_order_relaxed))) return;
  const Status status = job->after.event == nullptr ? Status::ok : passed(job->after.event, &job->error);
  if (status == Status::would_block) return;
  if (status != Status::ok) {
    job->failure = status;
    return;
  }
  drop(std::exchange(job->after, {}));
  if (job->lent != nullptr) {
    job->lent->ready.store(true, std::memory_order_release);
    static_cast<void>(job->on_staged(0));
    return;
  }
  const auto parts = job->bytes() == 0 ? 0 : static_cast<std::uint32_t>(job->parts());
  job->transfer = copier_->begin(job->direction, *job->layout, job->stages.get(), parts, job->table);
}

// Copies what the peer lends once the GPU has finished the work that must precede it, and gives the loan back. True if
// something moved.
bool DeviceWorker::copy_loan(Job* job, DeviceLoans* loans) {
  if (job->loan_copy != nullptr) {
    if (!job->loan_copy->ended()) return false;
  } else if (!job->failed() && !job->request->done()) {
    if (job->transfer == nullptr) return false;
    auto copy = loans->make_copy();
    const bool begun = copy->begin(job->taken, *job->layout, job->table);
    job->loan_copy = std::move(copy);
    if (begun) return true;
  }
  if (job->loan_copy != nullptr && job->loan_copy->failed() && !job->failed()) {
    job->failure = Status::device_error;
    job->error = job->loan_copy->error();
  }
  job->loan_copy.reset();
  job->returned = true;
  if (!job->taken.back->on_taken(job->taken.turn, job->failure) && job->failure == Status::device_error) {
    job->failure = Status::ok;  // the port knows why
    job->error.clear();
  }
  return true;
}

// Ends a message: returns its rings, completes the request, and then lets waiting streams continue.
void DeviceWorker::finish(Job* job) noexcept {
  const Status status = job->failed() ? job->failure : job->request->status();
  const std::size_t bytes = job->failed() ? 0 : job->request->bytes();
  job->connection->release(job->request);
  job->transfer.reset();
  job->release();
  drop(std::exchange(job->after, {}));
  const std::lock_guard lock(mutex_);
  under_way_.erase(std::find(under_way_.begin(), under_way_.end(), job));
  job->told->finish(status, bytes, job->error);
  for (std::uint32_t* const word : job->told->words_) waits_->release(word);
  job->told->words_.clear();
}

}  // namespace weft::message
