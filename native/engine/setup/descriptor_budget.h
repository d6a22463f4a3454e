// How many sockets the paths of this process may take under the limit on file descriptors (RLIMIT_NOFILE).
// Raises the soft limit where that is not enough; a forked child gets the old one back.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>

namespace weft::engine {

// Descriptors that a start leaves to the program: as many as this, or a quarter of a small limit.
inline constexpr std::int64_t kProgramDescriptorsMax = 64;

// What one runtime opens, at most, but for the control sockets of many peers.
struct DescriptorNeed {
  std::int64_t engines = 1;
  std::int64_t devices = 1;
  std::int64_t paths = 0;  // sockets of each engine on each device; 0: none, queue pairs take no descriptor

  std::int64_t besides_paths() const noexcept;
  std::int64_t total() const noexcept { return besides_paths() + engines * devices * paths; }
};

struct DescriptorState {
  std::int64_t soft = 0, hard = 0;  // the largest number where there is no limit
  std::int64_t open = 0;
  std::int64_t left_to_program() const noexcept;
  std::int64_t free() const noexcept { return soft - open - left_to_program(); }
};
DescriptorState descriptor_state() noexcept;
std::int64_t soft_descriptor_limit() noexcept;  // without counting

// Up to the hard limit, but not beyond kDescriptorsRaisedMax. False: the soft limit is as high as it can be.
inline constexpr std::int64_t kDescriptorsRaisedMax = 1 << 20;
bool raise_descriptor_limit() noexcept;

bool is_out_of_descriptors(int problem) noexcept;  // an errno
std::string raise_limit_advice();

// Descriptors promised to a runtime. Sockets open with the first peer, so until then other runtimes of the process must
// count them as taken.
class DescriptorGrant {
 public:
  DescriptorGrant() = default;
  ~DescriptorGrant();
  DescriptorGrant(const DescriptorGrant&) = delete;
  DescriptorGrant& operator=(const DescriptorGrant&) = delete;

  // Lowers `need->paths` to what fits, with one line in the log. False, with `error` set: not even one path fits.
  bool take(DescriptorNeed* need, std::string* error);
  // Everything but the paths' sockets is open now.
  void on_started() noexcept;
  // Of the process: promised and not open. A datapath takes one from it with each socket, and gives it back.
  static std::atomic<std::int64_t>* promised() noexcept;

 private:
  std::int64_t fixed_ = 0, paths_ = 0;
  std::uint32_t process_ = 0;
};

}  // namespace weft::engine
