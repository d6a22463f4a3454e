// Names of telemetry pages, and the removal of those that dead processes left.
#pragma once

#include <cstdint>
#include <string>

namespace weft::engine {

// How a page says whose it is. All of it is in the file's name, so that no page has to be read to know.
struct PageOwner {
  std::uint32_t user = 0;
  std::uint64_t pid_namespace = 0;  // inode of /proc/self/ns/pid; 0: unknown
  std::int32_t pid = 0;
  std::uint64_t start_ticks = 0;  // field 22 of /proc/PID/stat; 0: unknown
};
PageOwner this_process();

// `number`: of the page in its process.
std::string page_name(const PageOwner& owner, std::uint32_t number);
bool read_page_name(const std::string& name, PageOwner* out);

// How long a dead process's page stays after it was first found dead, and how many of them stay at most.
inline constexpr std::int64_t kPageGraceS = 600;
inline constexpr std::size_t kDeadPagesMax = 8;

// Looks at the pages of this user and PID namespace whose process is gone. One found for the first time is marked, by
// mode 0400 and its time of modification; one that was marked `grace_s` ago is removed, and so are the oldest beyond
// kDeadPagesMax. Returns how many it removed.
std::size_t collect_dead_pages(const std::string& directory, std::int64_t grace_s = kPageGraceS);

}  // namespace weft::engine
