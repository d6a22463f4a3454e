// Writes recordings of policy decisions. If an error occurs, the recording ends and the traffic continues.
#include "native/engine/recorder.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <mutex>
#include <set>

#include "native/engine/log.h"
#include "native/engine/signals_blocked.h"
#include "native/engine/write_all.h"
#include "native/files/created_file.h"

namespace weft::engine {
namespace {

constexpr std::size_t kRingBytes = 8u << 20;  // room for about 30,000 policy decisions, or 10 ms of a busy engine
constexpr auto kPause = std::chrono::milliseconds(1);

// Names of files in use: two runtimes of a process with the same WEFT_RECORD_FILE must not overwrite each other's file.
std::mutex names_mutex;
std::set<std::string>& names_taken() {
  static auto* const names = new std::set<std::string>;
  return *names;
}
std::string take_name(const std::string& wanted) {
  const std::lock_guard<std::mutex> lock(names_mutex);
  std::string name = wanted;
  for (int i = 2; !names_taken().insert(name).second; ++i) name = wanted + "." + std::to_string(i);
  return name;
}
void give_name_back(const std::string& name) {
  const std::lock_guard<std::mutex> lock(names_mutex);
  names_taken().erase(name);
}

}  // namespace

RecorderTap::RecorderTap(std::uint32_t owner_tag, std::size_t ring_bytes)
    : encoder_(owner_tag), ring_(std::make_unique<std::byte[]>(ring_bytes)), mask_(ring_bytes - 1) {}

bool RecorderTap::put(std::span<const std::byte> entries) noexcept {
  const std::uint64_t at = put_.load(std::memory_order_relaxed);
  if (at + entries.size() - taken_.load(std::memory_order_acquire) > mask_ + 1) return false;
  const std::size_t offset = at & mask_;
  const std::size_t first = std::min(entries.size(), mask_ + 1 - offset);
  std::memcpy(ring_.get() + offset, entries.data(), first);
  std::memcpy(ring_.get(), entries.data() + first, entries.size() - first);
  put_.store(at + entries.size(), std::memory_order_release);
  return true;
}

void RecorderTap::on_decision(const core::Decision& decision) noexcept {
  if (unsaid_ != 0 && put(encoder_.encode_gap(unsaid_))) unsaid_ = 0;
  if (unsaid_ == 0 && put(encoder_.encode(decision))) {
    decisions_.fetch_add(1, std::memory_order_relaxed);
    return;
  }
  encoder_.drop();
  ++unsaid_;
  lost_.fetch_add(1, std::memory_order_relaxed);
}

std::size_t RecorderTap::take(std::vector<std::byte>* out) {
  const std::uint64_t from = taken_.load(std::memory_order_relaxed);
  const auto bytes = static_cast<std::size_t>(put_.load(std::memory_order_acquire) - from);
  const std::size_t offset = from & mask_, first = std::min(bytes, mask_ + 1 - offset);
  out->insert(out->end(), ring_.get() + offset, ring_.get() + offset + first);
  out->insert(out->end(), ring_.get(), ring_.get() + bytes - first);
  taken_.store(from + bytes, std::memory_order_release);
  return bytes;
}

bool Recorder::start(const std::string& path, std::size_t engines, std::int64_t bytes_max, std::string* error) {
  path_ = path;
  const std::string process = std::to_string(::getpid());
  for (std::size_t at = path_.find("%p"); at != std::string::npos; at = path_.find("%p", at + process.size())) {
    path_.replace(at, 2, process);
  }
  path_ = take_name(path_);
  std::string problem;
  file_ = files::create_file(path_, &problem);
  if (file_ >= 0 && !write_all(file_, core::kRecordingMagic, sizeof core::kRecordingMagic))
    problem = std::strerror(errno);
  if (!problem.empty()) {
    *error = "cannot record into " + path_ + ": " + problem;
    give_name_back(path_);
    if (file_ >= 0) ::close(file_);
    file_ = -1;
    return false;
  }
  bytes_ = sizeof core::kRecordingMagic;
  bytes_max_ = bytes_max;
  for (std::size_t i = 0; i < engines; ++i) {
    taps_.push_back(std::make_unique<RecorderTap>(static_cast<std::uint32_t>(i) << 24, kRingBytes));
  }
  const SignalsBlocked blocked;
  try {
    thread_ = std::thread([this] { run(); });
  } catch (const std::exception& problem) {
    *error = std::string("cannot start the recording thread: ") + problem.what();
  }
  return thread_.joinable();
}

bool Recorder::drain() {
  batch_.clear();
  if (!error_.empty()) return false;  // the recording failed; the rings count further decisions as lost
  for (const auto& tap : taps_) tap->take(&batch_);
  if (batch_.empty()) return false;
  if (bytes_ + static_cast<std::int64_t>(batch_.size()) > bytes_max_) {
    error_ = "the recording has reached its limit of " + std::to_string(bytes_max_) + " bytes";
  } else if (!write_all(file_, batch_.data(), batch_.size())) {
    error_ = std::string("cannot write the recording: ") + std::strerror(errno);
  } else {
    bytes_ += static_cast<std::int64_t>(batch_.size());
    count();
    return true;
  }
  log(LogLevel::warn, path_ + ": " + error_ + "; the recording ends here, traffic continues");
  return false;
}

void Recorder::count() {
  core::RecordingEntry entry;
  for (std::size_t at = 0; at < batch_.size(); at += entry.bytes) {
    std::memcpy(&entry, batch_.data() + at, sizeof entry);
    decisions_ += entry.type == core::RecordingEntry::decision ? 1 : 0;
  }
}

void Recorder::run() noexcept {
  try {
    while (!stopping_.load(std::memory_order_acquire)) {
      if (!drain()) std::this_thread::sleep_for(kPause);
    }
    drain();
  } catch (const std::exception& problem) {
    error_ = problem.what();
  }
}

RecordingStats Recorder::stop() noexcept {
  stopping_.store(true, std::memory_order_release);
  if (thread_.joinable()) thread_.join();
  RecordingStats stats;
  stats.decisions = decisions_;
  for (const auto& tap : taps_) stats.lost += tap->decisions() + tap->lost();
  stats.lost -= decisions_;
  if (file_ >= 0) {
    if (!error_.empty() && stats.lost != 0) {
      // Writes the number of missing decisions, if the file can still be written.
      core::DecisionEncoder encoder(0);
      const auto gap = encoder.encode_gap(static_cast<std::uint64_t>(stats.lost));
      if (write_all(file_, gap.data(), gap.size())) bytes_ += static_cast<std::int64_t>(gap.size());
    }
    ::close(file_);
    give_name_back(path_);
  }
  file_ = -1;
  stats.bytes = bytes_;
  stats.error = error_;
  return stats;
}

}  // namespace weft::engine
