// Computes how many sockets for paths this process may open under the limit on file descriptors (RLIMIT_NOFILE). Raises
// the soft limit if necessary; a forked child gets the old limit back.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>

namespace weft::engine {

// How many descriptors weft leaves to the program that uses it: this many, or a quarter of the soft limit if that is
// less.
inline constexpr std::int64_t kProgramDescriptorsMax = 64;

// The most descriptors that one runtime opens, apart from control sockets of many peers.
struct DescriptorNeed {
  std::int64_t engines = 1;
  std::int64_t devices = 1;
  std::int64_t paths = 0;  // sockets per engine and device; 0: queue pairs, which need no descriptors

  std::int64_t besides_paths() const noexcept;
  std::int64_t total() const noexcept { return besides_paths() + engines * devices * paths; }
};

struct DescriptorState {
  std::int64_t soft = 0, hard = 0;  // limits on descriptors; a very large number if there is none
  std::int64_t open = 0;
  std::int64_t left_to_program() const noexcept;
  std::int64_t free() const noexcept { return soft - open - left_to_program(); }
};
DescriptorState descriptor_state() noexcept;
std::int64_t soft_descriptor_limit() noexcept;  // the whole limit; open descriptors are not subtracted

// Raises the soft limit to the hard limit, but at most to kDescriptorsRaisedMax. False: it cannot be raised any more.
inline constexpr std::int64_t kDescriptorsRaisedMax = 1 << 20;
bool raise_descriptor_limit() noexcept;

bool is_out_of_descriptors(int problem) noexcept;  // `problem`: a value of errno
std::string raise_limit_advice();

// Descriptors that are reserved for a runtime. Its sockets are opened with the first peer, so until then other runtimes
// of the process must count them as used.
class DescriptorGrant {
 public:
  DescriptorGrant() = default;
  ~DescriptorGrant();
  DescriptorGrant(const DescriptorGrant&) = delete;
  DescriptorGrant& operator=(const DescriptorGrant&) = delete;

  // Reserves descriptors. If there are too few, lowers `need->paths` and logs that. Returns false and sets `error` if
  // not even one path fits.
  bool take(DescriptorNeed* need, std::string* error);
  // To be called when all descriptors are open except the sockets of paths, which stay reserved.
  void on_started() noexcept;
  // Number of descriptors of the process that are reserved and not open. A datapath decrements it when it opens a
  // socket, and increments it when it closes one.
  static std::atomic<std::int64_t>* promised() noexcept;

 private:
  std::int64_t fixed_ = 0, paths_ = 0;
  std::uint32_t process_ = 0;
};

}  // namespace weft::engine
