// Writes the policy decisions of all engines to one file. Each engine fills a ring buffer and one thread writes them to
// the file. If a ring is full, decisions are dropped and counted, so that no engine waits for the disk.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "native/core/recording.h"

namespace weft::engine {

struct RecordingStats {
  std::int64_t decisions = 0;  // number of policy decisions in the file
  std::int64_t lost = 0;       // number of policy decisions that are not in the file
  std::int64_t bytes = 0;
  std::string error;  // why the recording ended before stop(); empty: it ended by stop()
};

// A ring buffer for the policy decisions of one engine. The engine's thread writes to it, and the recorder's thread
// reads from it.
class RecorderTap final : public core::TraceSink {
 public:
  RecorderTap(std::uint32_t owner_tag, std::size_t ring_bytes);
  void on_decision(const core::Decision& decision) noexcept override;
  // Moves all entries from the ring to the end of `out`. Returns their size in bytes.
  std::size_t take(std::vector<std::byte>* out);
  std::int64_t decisions() const noexcept { return decisions_.load(std::memory_order_relaxed); }
  std::int64_t lost() const noexcept { return lost_.load(std::memory_order_relaxed); }

 private:
  bool put(std::span<const std::byte> entries) noexcept;

  core::DecisionEncoder encoder_;
  std::unique_ptr<std::byte[]> ring_;
  std::size_t mask_;
  std::uint64_t unsaid_ = 0;  // lost decisions that no entry of the recording reports yet
  std::atomic<std::int64_t> decisions_{0}, lost_{0};
  alignas(64) std::atomic<std::uint64_t> put_{0};
  alignas(64) std::atomic<std::uint64_t> taken_{0};
};

class Recorder {
 public:
  static constexpr std::int64_t kBytesMax = 1 << 30;  // default limit of a recording's size
  ~Recorder() { stop(); }
  // Starts a recording into `path`, where "%p" stands for the process id. If the process already records into that
  // path, ".2" is appended. Returns false and sets `error` on failure.
  bool start(const std::string& path, std::size_t engines, std::int64_t bytes_max, std::string* error);
  core::TraceSink* tap(std::size_t engine) noexcept { return taps_[engine].get(); }
  // Writes the remaining entries and closes the file. The engines must have stopped using their taps.
  RecordingStats stop() noexcept;
  const std::string& path() const noexcept { return path_; }

 private:
  void run() noexcept;
  bool drain();
  void count();

  std::vector<std::unique_ptr<RecorderTap>> taps_;
  std::vector<std::byte> batch_;
  std::string path_, error_;
  std::int64_t bytes_ = 0, bytes_max_ = 0, decisions_ = 0;
  int file_ = -1;
  std::atomic<bool> stopping_{false};
  std::thread thread_;
};

}  // namespace weft::engine
