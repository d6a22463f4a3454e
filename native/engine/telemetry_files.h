// Names the files of telemetry pages and removes the files of dead processes.
#pragma once

#include <cstdint>
#include <string>

namespace weft::engine {

// Identifies the process that owns a telemetry page. The file's name has all fields, so the page need not be read.
struct PageOwner {
  std::uint32_t user = 0;
  std::uint64_t pid_namespace = 0;  // inode of /proc/self/ns/pid; 0: unknown
  std::int32_t pid = 0;
  std::uint64_t start_ticks = 0;  // field 22 of /proc/PID/stat; 0: unknown
};
PageOwner this_process();

// Returns the file name of a telemetry page. `number`: the page's number within the process.
std::string page_name(const PageOwner& owner, std::uint32_t number);
bool read_page_name(const std::string& name, PageOwner* out);
// Returns what distinguishes a telemetry page from all others of the host: its file name without "weft-" and ".page".
std::string page_identity(const std::string& path);

// How long a telemetry page is kept after its process was found dead, and how many such pages are kept at most.
inline constexpr std::int64_t kPageGraceS = 600;
inline constexpr std::size_t kDeadPagesMax = 8;

// Removes pages of this user and PID namespace whose process is dead. A page that is found for the first time is only
// marked, by mode 0400 and its modification time; it is removed `grace_s` after that, or when there are more than
// kDeadPagesMax. Returns the number of removed pages.
std::size_t collect_dead_pages(const std::string& directory, std::int64_t grace_s = kPageGraceS);

}  // namespace weft::engine
