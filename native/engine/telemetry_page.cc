// Creates and maps the file of a telemetry page, and allocates rows in it.
#include "native/engine/telemetry_page.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <map>
#include <mutex>
#include <new>

#include "native/engine/clock.h"
#include "native/engine/telemetry_files.h"

namespace weft::engine {
namespace {

using telemetry::EnginePageRow;
using telemetry::FlowPageRow;
using telemetry::PageHeader;
using telemetry::PathCells;
using telemetry::PeerPageRow;
using telemetry::ProcessPageRow;

// A telemetry page should have less than 1 MB: /dev/shm of a container has 64 MB by default, most of which other
// libraries use.
constexpr std::size_t kPeerBytesMax = 384 * 1024;  // maximum size of the peer rows and their path rows
constexpr std::uint32_t kPeersMax = 256;
constexpr std::uint32_t kFlowsMax = 1024;
constexpr int kNamesMax = 64;

constexpr std::size_t align(std::size_t bytes) noexcept {
  return (bytes + telemetry::kLineBytes - 1) / telemetry::kLineBytes * telemetry::kLineBytes;
}

// The telemetry pages that this process has mapped. `mutex` is held during a fork, and the child replaces its mappings
// by private memory.
struct Mappings {
  std::mutex mutex;
  std::map<void*, std::size_t> bytes;  // by address: size of the mapping
};

// The object is never destroyed, because a fork can happen after static destructors have started.
Mappings& mappings() noexcept {
  static Mappings* const made = new Mappings;
  return *made;
}

void lock_mappings() { mappings().mutex.lock(); }
void unlock_mappings() { mappings().mutex.unlock(); }
void leave_pages_to_parent() {
  for (const auto& [address, bytes] : mappings().bytes) {
    ::mmap(address, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
  }
  mappings().mutex.unlock();
}

void watch_forks() noexcept {
  static const bool watches = ::pthread_atfork(lock_mappings, unlock_mappings, leave_pages_to_parent) == 0;
  static_cast<void>(watches);
}

// Allocates the file's space. Returns 0 or an errno value. RLIMIT_FSIZE is checked first, because exceeding it raises
// SIGXFSZ, which ends the process.
int allocate(int file, std::size_t bytes) noexcept {
  rlimit limit;
  if (::getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY && limit.rlim_cur < bytes) return EFBIG;
  int problem = EINTR;
  while (problem == EINTR) problem = ::posix_fallocate(file, 0, static_cast<off_t>(bytes));
  return problem;
}

struct Sizes {
  std::size_t schema, process, engines, peers, paths, flows, end;  // section offsets; end: the file's size
  std::uint32_t peers_count, paths_each;
};

Sizes sizes_of(const TelemetryPage::Shape& shape, std::size_t schema_bytes) noexcept {
  Sizes sizes{};
  sizes.paths_each = (shape.paths + telemetry::kPathsStep - 1) / telemetry::kPathsStep * telemetry::kPathsStep;
  const std::size_t peer_bytes = sizeof(PeerPageRow) + sizes.paths_each * sizeof(PathCells);
  sizes.peers_count = std::clamp(static_cast<std::uint32_t>(kPeerBytesMax / peer_bytes), 1u, kPeersMax);
  sizes.schema = align(sizeof(PageHeader));
  sizes.process = align(sizes.schema + schema_bytes);
  sizes.engines = sizes.process + sizeof(ProcessPageRow);
  sizes.peers = sizes.engines + shape.engines * sizeof(EnginePageRow);
  sizes.paths = sizes.peers + sizes.peers_count * sizeof(PeerPageRow);
  sizes.flows = sizes.paths + std::size_t{sizes.peers_count} * sizes.paths_each * sizeof(PathCells);
  sizes.end = sizes.flows + kFlowsMax * sizeof(FlowPageRow);
  return sizes;
}

void write_section(PageHeader* header, const char* name, std::size_t offset, std::size_t row_bytes,
                   std::uint32_t rows) noexcept {
  telemetry::PageSection& section = header->sections[header->sections_count++];
  std::strncpy(section.name, name, sizeof section.name - 1);
  section.offset = offset;
  section.row_bytes = static_cast<std::uint32_t>(row_bytes);
  section.rows = rows;
}

void write_identity(PageHeader* header) {
  const PageOwner self = this_process();
  header->pid = static_cast<std::uint32_t>(self.pid);
  header->start_ticks = self.start_ticks;
  header->pid_namespace = self.pid_namespace;
  header->monotonic_ns = now_ns();
  header->realtime_ns = header->monotonic_ns + realtime_ahead_ns();
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string boot;
  if (file >> boot) std::strncpy(header->boot_id, boot.c_str(), sizeof header->boot_id - 1);
}

std::atomic<std::uint32_t> next_number{0};

}  // namespace

template <class Row>
Row* TelemetryPage::Table<Row>::take() noexcept {
  // Counts before it searches, so that a search of a full page costs nothing, and one of a page with a free row ends.
  std::uint32_t free = left.load(std::memory_order_relaxed);
  do {
    if (free == 0) return nullptr;
  } while (!left.compare_exchange_weak(free, free - 1, std::memory_order_acquire, std::memory_order_relaxed));
  for (;;) {
    const std::uint32_t at = next.fetch_add(1, std::memory_order_relaxed) % rows;
    const bool is_free = !taken[at].load(std::memory_order_relaxed);
    if (is_free && !taken[at].exchange(true, std::memory_order_acquire)) return &first[at];
  }
}

template <class Row>
Row* TelemetryPage::Table<Row>::find(const void* inside) noexcept {
  const auto at = reinterpret_cast<std::uintptr_t>(inside), begin = reinterpret_cast<std::uintptr_t>(first);
  return at >= begin && at < begin + rows * sizeof(Row) ? &first[(at - begin) / sizeof(Row)] : nullptr;
}

template <class Row>
void TelemetryPage::Table<Row>::give_back(Row* row) noexcept {
  if (row == nullptr) return;
  row->generation.next();
  taken[static_cast<std::size_t>(row - first)].store(false, std::memory_order_release);
  left.fetch_add(1, std::memory_order_release);
}

std::unique_ptr<TelemetryPage> TelemetryPage::create(const std::string& directory, const Shape& shape,
                                                     std::string* error) {
  watch_forks();
  collect_dead_pages(directory);
  const std::string schema = telemetry::page_schema();
  std::unique_ptr<TelemetryPage> page(new TelemetryPage);
  if (!page->open_file(directory, sizes_of(shape, schema.size()).end, error)) return nullptr;
  page->lay_out(shape, schema);
  return page;
}

bool TelemetryPage::open_file(const std::string& directory, std::size_t bytes, std::string* error) {
  const PageOwner self = this_process();
  int file = -1;
  std::string path;
  // Tries several names: a name may be in use if the start time of the process is unknown.
  for (int tries = 0; tries < kNamesMax && file < 0 && (tries == 0 || errno == EEXIST); ++tries) {
    path = directory + "/" + page_name(self, next_number.fetch_add(1));
    file = ::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
  }
  const auto refuse = [&](int problem) {
    *error = "cannot keep counters in " + path + " (" + std::to_string((bytes + 1023) / 1024) +
             " KiB): " + std::strerror(problem);
    if (file >= 0) {
      ::unlink(path.c_str());
      ::close(file);
    }
    return false;
  };
  if (file < 0) return refuse(errno);
  if (const int problem = allocate(file, bytes); problem != 0) return refuse(problem);
  Mappings& table = mappings();
  const std::lock_guard<std::mutex> lock(table.mutex);
  void* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, file, 0);
  if (memory == MAP_FAILED) return refuse(errno);
  try {
    table.bytes[memory] = bytes;
  } catch (const std::bad_alloc&) {
    ::munmap(memory, bytes);
    return refuse(ENOMEM);
  }
  ::close(file);
  path_ = std::move(path);
  pid_ = self.pid;
  memory_ = static_cast<std::byte*>(memory);
  bytes_ = bytes;
  return true;
}

void TelemetryPage::lay_out(const Shape& shape, const std::string& schema) {
  const Sizes sizes = sizes_of(shape, schema.size());
  auto* header = new (memory_) PageHeader{};
  header->version = telemetry::kPageVersion;
  header->header_bytes = sizeof(PageHeader);
  header->file_bytes = sizes.end;
  write_identity(header);
  header->schema_offset = sizes.schema;
  header->schema_bytes = schema.size();
  std::memcpy(memory_ + sizes.schema, schema.data(), schema.size());

  process_ = new (memory_ + sizes.process) ProcessPageRow{};
  process_->engines.set(shape.engines);
  process_->generation.next();
  engines_ = reinterpret_cast<EnginePageRow*>(memory_ + sizes.engines);
  for (std::uint32_t i = 0; i < shape.engines; ++i) (new (&engines_[i]) EnginePageRow{})->generation.next();
  peers_.first = reinterpret_cast<PeerPageRow*>(memory_ + sizes.peers);
  peers_.rows = sizes.peers_count;
  peers_.left = sizes.peers_count;
  peers_.taken = std::make_unique<std::atomic<bool>[]>(sizes.peers_count);
  for (std::uint32_t i = 0; i < sizes.peers_count; ++i) new (&peers_.first[i]) PeerPageRow{};
  paths_ = reinterpret_cast<PathCells*>(memory_ + sizes.paths);
  paths_each_ = sizes.paths_each;
  paths_of_peer_ = shape.paths;
  for (std::uint32_t i = 0; i < sizes.peers_count * paths_each_; ++i) new (&paths_[i]) PathCells{};
  flows_.first = reinterpret_cast<FlowPageRow*>(memory_ + sizes.flows);
  flows_.rows = kFlowsMax;
  flows_.left = kFlowsMax;
  flows_.taken = std::make_unique<std::atomic<bool>[]>(kFlowsMax);
  for (std::uint32_t i = 0; i < kFlowsMax; ++i) new (&flows_.first[i]) FlowPageRow{};

  write_section(header, "process", sizes.process, sizeof(ProcessPageRow), 1);
  write_section(header, "engine", sizes.engines, sizeof(EnginePageRow), shape.engines);
  write_section(header, "peer", sizes.peers, sizeof(PeerPageRow), sizes.peers_count);
  write_section(header, "path", sizes.paths, sizeof(PathCells), sizes.peers_count * paths_each_);
  write_section(header, "flow", sizes.flows, sizeof(FlowPageRow), kFlowsMax);
  // The magic is written last: a reader that sees it sees everything else.
  std::atomic_thread_fence(std::memory_order_release);
  std::memcpy(header->magic, telemetry::kPageMagic, sizeof header->magic);
}

TelemetryPage::~TelemetryPage() {
  if (memory_ == nullptr) return;
  // A forked child does not remove the file, which belongs to its parent.
  if (::getpid() == pid_) ::unlink(path_.c_str());
  Mappings& table = mappings();
  const std::lock_guard<std::mutex> lock(table.mutex);
  table.bytes.erase(memory_);
  ::munmap(memory_, bytes_);
}

PeerPageRow* TelemetryPage::take_peer(std::uint32_t engine, const std::string& address) noexcept {
  PeerPageRow* row = peers_.take();
  if (row == nullptr) return nullptr;
  std::memset(row->address, 0, sizeof row->address);
  std::memcpy(row->address, address.data(), std::min(address.size(), sizeof row->address));
#define WEFT_CLEAR(name, ...) cells.name.set(0);
  {
    PeerPageRow& cells = *row;
    WEFT_PEER_STATE_TABLE(WEFT_CLEAR)
  }
  {
    telemetry::PeerCells& cells = row->counters;
    WEFT_PEER_COUNTER_TABLE(WEFT_CLEAR)
  }
  for (std::uint32_t i = 0; i < paths_each_; ++i) {
    PathCells& cells = paths_of(row)[i];
    WEFT_PATH_COUNTER_TABLE(WEFT_CLEAR)
  }
  row->engine.set(engine);
  row->first_path.set(paths_of(row) - paths_);
  row->paths.set(paths_of_peer_);
  row->heard_ns.set(-1);
  row->generation.next();
  return row;
}

FlowPageRow* TelemetryPage::take_flow() noexcept {
  FlowPageRow* row = flows_.take();
  if (row == nullptr) return nullptr;
  {
    FlowPageRow& cells = *row;
    WEFT_FLOW_STATE_TABLE(WEFT_CLEAR)
  }
  {
    telemetry::FlowCells& cells = row->counters;
    WEFT_FLOW_COUNTER_TABLE(WEFT_CLEAR)
  }
#undef WEFT_CLEAR
  row->generation.next();
  return row;
}

PathCells* TelemetryPage::paths_of(PeerPageRow* row) noexcept {
  return paths_ + static_cast<std::size_t>(row - peers_.first) * paths_each_;
}

PeerPageRow* TelemetryPage::peer_row(const telemetry::PeerCells* counters) noexcept { return peers_.find(counters); }
FlowPageRow* TelemetryPage::flow_row(const telemetry::FlowCells* counters) noexcept { return flows_.find(counters); }
std::int64_t TelemetryPage::number_of(const PeerPageRow* row) const noexcept {
  return row == nullptr ? -1 : row - peers_.first;
}
void TelemetryPage::give_back(PeerPageRow* row) noexcept { peers_.give_back(row); }
void TelemetryPage::give_back(FlowPageRow* row) noexcept { flows_.give_back(row); }

}  // namespace weft::engine
