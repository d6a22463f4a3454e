// A file in shared memory with the counters of a process. Other processes can read it even if the process hangs or was
// killed. Layout: native/telemetry/page_layout.h.
//
// Counting is as fast as in private memory, because rows are used through pointers. All space is allocated when the
// file is created, so that a full file system is an error then and does not raise SIGBUS later. A forked child gets a
// private, empty copy and never removes the file.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "native/telemetry/page_layout.h"

namespace weft::engine {

inline constexpr char kPageDirectory[] = "/dev/shm";  // used for WEFT_TELEMETRY=auto

class TelemetryPage {
 public:
  struct Shape {
    std::uint32_t engines = 1;
    std::uint32_t paths = 1;  // number of paths of each peer
  };
  // Creates a page, and removes pages of processes that died long ago. Returns null and sets `error` if the file cannot
  // be created.
  static std::unique_ptr<TelemetryPage> create(const std::string& directory, const Shape& shape, std::string* error);
  ~TelemetryPage();  // removes the file
  TelemetryPage(const TelemetryPage&) = delete;
  TelemetryPage& operator=(const TelemetryPage&) = delete;

  const std::string& path() const noexcept { return path_; }
  std::uint32_t peers_max() const noexcept { return peers_.rows; }
  std::uint32_t flows_max() const noexcept { return flows_.rows; }

  telemetry::ProcessPageRow& process() noexcept { return *process_; }
  telemetry::EnginePageRow& engine(std::uint32_t id) noexcept { return engines_[id]; }
  // Takes a free row; null: none is left. Any thread may take rows and give them back.
  telemetry::PeerPageRow* take_peer(std::uint32_t engine, const std::string& address) noexcept;
  telemetry::FlowPageRow* take_flow() noexcept;
  telemetry::PathCells* paths_of(telemetry::PeerPageRow* row) noexcept;
  // Returns the row that contains these counters; null: they are not in this page. number_of() returns -1 for null.
  telemetry::PeerPageRow* peer_row(const telemetry::PeerCells* counters) noexcept;
  telemetry::FlowPageRow* flow_row(const telemetry::FlowCells* counters) noexcept;
  std::int64_t number_of(const telemetry::PeerPageRow* row) const noexcept;
  void give_back(telemetry::PeerPageRow* row) noexcept;  // does nothing for null
  void give_back(telemetry::FlowPageRow* row) noexcept;

 private:
  template <class Row>
  struct Table {
    Row* first = nullptr;
    std::uint32_t rows = 0;
    std::atomic<std::uint32_t> next{0};  // where the search for a free row starts, modulo `rows`
    std::atomic<std::uint32_t> left{0};  // number of free rows
    std::unique_ptr<std::atomic<bool>[]> taken;
    Row* take() noexcept;
    Row* find(const void* inside) noexcept;
    void give_back(Row* row) noexcept;
  };
  TelemetryPage() = default;
  bool open_file(const std::string& directory, std::size_t bytes, std::string* error);
  void lay_out(const Shape& shape, const std::string& schema);

  std::string path_;
  std::int32_t pid_ = 0;
  std::byte* memory_ = nullptr;
  std::size_t bytes_ = 0;
  std::uint32_t paths_each_ = 0;  // number of path rows that belong to each peer row
  telemetry::ProcessPageRow* process_ = nullptr;
  telemetry::EnginePageRow* engines_ = nullptr;
  telemetry::PathCells* paths_ = nullptr;
  std::uint32_t paths_of_peer_ = 0;
  Table<telemetry::PeerPageRow> peers_;
  Table<telemetry::FlowPageRow> flows_;
};

}  // namespace weft::engine
