// Names telemetry pages and removes those of dead processes.
#pragma once

#include <cstdint>
#include <string>

namespace weft::engine {

// Identifies the process that owns a page. The file's name contains all fields, so that no page has to be read.
struct PageOwner {
  std::uint32_t user = 0;
  std::uint64_t pid_namespace = 0;  // inode of /proc/self/ns/pid; 0: unknown
  std::int32_t pid = 0;
  std::uint64_t start_ticks = 0;  // field 22 of /proc/PID/stat; 0: unknown
};
PageOwner this_process();

// `number`: counts the pages of the process.
std::string page_name(const PageOwner& owner, std::uint32_t number);
bool read_page_name(const std::string& name, PageOwner* out);

// How long a page stays after its process was found dead, and how many such pages stay at most.
inline constexpr std::int64_t kPageGraceS = 600;
inline constexpr std::size_t kDeadPagesMax = 8;

// Checks the pages of this user and PID namespace whose process is dead. A page found for the first time is marked, by
// mode 0400 and its time of modification. A page that was marked `grace_s` ago is removed, and so are the oldest ones
// beyond kDeadPagesMax. Returns the number of removed pages.
std::size_t collect_dead_pages(const std::string& directory, std::int64_t grace_s = kPageGraceS);

}  // namespace weft::engine
