// Tests the telemetry page: its rows, what happens when rows or memory run out, forks, and pages of dead processes.
#include <dirent.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <ctime>
#include <fstream>
#include <set>
#include <sstream>

#include "native/engine/telemetry_files.h"
#include "native/engine/telemetry_page.h"
#include "tests/native/check.h"
#include "tests/native/runtime_pair.h"

using namespace weft;
using namespace weft::engine;
using namespace weft::control;
using namespace weft::message;
using weft::test::RuntimePair;

namespace {

// A directory of this test, which is removed with its contents.
struct Scratch {
  std::string path = "/tmp/weft-page-XXXXXX";
  Scratch() { CHECK(::mkdtemp(path.data()) != nullptr); }
  ~Scratch() {
    for (const std::string& name : names()) ::unlink((path + "/" + name).c_str());
    ::rmdir(path.c_str());
  }
  std::set<std::string> names() const {
    std::set<std::string> found;
    DIR* listing = ::opendir(path.c_str());
    while (const dirent* entry = ::readdir(listing)) {
      if (entry->d_name[0] != '.') found.insert(entry->d_name);
    }
    ::closedir(listing);
    return found;
  }
  void put(const std::string& name) const { std::ofstream(path + "/" + name) << "x"; }
};

std::unique_ptr<TelemetryPage> page_in(const Scratch& scratch, std::uint32_t engines, std::uint32_t paths) {
  std::string error;
  auto page = TelemetryPage::create(scratch.path, {engines, paths}, &error);
  CHECK_EQUAL(error, "");
  return page;
}

std::string content(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

telemetry::PageHeader header_of(const std::string& bytes) {
  telemetry::PageHeader header;
  std::memcpy(&header, bytes.data(), sizeof header);
  return header;
}

// Finds the value of a counter as a reader does, from the bytes of the file alone.
std::int64_t cell_in(const std::string& bytes, const std::string& section, std::uint64_t row, const std::string& name) {
  const telemetry::PageHeader header = header_of(bytes);
  const telemetry::PageSection* found = nullptr;
  for (const auto& each : header.sections) {
    if (section == each.name) found = &each;
  }
  CHECK(found != nullptr && row < found->rows);
  std::istringstream schema(bytes.substr(header.schema_offset, header.schema_bytes));
  std::string of, field, type, unit, kind;
  std::size_t offset = 0;
  while (schema >> of >> field >> type >> unit >> kind >> offset) {
    if (of != section || field != name) continue;
    std::int64_t value = 0;
    std::memcpy(&value, bytes.data() + found->offset + row * found->row_bytes + offset, sizeof value);
    return value;
  }
  weft::test::fail(__FILE__, __LINE__, "no field " + name);
}

}  // namespace

TEST(page__describes_itself) {
  const Scratch scratch;
  const auto page = page_in(scratch, 3, 5);
  page->process().counters.peers_rejoined.set(7);
  page->engine(2).counters.loops.set(11);
  const std::string bytes = content(page->path());
  const telemetry::PageHeader header = header_of(bytes);
  CHECK_EQUAL(std::memcmp(header.magic, telemetry::kPageMagic, 8), 0);
  CHECK_EQUAL(header.version, telemetry::kPageVersion);
  CHECK_EQUAL(header.file_bytes, bytes.size());
  CHECK_EQUAL(header.pid, static_cast<std::uint32_t>(::getpid()));
  CHECK(header.start_ticks != 0);
  CHECK(header.pid_namespace != 0);
  CHECK_EQUAL(cell_in(bytes, "process", 0, "peers_rejoined"), 7);
  CHECK_EQUAL(cell_in(bytes, "process", 0, "engines"), 3);
  CHECK_EQUAL(cell_in(bytes, "engine", 2, "loops"), 11);
  CHECK_EQUAL(cell_in(bytes, "engine", 2, "generation"), 1);
  CHECK_EQUAL(cell_in(bytes, "flow", 0, "generation"), 0);
}

TEST(page__stays_below_a_megabyte_for_any_number_of_paths_and_engines) {
  const Scratch scratch;
  for (const std::uint32_t paths : {1u, 32u, 256u}) {
    const auto page = page_in(scratch, 64, paths);
    CHECK(content(page->path()).size() <= 1 << 20);
    CHECK(page->peers_max() >= 16);
    struct stat state;
    CHECK_EQUAL(::stat(page->path().c_str(), &state), 0);
    CHECK_EQUAL(state.st_mode & 07777, 0600u);
    CHECK(static_cast<std::size_t>(state.st_blocks) * 512 >= static_cast<std::size_t>(state.st_size));
  }
  CHECK(scratch.names().empty());
}

TEST(page__a_row_tells_whether_and_how_often_it_was_taken) {
  const Scratch scratch;
  const auto page = page_in(scratch, 1, 3);
  std::set<std::uint64_t> numbers;
  for (std::uint32_t i = 0; i < page->peers_max(); ++i) {
    telemetry::PeerPageRow* row = page->take_peer(0, "192.0.2.1");
    CHECK(row != nullptr && row->generation.in_use());
    CHECK_EQUAL(reinterpret_cast<std::uintptr_t>(row) % telemetry::kLineBytes, 0u);
    CHECK_EQUAL(reinterpret_cast<std::uintptr_t>(page->paths_of(row)) % telemetry::kLineBytes, 0u);
    page->paths_of(row)[2].segments_sent.set(5);
    row->counters.keepalives_sent.set(9);
    numbers.insert(static_cast<std::uint64_t>(page->number_of(row)));
  }
  CHECK_EQUAL(numbers.size(), page->peers_max());
  CHECK(page->take_peer(0, "") == nullptr);

  telemetry::PeerPageRow* row = page->peer_row(nullptr);
  CHECK(row == nullptr);
  page->give_back(row);
  telemetry::PeerCells elsewhere;
  CHECK(page->peer_row(&elsewhere) == nullptr);
  const std::string before = content(page->path());
  const std::uint64_t number = 4;
  CHECK_EQUAL(cell_in(before, "peer", number, "generation"), 1);
  // The peer's row names the row of its first path.
  const auto first = static_cast<std::uint64_t>(cell_in(before, "peer", number, "first_path"));
  CHECK_EQUAL(cell_in(before, "path", first + 2, "segments_sent"), 5);
}

TEST(page__a_row_that_is_taken_again_starts_at_zero) {
  const Scratch scratch;
  const auto page = page_in(scratch, 1, 2);
  telemetry::FlowPageRow* last = nullptr;
  for (std::uint32_t i = 0; i < page->flows_max(); ++i) {
    last = page->take_flow();
    CHECK(last != nullptr);
    last->counters.bytes_sent.set(77);
    last->sends.set(3);
  }
  CHECK(page->take_flow() == nullptr);
  CHECK(page->flow_row(&last->counters) == last);
  page->give_back(last);
  CHECK(!last->generation.in_use());
  CHECK_EQUAL(last->counters.bytes_sent, 77);  // kept until the row is taken again
  CHECK(page->take_flow() == last);
  CHECK(last->generation.in_use());
  CHECK_EQUAL(last->counters.bytes_sent, 0);
  CHECK_EQUAL(last->sends, 0);
  CHECK_EQUAL(cell_in(content(page->path()), "flow", page->flows_max() - 1, "generation"), 3);
}

TEST(page__long_addresses_are_cut) {
  const Scratch scratch;
  const auto page = page_in(scratch, 1, 1);
  const std::string text(200, 'a');
  const telemetry::PeerPageRow* row = page->take_peer(0, text);
  CHECK_EQUAL(std::string(row->address, sizeof row->address), text.substr(0, telemetry::kAddressBytes));
  CHECK_EQUAL(row->heard_ns, -1);
}

TEST(page__without_space_there_is_an_error_and_no_file) {
  const Scratch scratch;
  rlimit before, small;
  CHECK_EQUAL(::getrlimit(RLIMIT_FSIZE, &before), 0);
  small = {4096, before.rlim_max};
  CHECK_EQUAL(::setrlimit(RLIMIT_FSIZE, &small), 0);
  std::string error;
  const auto page = TelemetryPage::create(scratch.path, {1, 1}, &error);
  CHECK_EQUAL(::setrlimit(RLIMIT_FSIZE, &before), 0);
  CHECK(page == nullptr);
  CHECK(error.find("cannot keep counters in " + scratch.path) == 0);
  CHECK(error.find("File too large") != std::string::npos);
  CHECK(scratch.names().empty());
}

TEST(page__a_directory_that_is_named_must_work_and_the_default_need_not) {
  Knobs knobs;
  knobs.interfaces = "lo";
  knobs.telemetry = "/nonexistent";
  std::shared_ptr<Runtime> runtime;
  std::string error;
  CHECK_EQUAL(Runtime::open(knobs, &runtime, &error), Status::system_error);
  CHECK(error.find("WEFT_TELEMETRY=/nonexistent: cannot keep counters in /nonexistent/") == 0);
  knobs.telemetry = "auto";
  rlimit before, small;
  CHECK_EQUAL(::getrlimit(RLIMIT_FSIZE, &before), 0);
  small = {4096, before.rlim_max};
  CHECK_EQUAL(::setrlimit(RLIMIT_FSIZE, &small), 0);
  const Status status = Runtime::open(knobs, &runtime, &error);
  CHECK_EQUAL(::setrlimit(RLIMIT_FSIZE, &before), 0);
  CHECK_EQUAL(status, Status::ok);
  knobs.telemetry = "here";
  CHECK_EQUAL(check_knobs(knobs, &error), Status::invalid_argument);
  CHECK_EQUAL(error, "WEFT_TELEMETRY=here: must be auto, off, or the absolute path of a directory");
}

TEST(page__a_forked_child_counts_elsewhere_and_removes_nothing) {
  const Scratch scratch;
  auto page = page_in(scratch, 1, 1);
  page->engine(0).counters.loops.set(5);
  const pid_t child = ::fork();
  if (child == 0) {
    const bool empty = page->engine(0).counters.loops == 0;
    page->engine(0).counters.loops.set(99);
    page.reset();
    ::_exit(empty ? 0 : 1);
  }
  int status = -1;
  CHECK_EQUAL(::waitpid(child, &status, 0), child);
  CHECK_EQUAL(status, 0);
  CHECK_EQUAL(page->engine(0).counters.loops, 5);
  CHECK_EQUAL(scratch.names().size(), 1u);
  CHECK_EQUAL(cell_in(content(page->path()), "engine", 0, "loops"), 5);
}

TEST(page__names_tell_whose_a_page_is) {
  const PageOwner self = this_process();
  PageOwner read;
  CHECK(read_page_name(page_name(self, 3), &read));
  CHECK_EQUAL(read.pid, self.pid);
  CHECK_EQUAL(read.start_ticks, self.start_ticks);
  CHECK_EQUAL(read.pid_namespace, self.pid_namespace);
  for (const char* other : {"weft-1-2-3-4-5.pag", "weft-1-2-3-4.page", "weft-1-2--3-4-5.page", "weft-1-2-03-4-5.page",
                            "weft-1-2-0-4-5.page", "xweft-1-2-3-4-5.page", "weft-1-2-3-4-5.page.x"}) {
    CHECK(!read_page_name(other, &read));
  }
}

TEST(page__those_of_dead_processes_go_after_a_grace) {
  const Scratch scratch;
  const PageOwner self = this_process();
  PageOwner reused = self, foreign = self, stranger = self;
  reused.start_ticks -= 1;     // a dead process that had the same pid
  foreign.pid_namespace += 1;  // a process of a container, whose pid has no meaning in this namespace
  foreign.start_ticks -= 1;
  stranger.user += 1;
  stranger.start_ticks -= 1;
  const std::string alive = page_name(self, 0), dead = page_name(reused, 0);
  for (const std::string& name : {alive, dead, page_name(foreign, 0), page_name(stranger, 0), std::string("other")}) {
    scratch.put(name);
  }
  CHECK_EQUAL(collect_dead_pages(scratch.path, 1000), 0u);  // 0: the page is only marked
  CHECK_EQUAL(collect_dead_pages(scratch.path, 1000), 0u);  // 0: it is kept during the grace time
  CHECK_EQUAL(scratch.names().size(), 5u);
  CHECK_EQUAL(collect_dead_pages(scratch.path, 0), 1u);
  CHECK_EQUAL(scratch.names().count(dead), 0u);
  CHECK_EQUAL(scratch.names().size(), 4u);
}

TEST(page__one_that_was_marked_by_a_clock_ahead_of_this_one_goes_too) {
  const Scratch scratch;
  PageOwner reused = this_process();
  reused.start_ticks -= 1;
  const std::string dead = page_name(reused, 0), path = scratch.path + "/" + dead;
  scratch.put(dead);
  CHECK_EQUAL(collect_dead_pages(scratch.path, 1000), 0u);
  const timespec ahead[2] = {{std::time(nullptr) + 60, 0}, {std::time(nullptr) + 60, 0}};
  CHECK_EQUAL(::utimensat(AT_FDCWD, path.c_str(), ahead, 0), 0);
  CHECK_EQUAL(collect_dead_pages(scratch.path, 1000), 0u);
  CHECK_EQUAL(collect_dead_pages(scratch.path, 0), 1u);
  CHECK(scratch.names().empty());
}

TEST(page__of_dead_processes_a_few_stay) {
  const Scratch scratch;
  PageOwner reused = this_process();
  reused.start_ticks -= 1;
  for (std::uint32_t i = 0; i < kDeadPagesMax + 5; ++i) scratch.put(page_name(reused, i));
  CHECK_EQUAL(collect_dead_pages(scratch.path), 5u);
  CHECK_EQUAL(scratch.names().size(), kDeadPagesMax);
  const auto page = page_in(scratch, 1, 1);
  CHECK_EQUAL(scratch.names().size(), kDeadPagesMax + 1);
}

TEST(page__runtimes_of_a_process_have_pages_of_their_own_and_remove_them) {
  const Scratch scratch;
  Knobs knobs;
  knobs.telemetry = scratch.path;
  knobs.engines = 1;
  knobs.paths = 4;
  {
    RuntimePair pair(knobs);
    CHECK_EQUAL(scratch.names().size(), 2u);
    const std::vector<std::uint8_t> sent = weft::test::pattern(100'000, 1);
    std::vector<std::uint8_t> received(sent.size());
    Request *send = nullptr, *receive = nullptr;
    CHECK_EQUAL(pair.there->post_receive(received.data(), received.size(), 0, &receive), Status::ok);
    CHECK_EQUAL(pair.here->post_send(sent.data(), sent.size(), 0, &send), Status::ok);
    CHECK_EQUAL(weft::test::finish(*pair.here, send), Status::ok);
    CHECK_EQUAL(weft::test::finish(*pair.there, receive), Status::ok);
    std::int64_t sent_bytes = 0, received_bytes = 0, path_bytes = 0;
    for (const std::string& name : scratch.names()) {
      const std::string bytes = content(scratch.path + "/" + name);
      CHECK_EQUAL(cell_in(bytes, "peer", 0, "generation"), 1);
      CHECK_EQUAL(cell_in(bytes, "flow", 0, "generation"), 1);
      sent_bytes += cell_in(bytes, "flow", 0, "bytes_sent");
      received_bytes += cell_in(bytes, "flow", 0, "bytes_received");
      for (std::uint64_t i = 0; i < 4; ++i) path_bytes += cell_in(bytes, "path", i, "bytes_sent");
    }
    CHECK_EQUAL(sent_bytes, 100'000);
    CHECK_EQUAL(received_bytes, 100'000);
    CHECK(path_bytes >= 100'000);
  }
  CHECK(scratch.names().empty());
}

TEST(page__rows_of_connections_that_are_gone_are_free_again) {
  const Scratch scratch;
  Knobs knobs;
  knobs.telemetry = scratch.path;
  knobs.engines = 1;
  knobs.paths = 1;
  RuntimePair pair(knobs);
  for (int i = 0; i < 5; ++i) {
    pair.here->close();
    pair.there->close();
    pair.connect();
  }
  const auto in_use = [&] {
    std::int64_t rows = 0;
    for (const std::string& name : scratch.names()) {
      const std::string bytes = content(scratch.path + "/" + name);
      for (std::uint64_t i = 0; i < 16; ++i) rows += cell_in(bytes, "flow", i, "generation") % 2;
    }
    return rows;
  };
  // Rows of a closed connection's flows are freed once the peer has confirmed the close.
  for (const std::int64_t until = now_ns() + weft::test::kPatienceNs; in_use() != 2; ::usleep(1000)) {
    CHECK(now_ns() < until);
  }
}

TEST(page__off_makes_no_file) {
  Knobs knobs;
  knobs.telemetry = "off";
  RuntimePair pair(knobs);
  CHECK_EQUAL(pair.a->counters().rows_refused, 0);
}
