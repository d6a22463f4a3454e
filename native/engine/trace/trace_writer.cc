// The writing thread writes every 20 ms while records arrive, so a killed process loses at most the last 20 ms of
// records.
#include "native/engine/trace/trace_writer.h"

#include <pthread.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <new>
#include <utility>

#include "native/engine/clock.h"
#include "native/engine/log.h"
#include "native/engine/signals_blocked.h"

namespace weft::engine {
namespace {

using telemetry::TraceBlockHeader;
using telemetry::TraceHead;

constexpr std::size_t kTraceRingBytes = 256 << 10;
constexpr std::size_t kRingsMax = 256;                // maximum number of threads that trace at the same time
constexpr std::size_t kTextsMax = 16'384;             // maximum number of texts (names, addresses) in a trace
constexpr std::size_t kTextBytesMax = 1 << 20;        // bytes of text records: half for texts, half for record heads
constexpr std::size_t kStandingMax = 65'536;          // maximum number of communicators and connections at a time
constexpr std::uint32_t kStandingRing = 0xFFFF'FFFF;  // field `ring` of blocks with standing records
constexpr auto kDrainPause = std::chrono::milliseconds(20), kIdlePause = std::chrono::milliseconds(100);
constexpr std::int64_t kStallNs = 100'000'000;         // if the writing thread wakes up this late, it records an event
constexpr std::int64_t kCpuWaitNs = 1'000'000'000;     // time between readings of how long threads waited for a core
constexpr std::int64_t kTraceRetryNs = 1'000'000'000;  // time from a failed write to the next attempt
constexpr std::int64_t kTraceLookNs = 250'000'000;     // time between checks whether the file was removed
constexpr std::uint32_t kIdsTaken = 256;               // ids that a thread takes at once
// This bit is set in the ids of standing records. They may last as long as the process, so they must differ from the
// ids of other records, which begin anew after 2^31 records.
constexpr std::uint32_t kStandingId = 0x8000'0000;
static_assert(kStandingId % kIdsTaken == 0);
constexpr std::int64_t kTraceWarnNs = 60'000'000'000;
constexpr std::int64_t kTraceCloseNs = 3'000'000'000;  // longest wait for the last writes, which a hung disk may block

std::atomic<std::uint64_t> next_serial{1};
std::atomic<pid_t> process{0};  // process id, stored because getpid() is a system call; 0: no writer was opened yet

// TraceWriters of this process by directory. Never destroyed: threads may trace during exit.
struct TraceWriters {
  std::mutex mutex;
  std::map<std::string, std::weak_ptr<TraceWriter>> by_directory;
};
TraceWriters& writers() noexcept {
  static TraceWriters* const made = new TraceWriters;
  return *made;
}

// At the exit of the process: ends the traces whose owners are never destroyed, such as NCCL's profiler. All of them
// together take at most kTraceCloseNs.
void close_writers() noexcept {
  std::vector<std::shared_ptr<TraceWriter>> open;
  try {
    const std::lock_guard<std::mutex> lock(writers().mutex);
    for (const auto& [directory, writer] : writers().by_directory) {
      if (std::shared_ptr<TraceWriter> found = writer.lock()) open.push_back(std::move(found));
    }
  } catch (const std::bad_alloc&) {  // out of memory: the other traces get no end record
  }
  const std::int64_t until_ns = now_ns() + kTraceCloseNs;
  for (const std::shared_ptr<TraceWriter>& writer : open) writer->stop();
  for (const std::shared_ptr<TraceWriter>& writer : open) {
    static_cast<void>(writer->close(std::max<std::int64_t>(until_ns - now_ns(), 0)));
  }
}

void lock_writers() { writers().mutex.lock(); }
void unlock_writers() { writers().mutex.unlock(); }
void enter_child() {
  process.store(::getpid(), std::memory_order_relaxed);
  writers().mutex.unlock();
}
void follow_forks() noexcept {
  static const bool watches = ::pthread_atfork(lock_writers, unlock_writers, enter_child) == 0;
  static const bool ends = std::atexit(close_writers) == 0;
  static_cast<void>(watches && ends);
  process.store(::getpid(), std::memory_order_relaxed);
}

// The ring of this thread, given back when the thread ends or uses another TraceWriter.
struct ThreadRing {
  std::uint64_t serial = 0;
  std::shared_ptr<TraceRing> ring;  // null: the writer has no ring for this thread
  ~ThreadRing() { release(); }
  void release() noexcept {
    if (ring != nullptr) ring->in_use.store(false, std::memory_order_release);
    ring.reset();
    serial = 0;
  }
};
thread_local ThreadRing thread_ring;

// Ids that this thread has taken from a writer and not used yet: `left` ids, the first of which is `next`.
struct ThreadIds {
  std::uint64_t serial = 0;
  std::uint32_t next = 0, left = 0;
};
thread_local ThreadIds thread_ids;

}  // namespace

std::shared_ptr<TraceWriter> TraceWriter::open(const std::string& directory, const TraceLimits& limits,
                                               std::string* error) {
  follow_forks();
  TraceWriters& known = writers();
  const std::lock_guard<std::mutex> lock(known.mutex);
  std::shared_ptr<TraceWriter> found = known.by_directory[directory].lock();
  if (found != nullptr && !found->in_child()) return found;
  // A forked child never destroys the writer: the writing thread exists in the parent only, and a thread of the parent
  // may hold the mutex. If the writing thread is blocked in a write, the writer is leaked, because the thread still
  // uses it.
  std::shared_ptr<TraceWriter> made(new TraceWriter(directory, limits), [](TraceWriter* writer) {
    if (!writer->in_child() && writer->close(kTraceCloseNs)) delete writer;
  });
  if (!made->start(error)) return nullptr;
  known.by_directory[directory] = made;
  return made;
}

TraceWriter::TraceWriter(std::string directory, const TraceLimits& limits)
    : directory_(std::move(directory)),
      pid_(::getpid()),
      serial_(next_serial.fetch_add(1)),
      files_(directory_, limits, trace_identity()),
      ids_(limits.first_id),
      standing_ids_(limits.first_id) {
  block_.reserve(sizeof(TraceBlockHeader) + std::max(kTraceRingBytes, kTextBytesMax));
}

bool TraceWriter::start(std::string* error) {
  if (::mkdir(directory_.c_str(), 0777) != 0 && errno != EEXIST) {
    *error = "cannot trace into " + directory_ + ": it cannot be made: " + std::strerror(errno);
    return false;
  }
  if (!files_.begin(now_ns(), error)) {
    *error = "cannot trace into " + *error;
    return false;
  }
  const SignalsBlocked blocked;
  try {
    thread_ = std::thread([this] { run(); });
  } catch (const std::exception& problem) {
    *error = std::string("cannot start the thread that writes the trace: ") + problem.what();
  }
  return thread_.joinable();
}

void TraceWriter::stop() noexcept {
  if (in_child()) return;
  const std::lock_guard<std::mutex> lock(mutex_);
  stopping_ = true;
  wake_.notify_all();
}

bool TraceWriter::close(std::int64_t timeout_ns) noexcept {
  if (in_child()) return true;
  const std::lock_guard<std::mutex> closing(closing_);
  stop();
  if (!thread_.joinable()) return !left_;
  {
    std::unique_lock<std::mutex> lock(mutex_);
    left_ = !drained_.wait_for(lock, std::chrono::nanoseconds(timeout_ns), [this] { return ended_writing_; });
  }
  if (left_) {
    thread_.detach();
  } else {
    thread_.join();
  }
  return !left_;
}

bool TraceWriter::in_child() const noexcept { return process.load(std::memory_order_relaxed) != pid_; }

std::uint32_t TraceWriter::next_id() noexcept {
  if (thread_ids.serial != serial_ || thread_ids.left == 0) {
    thread_ids = {serial_, ids_.fetch_add(kIdsTaken, std::memory_order_relaxed) & ~kStandingId, kIdsTaken};
  }
  --thread_ids.left;
  const std::uint32_t id = thread_ids.next++;
  return id != 0 ? id : next_id();
}

std::uint32_t TraceWriter::next_standing_id() noexcept {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::uint32_t id = 0;
  do {
    id = kStandingId | standing_ids_++;
  } while (standing_.count(id) != 0);
  return id;
}

void TraceWriter::put_bytes(const void* record, std::size_t bytes) noexcept {
  if (in_child()) return;
  if (thread_ring.serial != serial_) {
    thread_ring.release();
    thread_ring.ring = take_ring();
    thread_ring.serial = serial_;
  }
  const bool put = thread_ring.ring != nullptr && thread_ring.ring->put(record, bytes);
  if (!put) count_dropped();
  if (put && thread_ring.ring->passed_half(bytes)) wake_.notify_one();
}

std::shared_ptr<TraceRing> TraceWriter::take_ring() noexcept {
  try {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (const std::shared_ptr<TraceRing>& ring : rings_) {
      if (!ring->in_use.exchange(true, std::memory_order_acquire)) return ring;
    }
    if (rings_.size() >= kRingsMax) return nullptr;
    rings_.push_back(std::make_shared<TraceRing>(kTraceRingBytes));
    rings_.back()->in_use.store(true, std::memory_order_relaxed);
    return rings_.back();
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}

void TraceWriter::append(const void* data, std::size_t bytes) {
  const auto* const first = static_cast<const std::byte*>(data);
  fresh_.insert(fresh_.end(), first, first + bytes);
}

namespace {

// The record of a text: a head and the bytes, padded with zeros.
std::vector<std::byte> text_record(const std::string& text, std::uint32_t id) {
  const std::size_t bytes = (sizeof(TraceHead) + text.size() + 7) / 8 * 8;
  std::vector<std::byte> record(bytes);
  const TraceHead head{telemetry::TraceText::kType, static_cast<std::uint16_t>(bytes), id, now_ns()};
  std::memcpy(record.data(), &head, sizeof head);
  std::memcpy(record.data() + sizeof head, text.data(), text.size());
  return record;
}

}  // namespace

std::uint32_t TraceWriter::text(std::string_view text) noexcept {
  if (in_child()) return 0;
  try {
    const std::string key(text.substr(0, telemetry::kTraceTextBytesMax));
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = texts_.find(key);
    if (found != texts_.end()) return found->second;
    if (texts_.size() >= kTextsMax || text_bytes_ + key.size() > kTextBytesMax / 2) return 0;
    const auto id = static_cast<std::uint32_t>(texts_.size() + 1);
    const std::vector<std::byte> record = text_record(key, id);
    append(record.data(), record.size());
    texts_.emplace(key, id);
    text_bytes_ += key.size();
    return id;
  } catch (const std::bad_alloc&) {
    return 0;
  }
}

void TraceWriter::begin_bytes(std::uint32_t id, const void* record, std::size_t bytes) noexcept {
  if (in_child()) return;
  try {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (standing_.size() < kStandingMax) {
      const auto* const first = static_cast<const std::byte*>(record);
      standing_[id].assign(first, first + bytes);
      append(record, bytes);
      return;
    }
  } catch (const std::bad_alloc&) {
  }
  count_dropped();
}

void TraceWriter::end_standing(std::uint32_t id) noexcept {
  if (in_child()) return;
  try {
    const std::lock_guard<std::mutex> lock(mutex_);
    ended_.push_back(id);
  } catch (const std::bad_alloc&) {  // out of memory: later files repeat the ended record
  }
}

std::int64_t TraceWriter::put_records() const noexcept {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::int64_t records = 0;
  for (const std::shared_ptr<TraceRing>& ring : rings_) records += ring->records();
  return records;
}

TraceStats TraceWriter::stats() const noexcept {
  return {put_records(), dropped_.load(std::memory_order_relaxed), bytes_.load(std::memory_order_relaxed)};
}

bool TraceWriter::flush(std::int64_t timeout_ns) noexcept {
  if (in_child()) return false;
  std::unique_lock<std::mutex> lock(mutex_);
  const std::uint64_t wanted = rounds_ + 2;  // the drain() in progress may have passed this thread's ring
  wake_.notify_all();
  const auto done = [&] { return rounds_ >= wanted || ended_writing_; };
  return drained_.wait_for(lock, std::chrono::nanoseconds(timeout_ns), done);
}

std::size_t TraceWriter::count_records(const std::byte* records, std::size_t bytes) noexcept {
  std::size_t count = 0;
  TraceHead head;
  for (std::size_t at = 0; at < bytes; at += head.bytes, ++count) std::memcpy(&head, records + at, sizeof head);
  return count;
}

// Counts the records of block_, which could not be written, as dropped.
void TraceWriter::drop_block() noexcept {
  const std::size_t head = sizeof(TraceBlockHeader);
  dropped_.fetch_add(static_cast<std::int64_t>(count_records(block_.data() + head, block_.size() - head)),
                     std::memory_order_relaxed);
}

bool TraceWriter::begin_segment(std::int64_t now_ns) {
  std::string error;
  if (!files_.begin(now_ns, &error)) {
    retry_ns_ = now_ns + kTraceRetryNs;
    if (now_ns >= warned_ns_ && !removed_) {
      warned_ns_ = now_ns + kTraceWarnNs;
      log(LogLevel::warn, "cannot write the trace " + error + "; trying again every second, traffic continues");
    }
    return false;
  }
  removed_ = false;
  // The new file begins with all texts and standing records.
  const std::lock_guard<std::mutex> lock(mutex_);
  fresh_.clear();
  for (const auto& [text, id] : texts_) {
    const std::vector<std::byte> record = text_record(text, id);
    append(record.data(), record.size());
  }
  for (const auto& [id, record] : standing_) append(record.data(), record.size());
  return true;
}

// Four times a second, checks that the file was not removed. A removed folder is not created again, because it was
// probably removed to free its space.
void TraceWriter::notice_removal(std::int64_t now_ns) {
  if (!files_.open() || now_ns < look_ns_) return;
  look_ns_ = now_ns + kTraceLookNs;
  if (!files_.removed()) return;
  log(LogLevel::warn, "the trace " + files_.path() + " was removed while it was written; a new file is begun, once " +
                          directory_ + " exists, and traffic continues");
  files_.abandon();
  removed_ = true;
  retry_ns_ = 0;
}

// Writes block_: room for a header, followed by records. Returns false if the records were dropped.
bool TraceWriter::write_block(std::uint32_t ring) {
  if (block_.size() == sizeof(TraceBlockHeader)) return true;
  const bool written = append_block(ring);
  if (!written) drop_block();
  return written;
}

// Writes the block that ends the trace, with the final number of dropped records. If there is no space for it, readers
// can tell that it is missing.
void TraceWriter::write_end() {
  telemetry::TraceEnd record;
  record.head.id = next_id();
  record.head.time_ns = now_ns();
  block_.assign(sizeof(TraceBlockHeader), std::byte{0});
  const auto* const first = reinterpret_cast<const std::byte*>(&record);
  block_.insert(block_.end(), first, first + sizeof record);
  static_cast<void>(append_block(kStandingRing));
}

bool TraceWriter::append_block(std::uint32_t ring) {
  std::string error;
  const auto dropped = static_cast<std::uint64_t>(dropped_.load(std::memory_order_relaxed));
  if (files_.open() && files_.write(block_.data(), block_.size(), ring, dropped, &error)) return true;
  if (error.empty()) return false;
  const std::int64_t now = now_ns();
  retry_ns_ = now + kTraceRetryNs;
  if (now >= warned_ns_) {
    warned_ns_ = now + kTraceWarnNs;
    log(LogLevel::warn, "cannot write the trace " + error + "; trying again every second, traffic continues");
  }
  return false;
}

// Writes the new records of all rings, and the end of the trace if it is the last call. Returns whether there was
// anything to write.
bool TraceWriter::drain(bool last) {
  const std::int64_t now = now_ns();
  const std::int64_t before = put_records();
  files_.prune(now);
  notice_removal(now);
  if (files_.open() ? files_.full(now) : now >= retry_ns_ || last) static_cast<void>(begin_segment(now));
  // The rings are read before fresh_ and written after it, so that every text in the file precedes the records that
  // name it.
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    draining_ = rings_;
    ending_.swap(ended_);  // ended standing records are kept until the rings, which may refer to them, are written
  }
  taken_.resize(draining_.size());
  bool any = false;
  // All memory is reserved before the first ring is read, so that lack of memory loses no records.
  for (std::size_t i = 0; i < draining_.size(); ++i) {
    taken_[i].reserve(sizeof(TraceBlockHeader) + draining_[i]->size());
    taken_[i].resize(sizeof(TraceBlockHeader));
  }
  for (std::size_t i = 0; i < draining_.size(); ++i) {
    draining_[i]->take(&taken_[i]);
    any = any || taken_[i].size() > sizeof(TraceBlockHeader);
  }
  block_.assign(sizeof(TraceBlockHeader), std::byte{0});
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    block_.insert(block_.end(), fresh_.begin(), fresh_.end());
    fresh_.clear();
  }
  any = any || block_.size() > sizeof(TraceBlockHeader);
  static_cast<void>(write_block(kStandingRing));
  for (std::size_t i = 0; i < taken_.size(); ++i) {
    block_.swap(taken_[i]);
    static_cast<void>(write_block(static_cast<std::uint32_t>(i)));
    block_.swap(taken_[i]);
  }
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (const std::uint32_t id : ending_) standing_.erase(id);
  }
  ending_.clear();
  if (last) write_end();
  bytes_.store(files_.bytes(), std::memory_order_relaxed);
  return any || put_records() != before;
}

void TraceWriter::put_event(std::string_view what, std::int64_t now_ns, std::int64_t value,
                            std::uint16_t status) noexcept {
  telemetry::TraceEvent record;
  record.head.id = next_id();
  record.head.time_ns = now_ns;
  record.value = static_cast<std::uint64_t>(value);
  record.what = text(what);
  record.status = status;
  put(record);
}

// Puts an event if this thread woke up far too late from its pause: the process was stopped or frozen, or got no CPU.
// By this event, diagnosis tells a process that did not run from one whose NIC did not work.
void TraceWriter::notice_stall(std::int64_t due_ns, std::int64_t woke_ns) noexcept {
  if (woke_ns - due_ns >= kStallNs) put_event("process_stalled", woke_ns, woke_ns - due_ns, 0);
}

// Puts an event about once a second, also if no thread waited, so that a process which had its cores can be told from
// one of which it is not known.
void TraceWriter::measure_cpu_wait(std::int64_t now_ns) noexcept {
  const std::int64_t passed_ns = now_ns - cpu_read_ns_;
  if (passed_ns < kCpuWaitNs) return;
  const bool first = std::exchange(cpu_read_ns_, now_ns) == 0;
  const std::int64_t waited_ns = cpu_wait_.longest_ns();
  if (first || waited_ns < 0) return;
  const std::int64_t passed_ms = std::min<std::int64_t>(passed_ns / 1'000'000, 0xFFFF);
  put_event("cpu_wait", now_ns, waited_ns, static_cast<std::uint16_t>(passed_ms));
}

void TraceWriter::run() noexcept {
  measure_cpu_wait(now_ns());
  for (bool last = false; !last;) {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      last = stopping_;
    }
    bool any = false;
    try {
      any = drain(last);
    } catch (const std::bad_alloc&) {  // the rings drop records until there is memory again
    }
    std::unique_lock<std::mutex> lock(mutex_);
    ++rounds_;
    drained_.notify_all();
    if (stopping_) continue;
    const auto pause = any ? kDrainPause : kIdlePause;
    const std::int64_t from_ns = now_ns();
    wake_.wait_for(lock, pause);
    lock.unlock();
    const std::int64_t woke_ns = now_ns();
    notice_stall(from_ns + std::chrono::nanoseconds(pause).count(), woke_ns);
    measure_cpu_wait(woke_ns);
  }
  files_.end();
  const std::lock_guard<std::mutex> lock(mutex_);
  ended_writing_ = true;
  drained_.notify_all();
}

}  // namespace weft::engine
