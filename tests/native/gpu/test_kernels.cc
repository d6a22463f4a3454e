// Tests that kernels gather and scatter pieces of any size and alignment exactly, without reading or writing other
// bytes. The kernels' code runs on the host here, thread by thread; tests/device uses GPUs.
#include "tests/native/watched.h"
// watched.h must come first, because it observes the code in the headers below.
#include <dlfcn.h>

#include <memory>
#include <numeric>

#include "native/gpu/copier.h"
#include "native/gpu/kernel_image.h"
#include "native/gpu/kernels.h"
#include "tests/native/check.h"
#include "tests/native/fake_cuda.h"

namespace {

using namespace weft;
using test::Draw;
using test::draw_piece_bytes;
using test::Placed;
using test::watched;

std::uint64_t at(const void* memory) { return reinterpret_cast<std::uint64_t>(memory); }

// Runs one launch of a kernel by name, with chunks of any size.
void run(const char* name, gpu::PiecesJob job) {
  const std::uint64_t chunks = (job.end_bytes - job.begin_bytes + job.contiguous % 128) / job.chunk_bytes + 1;
  void* parameters[] = {&job};
  test::find_host_kernel(name)->prepare(static_cast<unsigned>(chunks / 8 + 1), parameters)();
}

struct Message {
  std::vector<Placed> parts;
  std::vector<gpu::Piece> table;
  std::vector<std::uint8_t> bytes;  // contents of all pieces in order

  void add(std::size_t size, std::size_t place) {
    parts.emplace_back(size, place, 0xEE);
    table.push_back({parts.back().address(), size, 0});
  }
  void lay_out(Draw* draw) {
    bytes.resize(gpu::lay_out(table.data(), table.size()));
    draw->fill(bytes.data(), bytes.size());
  }
  void fill() {
    for (std::size_t i = 0; i < parts.size(); ++i)
      std::copy_n(bytes.data() + table[i].offset_bytes, parts[i].bytes(), parts[i].data());
  }
  void allow(std::uint64_t begin, std::uint64_t end, bool stores) const {
    for (const gpu::Piece& piece : table) {
      const std::uint64_t from = std::max(begin, piece.offset_bytes);
      const std::uint64_t to = std::min(end, piece.offset_bytes + piece.bytes);
      if (from < to) watched().allow(piece.address + from - piece.offset_bytes, to - from, stores);
    }
    watched().allow(at(table.data()), table.size() * sizeof(gpu::Piece), false);
  }
};

void check_gather(Message* message, std::uint64_t begin, std::uint64_t end, std::size_t place, std::uint64_t chunk) {
  message->fill();
  Placed out(end - begin, place, 0x11);
  watched().forget();
  message->allow(begin, end, false);
  watched().allow(out.address(), out.bytes(), true);
  run("weft_gather", {at(message->table.data()), message->table.size(), begin, end, out.address(), chunk});
  CHECK_EQUAL(watched().breaches(), "");
  CHECK(std::equal(out.data(), out.data() + out.bytes(), message->bytes.data() + begin));
  CHECK(out.guarded());
}

void check_scatter(Message* message, std::uint64_t begin, std::uint64_t end, std::size_t place, std::uint64_t chunk) {
  for (Placed& part : message->parts) std::fill_n(part.data(), part.bytes(), std::uint8_t{0xEE});
  Placed in(end - begin, place, 0);
  std::copy_n(message->bytes.data() + begin, end - begin, in.data());
  watched().forget();
  message->allow(begin, end, true);
  watched().allow(in.address(), in.bytes(), false);
  run("weft_scatter", {at(message->table.data()), message->table.size(), begin, end, in.address(), chunk});
  CHECK_EQUAL(watched().breaches(), "");
  for (std::size_t i = 0; i < message->parts.size(); ++i) {
    Placed& part = message->parts[i];
    const gpu::Piece& piece = message->table[i];
    std::vector<std::uint8_t> wanted(part.bytes(), 0xEE);
    const std::uint64_t from = std::max(begin, piece.offset_bytes);
    const std::uint64_t to = std::min(end, piece.offset_bytes + piece.bytes);
    if (from < to) std::copy_n(&message->bytes[from], to - from, &wanted[from - piece.offset_bytes]);
    CHECK(std::equal(wanted.begin(), wanted.end(), part.data()));
    CHECK(part.guarded());
  }
}

std::unique_ptr<gpu::Kernels> watched_kernels() {
  std::string error;
  auto kernels = gpu::Kernels::load(test::host_driver(), nullptr, "any", &error);
  CHECK_EQUAL(error, "");
  return kernels;
}

const gpu::Driver& fake_driver() {
  std::string error;
  const gpu::Driver* found = gpu::load_driver(WEFT_FAKE_CUDA, &error);
  CHECK_EQUAL(error, "");
  return *found;
}
template <class Function>
Function* fake(const char* name) {
  void* library = ::dlopen(WEFT_FAKE_CUDA, RTLD_NOW | RTLD_LOCAL);
  CHECK(library != nullptr);
  auto* const found = reinterpret_cast<Function*>(::dlsym(library, name));
  CHECK(found != nullptr);
  return found;
}
void fail_at(const char* symbol, int nth) {
  fake<void(const char*, int, int, int)>("fake_cuda_fail")(symbol, nth, 700, 0);
}
int live() { return fake<int()>("fake_cuda_live")(); }

}  // namespace

TEST(kernels__one_piece_at_every_alignment) {
  Draw draw(1);
  std::vector<std::size_t> sizes(130);
  std::iota(sizes.begin(), sizes.end(), 0);
  for (const std::size_t more : {511, 512, 2'047, 2'048, 2'081, 4'200}) sizes.push_back(more);
  for (std::size_t to = 0; to < 16; ++to) {
    for (std::size_t from = 0; from < 16; ++from) {
      for (const std::size_t size : sizes) {
        Placed source(size, from, 0), target(size, to, 0x11);
        draw.fill(source.data(), size);
        watched().forget();
        watched().allow(source.address(), size, false);
        watched().allow(target.address(), size, true);
        for (unsigned lane = 0; lane < gpu::kWarpLanes; ++lane)
          gpu::device::copy_bytes(lane, target.address(), source.address(), static_cast<unsigned>(size));
        CHECK_EQUAL(watched().breaches(), "");
        CHECK(std::equal(source.data(), source.data() + size, target.data()));
        CHECK(target.guarded());
        // Pieces are copied 16 bytes at a time, so there are few accesses besides those at the ends of pieces.
        CHECK(watched().accesses() <= 3 * (size / 16 + 4 * 32) + 128);
      }
    }
  }
}

TEST(kernels__drawn_tables) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    Draw draw(seed);
    Message message;
    const std::size_t count = seed % 8 == 0 ? 3'000 : 1 + draw.below(seed % 2 == 0 ? 6 : 200);
    const bool aligned = draw.one_in(4);
    for (std::size_t i = 0; i < count; ++i) message.add(draw_piece_bytes(&draw), aligned ? 0 : draw.below(16));
    message.lay_out(&draw);
    const std::uint64_t total = message.bytes.size();
    for (int range = 0; range < 3; ++range) {
      std::uint64_t begin = range == 0 ? 0 : draw.below(total + 1), end = range == 0 ? total : draw.below(total + 1);
      if (begin > end) std::swap(begin, end);
      static constexpr std::uint64_t kChunks[] = {128, 384, 4'096, 32'768};
      // On the host, each thread repeats the table search of its whole warp, so long tables get fewer chunks.
      const std::uint64_t chunk = kChunks[count > 100 ? 2 + draw.below(2) : draw.below(4)];
      if (begin == end) continue;
      check_gather(&message, begin, end, draw.below(16), chunk);
      check_scatter(&message, begin, end, draw.below(16), chunk);
    }
  }
}

TEST(kernels__every_cut_of_a_small_message) {
  Draw draw(7);
  Message message;
  for (const std::size_t size : {3, 0, 0, 61, 1, 0, 40, 0}) message.add(size, draw.below(16));
  message.lay_out(&draw);
  for (std::uint64_t begin = 0; begin < message.bytes.size(); ++begin) {
    for (std::uint64_t end = begin + 1; end <= message.bytes.size(); ++end) {
      check_gather(&message, begin, end, begin + end, 128);
      check_scatter(&message, begin, end, begin * end, 128);
    }
  }
}

// A warp's work depends only on its number of bytes, even with pieces of many megabytes or many empty pieces.
TEST(kernels__very_uneven_pieces) {
  Draw draw(3);
  Message message;
  message.add(1, 5);
  for (int i = 0; i < 100'000; ++i) message.add(0, 0);
  message.add(3 << 20, 3);
  for (int i = 0; i < 100'000; ++i) message.add(0, 0);
  message.add(2, 9);
  message.lay_out(&draw);
  auto kernels = watched_kernels();
  const gpu::PieceTable table{at(message.table.data()), message.table.size()};
  const std::uint64_t bytes = message.bytes.size();
  message.fill();
  Placed out(bytes, 1, 0);
  watched().forget();
  message.allow(0, bytes, false);
  watched().allow(out.address(), bytes, true);
  CHECK_EQUAL(kernels->gather(table, 0, bytes, out.address(), nullptr), gpu::kSuccess);
  CHECK_EQUAL(test::blocks_launched(), bytes / 4'096 / 8 + 1);
  CHECK_EQUAL(watched().breaches(), "");
  CHECK(std::equal(message.bytes.begin(), message.bytes.end(), out.data()));
  // On the host, each thread repeats the search of its whole warp.
  CHECK(watched().accesses() < bytes / 16 * 4 + test::blocks_launched() * 256 * 5 * 32);
}

TEST(kernels__bytes_that_no_piece_has_are_left_alone) {
  Draw draw(4);
  for (std::uint64_t gap = 1; gap < 300; gap += 7) {
    Message message;
    for (int i = 0; i < 6; ++i) message.add(i == 2 ? 0 : 50 + draw.below(100), draw.below(16));
    std::uint64_t total = gap;
    for (gpu::Piece& piece : message.table) {
      piece.offset_bytes = total;
      total += piece.bytes + gap;
    }
    message.bytes.resize(total);
    std::fill(message.bytes.begin(), message.bytes.end(), std::uint8_t{0x11});
    for (const gpu::Piece& piece : message.table) draw.fill(&message.bytes[piece.offset_bytes], piece.bytes);
    message.fill();
    Placed out(total, gap, 0x11);
    run("weft_gather", {at(message.table.data()), message.table.size(), 0, total, out.address(), 128});
    CHECK(std::equal(message.bytes.begin(), message.bytes.end(), out.data()));
    check_scatter(&message, 0, total, gap, 384);
  }
}

TEST(kernels__finds_the_last_piece_that_begins_there) {
  Draw draw(5);
  watched().forget();
  for (std::size_t count = 1; count < 3'000; count += 1 + count / 3) {
    std::vector<gpu::Piece> table(count);
    std::uint64_t offset = 0;
    for (gpu::Piece& piece : table) piece = {0, 0, offset += draw.below(3)};
    watched().allow(at(table.data()), count * sizeof(gpu::Piece), false);
    for (std::uint64_t wanted = 0; wanted <= offset + 1; ++wanted) {
      std::size_t last = 0;
      for (std::size_t i = 0; i < count && table[i].offset_bytes <= wanted; ++i) last = i;
      CHECK_EQUAL(gpu::device::find_piece(0, at(table.data()), 0, count, wanted), last);
    }
    CHECK_EQUAL(watched().breaches(), "");
    watched().forget();
  }
}

TEST(kernels__what_a_launch_refuses_and_what_it_need_not_do) {
  auto kernels = watched_kernels();
  gpu::Piece piece{at(&piece), 8, 0};
  const gpu::PieceTable table{at(&piece), 1};
  test::only_counts() = true;
  test::blocks_launched() = 0;
  CHECK_EQUAL(kernels->gather(table, 5, 5, 0, nullptr), gpu::kSuccess);
  CHECK_EQUAL(kernels->gather({}, 0, 0, 0, nullptr), gpu::kSuccess);
  CHECK_EQUAL(kernels->gather({}, 0, 1, 0, nullptr), gpu::kInvalidValue);
  CHECK_EQUAL(kernels->scatter(0, table, 2, 1, nullptr), gpu::kInvalidValue);
  CHECK_EQUAL(kernels->scatter(0, {table.pieces + 4, 1}, 0, 1, nullptr), gpu::kInvalidValue);
  CHECK_EQUAL(test::blocks_launched(), 0u);
  CHECK_EQUAL(kernels->scatter(0, table, 0, 1, nullptr), gpu::kSuccess);
  CHECK_EQUAL(test::blocks_launched(), 1u);
  CHECK_EQUAL(kernels->gather(table, 0, std::uint64_t{1} << 30, 0, nullptr), gpu::kSuccess);
  CHECK_EQUAL(test::blocks_launched(), 4'096u);  // each warp copies at most 32 KB
  CHECK_EQUAL(kernels->gather(table, 0, std::uint64_t{1} << 45, 0, nullptr), gpu::kSuccess);
  CHECK_EQUAL(test::blocks_launched(), 1u << 27);
  // Needs more blocks than a grid may have, so the launch is refused.
  CHECK_EQUAL(kernels->gather(table, 0, std::uint64_t{1} << 60, 0, nullptr), gpu::kInvalidValue);
  test::only_counts() = false;
}

TEST(kernels__run_in_the_order_of_their_stream) {
  Draw draw(6);
  Message message;
  for (int i = 0; i < 500; ++i) message.add(draw_piece_bytes(&draw), draw.below(16));
  message.lay_out(&draw);
  const gpu::PieceTable table{at(message.table.data()), message.table.size()};
  const std::uint64_t bytes = message.bytes.size();
  std::vector<std::uint8_t> ring(bytes), back(bytes);
  std::string error;
  const gpu::Driver& driver = fake_driver();
  const auto tell = fake<void(const void*, std::size_t, int, int)>("fake_cuda_memory");
  tell(ring.data(), bytes, 0, 0);
  {
    auto copier = gpu::Copier::open(driver, 0, &error);
    CHECK_EQUAL(error, "");
    auto kernels = gpu::Kernels::load(driver, copier->context(), "any", &error);
    CHECK_EQUAL(error, "");
    const gpu::Current current(driver, copier->context());
    gpu::Stream stream = nullptr;
    gpu::Event done = nullptr;
    CHECK_EQUAL(driver.stream_create(&stream, gpu::kNonBlocking), gpu::kSuccess);
    CHECK_EQUAL(driver.event_create(&done, gpu::kDisableTiming), gpu::kSuccess);
    CHECK_EQUAL(driver.copy_to_device(at(ring.data()), message.bytes.data(), bytes, stream), gpu::kSuccess);
    CHECK_EQUAL(kernels->scatter(at(ring.data()), table, 0, bytes, stream), gpu::kSuccess);
    CHECK_EQUAL(kernels->gather(table, 0, bytes / 3, at(back.data()), stream), gpu::kSuccess);
    CHECK_EQUAL(kernels->gather(table, bytes / 3, bytes, at(back.data()) + bytes / 3, stream), gpu::kSuccess);
    CHECK_EQUAL(driver.event_record(done, stream), gpu::kSuccess);
    CHECK_EQUAL(fake<int()>("fake_cuda_waiting")(), 5);  // launches return before the kernels run
    while (driver.event_query(done) == gpu::kNotReady) continue;
    CHECK(back == message.bytes);
    for (Placed& part : message.parts) CHECK(part.guarded());
    static_cast<void>(driver.event_destroy(done));
    static_cast<void>(driver.stream_destroy(stream));
  }
  tell(ring.data(), 0, 0, 0);
  CHECK_EQUAL(live(), 0);
}

TEST(kernels__every_call_that_fails_is_told) {
  std::string error;
  const gpu::Driver& driver = fake_driver();
  auto copier = gpu::Copier::open(driver, 0, &error);
  const int before = live();
  const auto refuses = [&](const char* symbol, int nth, const char* word) {
    fail_at(symbol, nth);
    CHECK(gpu::Kernels::load(driver, copier->context(), "any", &error) == nullptr);
    fail_at(nullptr, 0);
    CHECK(error.find("CUDA_ERROR_ILLEGAL_ADDRESS") != std::string::npos && error.find(word) != std::string::npos);
    CHECK_EQUAL(live(), before);
  };
  refuses("cuCtxPushCurrent_v2", 1, "cuCtxPushCurrent");
  refuses("cuModuleLoadData", 1, "compute capability");
  for (int nth = 1; nth <= 24; ++nth) refuses("cuModuleGetFunction", nth, "(weft_");
  auto kernels = gpu::Kernels::load(driver, copier->context(), "any", &error);
  CHECK(kernels != nullptr);
  gpu::Stream stream = nullptr;
  {
    const gpu::Current current(driver, copier->context());
    CHECK_EQUAL(driver.stream_create(&stream, gpu::kNonBlocking), gpu::kSuccess);
  }
  float numbers[4] = {1, 2, 3, 4};
  gpu::Piece piece{at(numbers), sizeof(numbers), 0};
  for (const char* symbol : {"cuCtxPushCurrent_v2", "cuLaunchKernel"}) {
    const gpu::PieceTable table{at(&piece), 1};
    const gpu::Reduction reduction{at(numbers), at(numbers), at(numbers), 0, 4};
    for (int which = 0; which < 3; ++which) {
      fail_at(symbol, 1);
      const gpu::Result result = which == 0 ? kernels->gather(table, 0, 16, at(numbers), stream)
                                 : which == 1
                                     ? kernels->scatter(at(numbers), table, 0, 16, stream)
                                     : kernels->reduce(gpu::ElementType::f32, gpu::Operation::sum, reduction, stream);
      fail_at(nullptr, 0);
      CHECK_EQUAL(result, 700);
    }
  }
  CHECK_EQUAL(fake<int()>("fake_cuda_waiting")(), 0);
  {
    const gpu::Current current(driver, copier->context());
    static_cast<void>(driver.stream_destroy(stream));
  }
  // If unloading the module fails, nothing can be done and nothing is reported.
  fail_at("cuModuleUnload", 1);
  kernels.reset();
  fail_at(nullptr, 0);
  CHECK_EQUAL(live(), before + 1);
}

// Tests builds with and without kernels.
TEST(kernels__open_says_what_it_was_built_without) {
  std::string error;
  auto copier = gpu::Copier::open(fake_driver(), 0, &error);
  CHECK_EQUAL(error, "");
  const auto kernels = gpu::Kernels::open(fake_driver(), copier->context(), &error);
  if (gpu::kernel_image() == nullptr) {
    CHECK(kernels == nullptr);
    CHECK(error.find("built without nvcc: ") == 0 && error.find("build again") != std::string::npos);
    return;
  }
  CHECK_EQUAL(error, "");
  CHECK(kernels != nullptr && gpu::why_no_kernels() == nullptr);
  static constexpr unsigned char kFatbin[] = {0x50, 0xed, 0x55, 0xba};  // the first bytes of images that nvcc makes
  CHECK(std::memcmp(gpu::kernel_image(), kFatbin, sizeof(kFatbin)) == 0);
  CHECK_EQUAL(at(gpu::kernel_image()) % 64, 0u);
}
