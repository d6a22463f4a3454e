// Tests trace files as a reader finds them: whole blocks, texts and communicators repeated in every file, limits, a
// full and a hung disk, several threads, and a forked child.
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <thread>

#include "native/engine/clock.h"
#include "native/engine/trace/trace_writer.h"
#include "native/wire/crc32c.h"
#include "tests/native/check.h"

namespace {

using namespace weft;
using namespace weft::engine;
using namespace weft::telemetry;
namespace fs = std::filesystem;

constexpr std::int64_t kPatienceNs = 30'000'000'000;

struct Folder {
  fs::path path;
  Folder() {
    char name[] = "/tmp/weft-trace-test-XXXXXX";
    path = ::mkdtemp(name);
  }
  ~Folder() { fs::remove_all(path); }
  std::vector<fs::path> files() const {
    std::vector<fs::path> found;
    for (const auto& entry : fs::directory_iterator(path)) found.push_back(entry.path());
    std::sort(found.begin(), found.end());
    return found;
  }
};

struct Segment {
  TraceFileHeader header;
  std::string schema, identity;
  std::vector<TraceBlockHeader> blocks;
  std::vector<std::vector<std::byte>> records;  // the records of all blocks
};

// How a file may end.
enum class Tail { kWhole, kCut };

// Reads a segment, and checks every size and checksum. With kCut the last block may be incomplete; it is left out.
Segment read(const fs::path& path, Tail tail = Tail::kWhole) {
  std::ifstream file(path, std::ios::binary);
  std::string data{std::istreambuf_iterator<char>(file), {}};
  Segment segment;
  CHECK(data.size() >= sizeof segment.header);
  std::memcpy(&segment.header, data.data(), sizeof segment.header);
  CHECK_EQUAL(std::memcmp(segment.header.magic, kTraceMagic, sizeof kTraceMagic), 0);
  TraceFileHeader zeroed = segment.header;
  zeroed.crc = 0;
  std::memcpy(data.data(), &zeroed, sizeof zeroed);
  CHECK_EQUAL(wire::crc32c(0, data.data(), zeroed.header_bytes), segment.header.crc);
  segment.schema = data.substr(sizeof zeroed, zeroed.schema_bytes);
  segment.identity = data.substr(sizeof zeroed + zeroed.schema_bytes, zeroed.identity_bytes);
  for (std::size_t at = zeroed.header_bytes; at < data.size();) {
    TraceBlockHeader block;
    if (tail == Tail::kCut && at + sizeof block > data.size()) break;
    CHECK(at + sizeof block <= data.size());
    std::memcpy(&block, data.data() + at, sizeof block);
    CHECK_EQUAL(block.magic, kTraceBlockMagic);
    if (tail == Tail::kCut && at + sizeof block + block.bytes > data.size()) break;
    TraceBlockHeader blank = block;
    blank.crc = 0;
    std::memcpy(data.data() + at, &blank, sizeof blank);
    CHECK(at + sizeof block + block.bytes <= data.size());
    CHECK_EQUAL(wire::crc32c(0, data.data() + at, sizeof block + block.bytes), block.crc);
    segment.blocks.push_back(block);
    const std::size_t end = at + sizeof block + block.bytes;
    for (at += sizeof block; at < end;) {
      TraceHead head;
      std::memcpy(&head, data.data() + at, sizeof head);
      CHECK(head.bytes >= sizeof head && at + head.bytes <= end);
      const auto* const first = reinterpret_cast<const std::byte*>(data.data()) + at;
      segment.records.emplace_back(first, first + head.bytes);
      at += head.bytes;
    }
  }
  return segment;
}

TraceHead head_of(const std::vector<std::byte>& record) {
  TraceHead head;
  std::memcpy(&head, record.data(), sizeof head);
  return head;
}

// Whether it is a text of the writer's own events: its thread woke up late, or measured how long threads had no core.
bool is_own_text(const std::vector<std::byte>& record) {
  const std::string_view text{reinterpret_cast<const char*>(record.data()), record.size()};
  return head_of(record).type == TraceText::kType &&
         (text.find("process_stalled") != text.npos || text.find("cpu_wait") != text.npos);
}

std::size_t count(const std::vector<Segment>& segments, std::uint16_t type) {
  std::size_t found = 0;
  for (const Segment& segment : segments) {
    for (const auto& record : segment.records) found += head_of(record).type == type && !is_own_text(record) ? 1 : 0;
  }
  return found;
}

// Every message is in a file or counted as dropped; so are the up to 50 records that a writer itself makes.
void check_accounts(const std::vector<Segment>& segments, std::size_t messages) {
  const std::size_t found = count(segments, TraceMessage::kType) + segments.back().blocks.back().dropped;
  CHECK(found >= messages && found <= messages + 50);
}

std::vector<Segment> read_all(const Folder& folder, Tail tail = Tail::kWhole) {
  std::vector<Segment> segments;
  for (const fs::path& path : folder.files()) segments.push_back(read(path, tail));
  return segments;
}

std::shared_ptr<TraceWriter> opened(const Folder& folder, const TraceLimits& limits = {}) {
  std::string error;
  auto writer = TraceWriter::open(folder.path.string(), limits, &error);
  CHECK_EQUAL(error, std::string());
  return writer;
}

// Replaces the open file of a trace with a full pipe, so that the next write blocks until recover() is called.
class HungDisk {
 public:
  void hang(const Folder& folder) {
    CHECK_EQUAL(::pipe2(pipe_, O_NONBLOCK), 0);
    const std::vector<char> bytes(4096);
    while (::write(pipe_[1], bytes.data(), bytes.size()) > 0) {
    }
    CHECK_EQUAL(::fcntl(pipe_[1], F_SETFL, 0), 0);
    int replaced = 0;
    for (const auto& entry : fs::directory_iterator("/proc/self/fd")) {
      std::error_code gone;  // set if the descriptor was closed meanwhile
      const fs::path target = fs::read_symlink(entry.path(), gone);
      if (gone || target.parent_path() != folder.path) continue;
      CHECK(::dup2(pipe_[1], std::stoi(entry.path().filename())) >= 0);
      ++replaced;
    }
    CHECK_EQUAL(replaced, 1);
  }
  void recover() {
    std::vector<char> bytes(1 << 20);
    static_cast<void>(!::read(pipe_[0], bytes.data(), bytes.size()));
  }

 private:
  int pipe_[2];
};

// Whether the last record says that the trace has ended.
bool has_end(const Segment& segment) {
  return !segment.records.empty() && head_of(segment.records.back()).type == TraceEnd::kType;
}

void put_messages(TraceWriter& writer, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    TraceMessage message;
    message.head.id = writer.next_id();
    message.head.time_ns = now_ns();
    message.bytes = i;
    writer.put(message);
  }
}

}  // namespace

TEST(trace__a_segment_describes_itself) {
  Folder folder;
  auto writer = opened(folder);
  put_messages(*writer, 3);
  CHECK(writer->text("AllReduce") == writer->text("AllReduce"));
  CHECK(writer->text("AllReduce") != writer->text("Send"));
  writer.reset();
  const std::vector<Segment> segments = read_all(folder);
  CHECK_EQUAL(segments.size(), 1u);
  CHECK(segments[0].schema.find("record 9 message " + std::to_string(sizeof(TraceMessage))) != std::string::npos);
  CHECK(segments[0].schema.find("field bytes u64 bytes ") != std::string::npos);
  CHECK(segments[0].identity.find("pid " + std::to_string(::getpid())) != std::string::npos);
  CHECK_EQUAL(count(segments, TraceMessage::kType), 3u);
  CHECK_EQUAL(count(segments, TraceText::kType), 2u);
  CHECK(has_end(segments[0]));
}

TEST(trace__a_text_comes_before_the_records_that_name_it) {
  Folder folder;
  auto writer = opened(folder);
  for (int i = 0; i < 200; ++i) {
    TraceOperation operation;
    operation.function = writer->text("function " + std::to_string(i));
    writer->put(operation);
    if (i % 50 == 0) CHECK(writer->flush(kPatienceNs));
  }
  writer.reset();
  std::set<std::uint32_t> known;
  const std::vector<Segment> segments = read_all(folder);
  for (const auto& record : segments.at(0).records) {
    if (head_of(record).type == TraceText::kType && !is_own_text(record)) known.insert(head_of(record).id);
    if (head_of(record).type != TraceOperation::kType) continue;
    TraceOperation operation;
    std::memcpy(&operation, record.data(), sizeof operation);
    CHECK(known.count(operation.function) == 1);
  }
  CHECK_EQUAL(known.size(), 200u);
}

TEST(trace__threads_lose_nothing_that_fits) {
  Folder folder;
  auto writer = opened(folder);
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) threads.emplace_back([&] { put_messages(*writer, 2000); });
  for (std::thread& thread : threads) thread.join();
  const TraceStats stats = writer->stats();
  CHECK(stats.records + stats.dropped >= 16'000);
  writer.reset();
  check_accounts(read_all(folder), 16'000);
}

TEST(trace__ids_wrap_and_spare_standing_records) {
  Folder folder;
  TraceLimits limits;
  limits.first_id = 0x7FFF'FF00;  // 256 ids before the wrap
  auto writer = opened(folder, limits);
  std::set<std::uint32_t> ids;
  for (int i = 0; i < 1000; ++i) {
    const std::uint32_t id = writer->next_id();
    CHECK(id != 0 && id < 0x8000'0000);
    CHECK(ids.insert(id).second);
  }
  CHECK(ids.count(0x7FFF'FFFF) != 0 && ids.count(1) != 0);
  TraceConnection record;
  record.head.id = writer->next_standing_id();
  CHECK(record.head.id >= 0x8000'0000);
  writer->begin(record);
  std::set<std::uint32_t> standing{record.head.id};
  for (int i = 0; i < 1000; ++i) CHECK(standing.insert(writer->next_standing_id()).second);
  CHECK(standing.count(0xFFFF'FFFF) != 0 && standing.count(0x8000'0000) != 0);
}

// Once all numbers have been used, a record that still stands keeps its own.
TEST(trace__an_id_that_stands_is_not_given_again) {
  Folder folder;
  TraceLimits limits;
  limits.first_id = 0x7FFF'FFFF;
  auto writer = opened(folder, limits);
  TraceConnection record;
  record.head.id = 0x8000'0000;  // as if it stood since all numbers were used before
  writer->begin(record);
  CHECK_EQUAL(writer->next_standing_id(), 0xFFFF'FFFFu);
  CHECK_EQUAL(writer->next_standing_id(), 0x8000'0001u);
  writer->end(TraceConnectionEnd{{TraceConnectionEnd::kType, sizeof(TraceConnectionEnd), record.head.id, now_ns()}});
}

TEST(trace__a_full_ring_refuses_records_until_it_is_read) {
  TraceRing ring(256);
  const std::vector<std::byte> record(96);
  CHECK(ring.put(record.data(), record.size()) && ring.put(record.data(), record.size()));
  CHECK(ring.passed_half(record.size()));
  CHECK(!ring.put(record.data(), record.size()));
  std::vector<std::byte> taken;
  ring.take(&taken);
  CHECK_EQUAL(taken.size(), 2 * record.size());
  CHECK(ring.put(record.data(), record.size()));
}

TEST(trace__every_record_is_written_or_counted_as_dropped) {
  Folder folder;
  auto writer = opened(folder);
  put_messages(*writer, 200'000);  // far more than a ring holds
  CHECK(writer->stats().records + writer->stats().dropped >= 200'000);
  CHECK(writer->flush(kPatienceNs));
  put_messages(*writer, 1);
  writer.reset();
  check_accounts(read_all(folder), 200'001);
}

TEST(trace__segments_rotate_and_old_ones_go) {
  Folder folder;
  constexpr std::int64_t kMax = 400'000;
  auto writer = opened(folder, {kMax, 100'000, 0});
  const std::uint32_t name = writer->text("training");
  TraceCommunicator lasting, ended;
  lasting.head.id = writer->next_id();
  lasting.name = name;
  ended.head.id = writer->next_id();
  writer->begin(lasting);
  writer->begin(ended);
  for (int i = 0; i < 40; ++i) {
    put_messages(*writer, 500);
    CHECK(writer->flush(kPatienceNs));
    if (i == 2) {
      TraceCommunicatorEnd end;
      end.head.id = ended.head.id;
      writer->end(end);
    }
  }
  CHECK(writer->stats().bytes <= kMax + 200'000);
  writer.reset();
  const std::vector<Segment> segments = read_all(folder);
  CHECK(segments.size() >= 3 && segments.size() <= 6);
  CHECK(segments[0].header.number > 0);  // the first segments were removed
  for (const Segment& segment : segments) {
    const std::vector<Segment> one{segment};
    CHECK_EQUAL(count(one, TraceText::kType), 1u);
    CHECK_EQUAL(count(one, TraceCommunicator::kType), 1u);
  }
}

TEST(trace__a_short_communicator_is_in_the_segment_that_names_it) {
  Folder folder;
  auto writer = opened(folder, {1 << 30, 1, 0});  // every drain begins a segment
  for (int i = 0; i < 20; ++i) {
    TraceCommunicator communicator;
    communicator.head.id = writer->next_id();
    writer->begin(communicator);
    TraceOperation operation;
    operation.communicator = communicator.head.id;
    writer->put(operation);
    TraceCommunicatorEnd end;
    end.head.id = communicator.head.id;
    writer->end(end);
    if (i % 3 == 0) CHECK(writer->flush(kPatienceNs));
  }
  writer.reset();
  std::size_t operations = 0;
  for (const Segment& segment : read_all(folder)) {
    std::set<std::uint32_t> known;
    for (const auto& record : segment.records) {
      if (head_of(record).type == TraceCommunicator::kType) known.insert(head_of(record).id);
      if (head_of(record).type != TraceOperation::kType) continue;
      TraceOperation operation;
      std::memcpy(&operation, record.data(), sizeof operation);
      CHECK(known.count(operation.communicator) == 1);
      ++operations;
    }
  }
  CHECK_EQUAL(operations, 20u);
}

TEST(trace__a_forked_child_may_destroy_its_parents_writer) {
  Folder folder;
  auto writer = opened(folder);
  put_messages(*writer, 5);
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(20);
    const bool flushed = writer->flush(1'000'000);
    writer.reset();
    std::_Exit(flushed ? 1 : 0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  CHECK_EQUAL(status, 0);
}

TEST(trace__segments_go_by_age) {
  Folder folder;
  auto writer = opened(folder, {1 << 30, 1 << 20, 200'000'000});
  for (int i = 0; i < 20; ++i) {
    put_messages(*writer, 10);
    CHECK(writer->flush(kPatienceNs));
    std::this_thread::sleep_for(std::chrono::milliseconds(50));  // a segment ends after 200 ms
  }
  writer.reset();
  CHECK(read_all(folder).front().header.number > 0);
}

// SIGKILL ends a write to a file between two pages, so only the last block may be incomplete.
TEST(trace__a_process_that_is_killed_cuts_at_most_the_last_block) {
  Folder folder;
  int ready[2];
  CHECK_EQUAL(::pipe(ready), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    auto writer = opened(folder);
    put_messages(*writer, 1000);
    const bool flushed = writer->flush(kPatienceNs);
    static_cast<void>(!::write(ready[1], &flushed, 1));
    for (;;) put_messages(*writer, 10);
  }
  char byte = 0;
  CHECK_EQUAL(::read(ready[0], &byte, 1), 1);
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  for (int end : ready) ::close(end);
  const std::vector<Segment> segments = read_all(folder, Tail::kCut);
  CHECK(count(segments, TraceMessage::kType) >= 1000);
  CHECK(!has_end(segments.back()));
}

TEST(trace__a_process_that_was_stopped_notices_it) {
  Folder folder;
  int ready[2];
  CHECK_EQUAL(::pipe(ready), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    static const std::shared_ptr<TraceWriter> kept = opened(folder);
    static_cast<void>(!::write(ready[1], "", 1));
    for (;;) ::pause();
  }
  char byte = 0;
  CHECK_EQUAL(::read(ready[0], &byte, 1), 1);
  for (int end : ready) ::close(end);
  constexpr std::int64_t kStopNs = 400'000'000;
  const auto noticed = [&] { return count(read_all(folder), TraceEvent::kType) != 0; };
  // A stop in one of the moments in which the thread does not sleep goes unnoticed, so some more follow.
  for (int i = 0; i < 40 && !noticed(); ++i) {
    ::kill(child, SIGSTOP);
    ::usleep(kStopNs / 1000);  // time for which the child is stopped
    ::kill(child, SIGCONT);
    ::usleep(kStopNs / 1000);  // time in which it may write that down
  }
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  CHECK(noticed());
}

TEST(trace__the_exit_of_the_process_ends_it) {
  Folder folder;
  const pid_t child = ::fork();
  if (child == 0) {
    static const std::shared_ptr<TraceWriter> kept = opened(folder);
    put_messages(*kept, 5);
    std::exit(0);
  }
  ::waitpid(child, nullptr, 0);
  const std::vector<Segment> segments = read_all(folder);
  CHECK_EQUAL(count(segments, TraceMessage::kType), 5u);
  CHECK(has_end(segments.back()));
}

TEST(trace__a_hung_disk_does_not_hold_up_the_exit) {
  Folder folder;
  for (const bool destroyed : {false, true}) {
    const pid_t child = ::fork();
    if (child == 0) {
      ::alarm(60);
      static std::shared_ptr<TraceWriter> kept;
      [[maybe_unused]] static const void* volatile left = nullptr;
      static HungDisk disk;
      // Exit handlers run in reverse order, so this handler runs after the writer's, which gives up waiting for the
      // blocked write. The write then continues while the process exits.
      std::atexit([] {
        disk.recover();
        std::this_thread::sleep_for(std::chrono::milliseconds(200));
      });
      kept = opened(folder);
      left = kept.get();  // lets the leak checker find the writer
      disk.hang(folder);
      put_messages(*kept, 5);
      if (destroyed) kept.reset();
      std::exit(0);
    }
    int status = 0;
    ::waitpid(child, &status, 0);
    CHECK_EQUAL(status, 0);
  }
}

TEST(trace__a_file_that_cannot_grow_ends_with_a_whole_block) {
  Folder folder;
  const pid_t child = ::fork();
  if (child == 0) {
    std::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{60'000, 60'000};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    auto writer = opened(folder);
    for (int i = 0; i < 20; ++i) {
      put_messages(*writer, 100);
      static_cast<void>(writer->flush(kPatienceNs));
    }
    const TraceStats stats = writer->stats();
    writer.reset();
    std::_Exit(stats.records >= 2000 && stats.dropped > 0 ? 0 : 1);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  CHECK_EQUAL(status, 0);
  const std::vector<Segment> segments = read_all(folder);
  const std::size_t written = count(segments, TraceMessage::kType);
  CHECK(written > 0);
  CHECK(segments.size() >= 2 && !has_end(segments.front()) && has_end(segments.back()));
  check_accounts(segments, 2000);  // the next file counts the dropped records
}

TEST(trace__a_full_disk_leaves_one_file_without_end) {
  Folder folder;
  const pid_t child = ::fork();
  if (child == 0) {
    std::signal(SIGXFSZ, SIG_IGN);
    auto writer = opened(folder);
    const auto header = static_cast<rlim_t>(fs::file_size(folder.files().at(0)));
    const rlimit limit{header + 40, header + 40};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    put_messages(*writer, 100);
    const bool flushed = writer->flush(kPatienceNs);
    writer.reset();
    std::_Exit(flushed ? 0 : 1);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  CHECK_EQUAL(status, 0);
  const std::vector<Segment> segments = read_all(folder);
  CHECK_EQUAL(segments.size(), 1u);
  CHECK(segments.at(0).blocks.empty());
}

TEST(trace__a_full_disk_leaves_one_empty_file_of_a_process) {
  Folder folder;
  const pid_t child = ::fork();
  if (child == 0) {
    std::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{40, 40};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    std::string error;
    int refused = 0;
    for (int i = 0; i < 3; ++i) refused += TraceWriter::open(folder.path, {}, &error) == nullptr ? 1 : 0;
    std::_Exit(refused == 3 ? 0 : 1);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  CHECK_EQUAL(status, 0);
  CHECK_EQUAL(folder.files().size(), 1u);
  CHECK_EQUAL(fs::file_size(folder.files().at(0)), 0u);
}

TEST(trace__a_file_that_is_removed_is_noticed) {
  Folder folder;
  const auto wait = [&](const auto& seen) {
    const std::int64_t start = now_ns();
    while (!seen() && now_ns() - start < kPatienceNs) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    return seen();
  };
  auto writer = opened(folder);
  fs::remove(folder.files().at(0));
  CHECK(wait([&] { return folder.files().size() == 1; }));
  CHECK_EQUAL(read(folder.files().at(0)).header.number, 1u);
  fs::remove_all(folder.path);
  CHECK(wait([&] {
    put_messages(*writer, 1);
    return writer->stats().dropped > 0;
  }));
  CHECK(!fs::exists(folder.path));  // the removed directory is not made again
}

TEST(trace__a_forked_child_records_nothing_and_may_open_its_own) {
  Folder folder, other;
  auto writer = opened(folder);
  put_messages(*writer, 5);
  // The writing thread sleeps after this. AddressSanitizer's allocator has locks that a fork copies as they are: if the
  // writing thread held one, the child would wait for it for ever.
  CHECK(writer->flush(kPatienceNs));
  const pid_t child = ::fork();
  if (child == 0) {
    put_messages(*writer, 5);
    const bool nothing = writer->text("child") == 0;
#if !defined(__SANITIZE_THREAD__)  // TSan allows no new thread after a fork
    auto own = opened(other);
    put_messages(*own, 7);
    own.reset();
#endif
    writer.reset();
    std::_Exit(nothing ? 0 : 1);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  CHECK_EQUAL(status, 0);
  put_messages(*writer, 1);
  writer.reset();
  CHECK_EQUAL(count(read_all(folder), TraceMessage::kType), 6u);
#if !defined(__SANITIZE_THREAD__)
  CHECK_EQUAL(count(read_all(other), TraceMessage::kType), 7u);
#endif
}

TEST(trace__a_directory_that_does_not_work_is_an_error) {
  std::string error;
  CHECK(TraceWriter::open("/nowhere/at/all", {}, &error) == nullptr);
  CHECK(error.find("cannot trace into /nowhere/at/all: it cannot be made: ") == 0);
  CHECK(error.find("No such file") != std::string::npos);
}

TEST(trace__one_directory_has_one_writer) {
  Folder folder;
  auto one = opened(folder), two = opened(folder);
  CHECK(one == two);
}
