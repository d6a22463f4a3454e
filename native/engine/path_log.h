// Logs which paths are down and which are up again: one line for all paths to an address that changed together. When
// the limit of lines is reached, changes wait and are joined, so that the last lines always state the current
// condition.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "native/core/stack.h"
#include "native/engine/log_limit.h"
#include "native/engine/log_text.h"

namespace weft::engine {

class PathLog {
 public:
  PathLog(core::Stack* stack, const PeerNames* names) noexcept : stack_(stack), names_(names) {}

  // path_down() may throw std::bad_alloc; then the path gets no line.
  void path_down(std::int64_t now_ns, const core::Event& event);
  void path_up(std::int64_t now_ns, const core::Event& event) noexcept;
  // Writes the lines that are due. If memory runs out, tries again later.
  void write(std::int64_t now_ns) noexcept;
  void forget(std::uint32_t peer) noexcept;
  // When write() is due next; kNever: it has nothing to do before the next event.
  std::int64_t due_ns() const noexcept { return due_ns_; }

  static constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::max();

 private:
  // A path that is silent for a shorter time gets no line, because a busy processor can delay replies by that much.
  static constexpr std::int64_t kDownLeastNs = 10'000'000;
  static constexpr std::int64_t kLines = 32;  // maximum number of lines per LogLimit::kIntervalNs

  // A path that is down, or that is up again but for which the last log line still says that it is down.
  struct State {
    std::int64_t since_ns, until_ns;  // when the path went down, and when it came up (kNever: it is still down)
    std::uint64_t cause;
    bool logged;                 // whether the last line about the path says that it is down
    std::uint64_t logged_cause;  // the cause that the last line about the path gives
  };
  using Place = std::pair<std::uint32_t, std::uint8_t>;                        // peer and path
  using Change = std::tuple<std::uint32_t, std::size_t, bool, std::uint64_t>;  // peer, address, down, cause

  void write_changes(std::int64_t now_ns);
  std::map<Change, std::vector<std::uint8_t>> changes(std::int64_t now_ns);
  void log(std::int64_t now_ns, const Change& change, const std::vector<std::uint8_t>& paths);
  void settle(std::uint32_t peer, const std::vector<std::uint8_t>& paths, bool down) noexcept;
  std::string down_text(const core::PathSet& paths, std::size_t count, std::uint64_t cause) const;

  core::Stack* stack_;
  const PeerNames* names_;
  std::map<Place, State> states_;
  Change last_{};  // change that was logged last; the next line is about another address, so that each gets its turn
  std::int64_t due_ns_ = kNever;
  LogLimit limit_{kLines};
};

}  // namespace weft::engine
