// Logs which paths are down and which are up again.
#include "native/engine/path_log.h"

#include <algorithm>
#include <cstddef>
#include <new>

namespace weft::engine {
namespace {

// "path 3", "paths 3, 5" or "paths 0-7, 9"; `paths` ascends.
std::string list_text(const std::vector<std::uint8_t>& paths) {
  std::string text = paths.size() == 1 ? "path " : "paths ";
  for (std::size_t first = 0, last = 0; first < paths.size(); first = last + 1) {
    last = first;
    while (last + 1 < paths.size() && paths[last + 1] == paths[last] + 1) ++last;
    if (last == first + 1) last = first;  // "3, 4" reads better than "3-4"
    if (first != 0) text += ", ";
    text += std::to_string(paths[first]);
    if (last != first) text.append("-").append(std::to_string(paths[last]));
  }
  return text;
}

std::string use_text(const core::PathSet& paths) {
  std::size_t left = 0;
  for (std::size_t i = 0; i < paths.count(); ++i) left += paths.path(i).usable ? 1 : 0;
  return std::to_string(left) + " of " + std::to_string(paths.count()) + " paths are in use";
}

}  // namespace

void PathLog::path_down(std::int64_t now_ns, const core::Event& event) {
  if (!logs(LogLevel::info)) return;
  const State fresh{now_ns, kNever, event.value, false, 0};
  const auto [place, added] = states_.try_emplace({event.peer, event.path}, fresh);
  State& state = place->second;
  // The path is down again before a line said that it was up: its last line, which says that it is down, still holds,
  // unless the cause has changed.
  if (!added && state.until_ns != kNever) {
    state.since_ns = now_ns;
    state.until_ns = kNever;
    state.cause = event.value;
  }
  due_ns_ = std::min(due_ns_, now_ns + kDownLeastNs);
}

void PathLog::path_up(std::int64_t now_ns, const core::Event& event) noexcept {
  const auto place = states_.find({event.peer, event.path});
  if (place == states_.end()) return;
  if (!place->second.logged) {
    states_.erase(place);
    return;
  }
  place->second.until_ns = now_ns;
  due_ns_ = std::min(due_ns_, now_ns);
}

void PathLog::forget(std::uint32_t peer) noexcept {
  const auto end = peer == UINT32_MAX ? states_.end() : states_.lower_bound({peer + 1, 0});
  states_.erase(states_.lower_bound({peer, 0}), end);
}

void PathLog::write(std::int64_t now_ns) noexcept {
  if (now_ns < due_ns_) return;
  due_ns_ = limit_.open_ns(now_ns);
  if (due_ns_ > now_ns) return;
  due_ns_ = kNever;
  try {
    write_changes(now_ns);
  } catch (const std::bad_alloc&) {
    due_ns_ = now_ns + LogLimit::kIntervalNs;
  }
}

void PathLog::write_changes(std::int64_t now_ns) {
  const std::map<Change, std::vector<std::uint8_t>> found = changes(now_ns);
  auto next = found.upper_bound(last_);
  for (std::size_t i = 0; i < found.size(); ++i, ++next) {
    if (next == found.end()) next = found.begin();
    if (const std::int64_t open_ns = limit_.open_ns(now_ns); open_ns > now_ns) {
      due_ns_ = std::min(due_ns_, open_ns);
      return;
    }
    const auto& [change, paths] = *next;
    log(now_ns, change, paths);
    settle(std::get<0>(change), paths, std::get<2>(change));
    last_ = {std::get<0>(change), std::get<1>(change), true, UINT64_MAX};
  }
}

// Returns the paths whose state differs from their last log line, grouped by the line to write. Leaves out paths that
// have been down for less than kDownLeastNs.
std::map<PathLog::Change, std::vector<std::uint8_t>> PathLog::changes(std::int64_t now_ns) {
  std::map<Change, std::vector<std::uint8_t>> found;
  for (const auto& [place, state] : states_) {
    const bool down = state.until_ns == kNever;
    if (down == state.logged && (!down || state.cause == state.logged_cause)) continue;
    if (down && now_ns < state.since_ns + kDownLeastNs) {
      due_ns_ = std::min(due_ns_, state.since_ns + kDownLeastNs);
      continue;
    }
    const auto [peer, path] = place;
    found[{peer, names_->address_index(peer, path), down, down ? state.cause : 0}].push_back(path);
  }
  return found;
}

void PathLog::log(std::int64_t now_ns, const Change& change, const std::vector<std::uint8_t>& paths) {
  const auto& [peer, address_index, down, cause] = change;
  const core::Peer* const to = stack_->peer(peer);
  if (to == nullptr) return;
  std::string text =
      list_text(paths) + " to " + names_->address_text(peer, paths[0]) + (paths.size() == 1 ? " is " : " are ");
  if (down) {
    text += "down: " + down_text(to->paths(), paths.size(), cause);
  } else {
    std::int64_t longest_ns = 0;
    for (const std::uint8_t path : paths) {
      const State& state = states_.at({peer, path});
      longest_ns = std::max(longest_ns, state.until_ns - state.since_ns);
    }
    text += "up again after " + std::string(paths.size() == 1 ? "" : "at most ") + seconds_text(longest_ns);
  }
  limit_.log(now_ns, LogLevel::info, text + "; " + use_text(to->paths()));
}

std::string PathLog::down_text(const core::PathSet& paths, std::size_t count, std::uint64_t cause) const {
  const std::string pronoun = count == 1 ? "it" : "them";
  const std::string why =
      cause == 1 ? "datagrams of " + std::to_string(paths.segment_bytes()) + " bytes do not get through on "
                 : "no reply arrives on ";
  return why + pronoun + "; probing " + pronoun;
}

void PathLog::settle(std::uint32_t peer, const std::vector<std::uint8_t>& paths, bool down) noexcept {
  for (const std::uint8_t path : paths) {
    const auto place = states_.find({peer, path});
    if (down) {
      place->second.logged = true;
      place->second.logged_cause = place->second.cause;
    } else {
      states_.erase(place);
    }
  }
}

}  // namespace weft::engine
