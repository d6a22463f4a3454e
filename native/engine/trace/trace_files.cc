// Each block is written to the page cache of the host by one system call, which SIGKILL can cut short: a killed process
// leaves whole blocks and at most one incomplete block at the end.
#include "native/engine/trace/trace_files.h"

#include <fcntl.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>
#include <utility>
#include <vector>

#include "native/engine/clock.h"
#include "native/engine/printable.h"
#include "native/engine/telemetry_files.h"
#include "native/engine/write_all.h"
#include "native/wire/crc32c.h"

namespace weft::engine {
namespace {

using telemetry::TraceBlockHeader;
using telemetry::TraceFileHeader;

// Variables of launchers and schedulers that name the job, the rank and the attempt.
constexpr const char* kJobVariables[] = {
    "WEFT_TRACE_JOB",
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "TORCHELASTIC_RUN_ID",
    "SLURM_JOB_ID",
    "SLURM_PROCID",
    "SLURM_RESTART_COUNT",
    "OMPI_COMM_WORLD_RANK",
    "TORCHELASTIC_RESTART_COUNT",
    "PBS_JOBID",
    "LSB_JOBID",
    "PMI_RANK",
    "CUDA_VISIBLE_DEVICES",
};
constexpr int kAgeParts = 8;  // a file ends after an eighth of keep_ns

std::uint64_t random_id() noexcept {
  std::uint64_t id = 0;
  if (::getrandom(&id, sizeof id, GRND_NONBLOCK) != static_cast<ssize_t>(sizeof id)) {
    id = static_cast<std::uint64_t>(now_ns()) ^ static_cast<std::uint64_t>(::getpid()) << 40;
  }
  return id;
}

// Keeps the file, without content, of a process that cannot write its first one, so that readers can count processes
// that have no trace; only once a process. A full disk still has room for an empty file. False: remove it.
bool leaves_empty(int file) noexcept {
  static std::atomic<pid_t> left_by{0};
  const pid_t self = ::getpid();
  return left_by.exchange(self) != self && ::ftruncate(file, 0) == 0;
}

}  // namespace

std::string trace_identity() {
  char host[256] = "";
  static_cast<void>(::gethostname(host, sizeof host - 1));
  const PageOwner self = this_process();
  std::string text = std::string("host ") + printable(host, 255) + '\n';
  text += "pid " + std::to_string(self.pid) + '\n';
  text += "start_ticks " + std::to_string(self.start_ticks) + '\n';
  for (const char* name : kJobVariables) {
    const char* const value = std::getenv(name);
    if (value != nullptr && *value != '\0') text += std::string(name) + ' ' + printable(value, 255) + '\n';
  }
  return text;
}

TraceFiles::TraceFiles(std::string directory, const TraceLimits& limits, std::string identity)
    : directory_(std::move(directory)),
      limits_(limits),
      schema_(telemetry::trace_schema()),
      identity_(std::move(identity)),
      process_(random_id()) {}

TraceFiles::~TraceFiles() { end(); }

std::string TraceFiles::path_of(std::uint64_t file) const {
  char name[64];
  std::snprintf(name, sizeof name, "/weft-%016" PRIx64 "-%06" PRIu64 ".trace", process_, file);
  return directory_ + name;
}

bool TraceFiles::begin(std::int64_t now_ns, std::string* error) {
  end();
  const std::string path = path_of(number_);
  TraceFileHeader header{};
  std::memcpy(header.magic, telemetry::kTraceMagic, sizeof header.magic);
  header.version = telemetry::kTraceVersion;
  const std::size_t texts = schema_.size() + identity_.size();
  header.header_bytes = static_cast<std::uint32_t>((sizeof header + texts + 7) / 8 * 8);
  header.schema_bytes = static_cast<std::uint32_t>(schema_.size());
  header.identity_bytes = static_cast<std::uint32_t>(identity_.size());
  header.number = number_;
  header.monotonic_ns = now_ns;
  header.realtime_ns = now_ns + realtime_ahead_ns();
  std::vector<std::byte> head(header.header_bytes);
  std::memcpy(head.data(), &header, sizeof header);
  std::memcpy(head.data() + sizeof header, schema_.data(), schema_.size());
  std::memcpy(head.data() + sizeof header + schema_.size(), identity_.data(), identity_.size());
  header.crc = wire::crc32c(0, head.data(), head.size());
  std::memcpy(head.data(), &header, sizeof header);

  file_ = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644);
  if (file_ < 0 || !write_all(file_, head.data(), head.size())) {
    *error = path + ": " + std::strerror(errno);
    if (file_ >= 0) {
      if (number_ != 0 || !leaves_empty(file_)) ::unlink(path.c_str());
      ::close(file_);
    }
    file_ = -1;
    return false;
  }
  ++number_;
  empty_ = true;
  begun_ns_ = now_ns;
  file_bytes_ = static_cast<std::int64_t>(head.size());
  total_bytes_ += file_bytes_;
  return true;
}

bool TraceFiles::full(std::int64_t now_ns) const noexcept {
  return file_bytes_ >= limits_.file_bytes ||
         (limits_.keep_ns != 0 && now_ns - begun_ns_ >= std::max<std::int64_t>(limits_.keep_ns / kAgeParts, 1));
}

bool TraceFiles::write(std::byte* block, std::size_t bytes, std::uint32_t ring, std::uint64_t dropped,
                       std::string* error) {
  TraceBlockHeader header{};
  header.magic = telemetry::kTraceBlockMagic;
  header.bytes = static_cast<std::uint32_t>(bytes - sizeof header);
  header.ring = ring;
  header.number = block_++;
  header.dropped = dropped;
  std::memcpy(block, &header, sizeof header);
  header.crc = wire::crc32c(0, block, bytes);
  std::memcpy(block, &header, sizeof header);
  if (!write_all(file_, block, bytes)) {
    *error = path() + ": " + std::strerror(errno);
    if (::ftruncate(file_, file_bytes_) != 0) *error += ", and the incomplete block at its end cannot be cut off";
    if (empty_ && number_ > 1) {  // on a full disk, each attempt would leave an empty file
      ::unlink(path().c_str());
      abandon();
      --number_;
    } else {
      end();
    }
    return false;
  }
  empty_ = false;
  file_bytes_ += static_cast<std::int64_t>(bytes);
  total_bytes_ += static_cast<std::int64_t>(bytes);
  return true;
}

void TraceFiles::end() noexcept {
  if (file_ < 0) return;
  ::close(file_);
  file_ = -1;
  try {
    ended_.push_back({path_of(number_ - 1), file_bytes_, now_ns()});
  } catch (const std::bad_alloc&) {  // out of memory: this file will not be removed
  }
}

bool TraceFiles::removed() const noexcept {
  struct stat facts{};
  return file_ >= 0 && ::fstat(file_, &facts) == 0 && facts.st_nlink == 0;
}

void TraceFiles::abandon() noexcept {
  ::close(file_);
  file_ = -1;
  total_bytes_ -= file_bytes_;
}

void TraceFiles::prune(std::int64_t now_ns) noexcept {
  while (!ended_.empty()) {
    const Ended& oldest = ended_.front();
    const bool old = limits_.keep_ns != 0 && now_ns - oldest.ended_ns > limits_.keep_ns;
    if (!old && total_bytes_ <= limits_.bytes_max) return;
    ::unlink(oldest.path.c_str());
    total_bytes_ -= oldest.bytes;
    ended_.pop_front();
  }
}

}  // namespace weft::engine
