// Compares the kernels on a GPU with the same code on the host, byte by byte, for random tables and
// arrays. Runs alone or under compute-sanitizer; exits with 77 and the reason if there is no GPU.
//   usage: weft_kernels_check [--rounds N] [--seed N] [--bytes N] [--repeats N] [--driver LIBRARY]
// --bytes 0 skips the measurement. JSON goes to stdout, messages to stderr.
#include <algorithm>
#include <cstring>
#include <numeric>

#include "tests/device/gpu_rig.h"
#include "tests/native/draw.h"
#include "tests/native/host_driver.h"

namespace weft::test {
namespace {

constexpr std::uint8_t kUntouched = 0xEE;

bool say(bool right, const char* what, std::uint64_t seed) {
  if (!right) std::fprintf(stderr, "WRONG: %s, seed %llu\n", what, static_cast<unsigned long long>(seed));
  return right;
}

// A message in pieces: each piece at the end of its own region, or all in one region with guards between them.
struct Message {
  std::vector<Region> regions;
  struct Place {
    std::size_t region, at;
  };
  std::vector<Place> places;
  std::vector<gpu::Piece> table;
  std::vector<std::uint8_t> bytes;

  Message(const Rig& rig, Draw* draw, std::size_t count) {
    const bool apart = count <= 64;
    std::size_t used = 0;
    for (std::size_t i = 0; i < count; ++i) {
      const std::size_t size = draw_piece_bytes(draw);
      if (apart) {
        places.push_back({regions.size(), draw->below(16)});
        regions.emplace_back(rig, Kind::device, places.back().at + size + (size == 0 ? 1 : 0));
      } else {
        places.push_back({0, used + draw->below(40)});
        used = places.back().at + size;
      }
      table.push_back({0, size, 0});
    }
    if (!apart) regions.emplace_back(rig, Kind::device, used);
    for (std::size_t i = 0; i < count; ++i) table[i].address = regions[places[i].region].address() + places[i].at;
    bytes.resize(gpu::lay_out(table.data(), count));
    draw->fill(bytes.data(), bytes.size());
  }
  // Fills the host's copies of the regions with guard bytes, then writes bytes [begin, end) of the message.
  void mirror(std::uint64_t begin, std::uint64_t end) {
    for (Region& region : regions) std::fill(region.mirror().begin(), region.mirror().end(), kUntouched);
    for (std::size_t i = 0; i < table.size(); ++i) {
      const std::uint64_t from = std::max(begin, table[i].offset_bytes);
      const std::uint64_t to = std::min(end, table[i].offset_bytes + table[i].bytes);
      if (from >= to) continue;
      auto* const there = regions[places[i].region].mirror().data() + places[i].at + (from - table[i].offset_bytes);
      std::memcpy(there, bytes.data() + from, to - from);
    }
  }
  void upload() {
    for (Region& region : regions) region.upload();
  }
};

// Needed because NaN results of GPU and host may have different bits.
bool is_nan(gpu::ElementType type, const std::uint8_t* element) {
  std::uint64_t bits = 0;
  const auto above = [&](std::size_t bytes, std::uint64_t infinity) {
    std::memcpy(&bits, element, bytes);
    return (bits & ~(std::uint64_t{1} << (8 * bytes - 1))) > infinity;
  };
  switch (type) {
    case gpu::ElementType::f32:
      return above(4, 0x7f800000);
    case gpu::ElementType::f64:
      return above(8, 0x7ff0000000000000);
    case gpu::ElementType::f16:
      return above(2, 0x7c00);
    case gpu::ElementType::bf16:
      return above(2, 0x7f80);
    default:
      return false;
  }
}

std::size_t bytes_of(gpu::ElementType type) {
#define WEFT_BYTES(name, bytes) bytes,
  static constexpr std::size_t kBytes[] = {WEFT_REDUCE_TYPES(WEFT_BYTES)};
#undef WEFT_BYTES
  return kBytes[static_cast<std::size_t>(type)];
}

// Arrays of bytes, each in its own region: it begins at an offset and ends with the region.
struct Arrays {
  std::vector<Region> regions;
  std::vector<std::size_t> places;
  gpu::Address device(std::size_t i) const { return regions[i].address() + places[i]; }
  std::uint8_t* host(std::size_t i) { return regions[i].mirror().data() + places[i]; }

  void add(const Rig& rig, std::size_t bytes, std::size_t place) {
    regions.emplace_back(rig, Kind::device, place + bytes);
    places.push_back(place);
  }
};

// Reduces on the GPU and, with equal alignment, on the host. `which`: the indices of the arrays that
// are used as `a`, `b`, `out` and `also`; -1: not used.
bool reduces_alike(const Rig& rig, gpu::ElementType type, gpu::Operation operation, std::size_t elements,
                   Arrays* arrays, const int (&which)[4]) {
  static const std::unique_ptr<gpu::Kernels> host = [] {
    std::string error;
    return gpu::Kernels::load(host_driver(), nullptr, "any", &error);
  }();
  const std::size_t bytes = elements * bytes_of(type);
  gpu::Address on_device[4] = {}, on_host[4] = {};
  std::vector<std::vector<std::uint8_t>> copies;
  for (std::size_t i = 0; i < arrays->regions.size(); ++i) {
    arrays->regions[i].upload();
    copies.emplace_back(arrays->regions[i].bytes() + 16);
  }
  // The host's copies begin at addresses that are multiples of 16, as the GPU's regions do: alignments are equal.
  const auto begins = [&](std::size_t i) {
    return copies[i].data() + (0 - reinterpret_cast<std::uintptr_t>(copies[i].data())) % 16;
  };
  for (std::size_t i = 0; i < copies.size(); ++i)
    std::copy(arrays->regions[i].mirror().begin(), arrays->regions[i].mirror().end(), begins(i));
  for (int i = 0; i < 4; ++i) {
    if (which[i] < 0) continue;
    const auto array = static_cast<std::size_t>(which[i]);
    on_device[i] = arrays->device(array);
    on_host[i] = reinterpret_cast<gpu::Address>(begins(array) + arrays->places[array]);
  }
  rig.require("cuLaunchKernel",
              rig.kernels->reduce(type, operation, {on_device[0], on_device[1], on_device[2], on_device[3], elements},
                                  rig.stream));
  rig.require("a launch on the host",
              host->reduce(type, operation, {on_host[0], on_host[1], on_host[2], on_host[3], elements}, nullptr));
  bool right = true;
  for (std::size_t i = 0; i < copies.size(); ++i) {
    const std::vector<std::uint8_t> got = arrays->regions[i].download();
    const std::uint8_t *wanted = begins(i), *end = wanted + arrays->places[i];
    right &= std::equal(wanted, end, got.data());
    for (std::size_t k = arrays->places[i]; k < arrays->places[i] + bytes; k += bytes_of(type)) {
      right &= std::memcmp(wanted + k, got.data() + k, bytes_of(type)) == 0 ||
               (is_nan(type, wanted + k) && is_nan(type, got.data() + k));
    }
  }
  return right;
}

}  // namespace

bool check_pieces(const Rig& rig, std::uint64_t seed) {
  Draw draw(seed);
  const std::size_t count = seed % 4 == 0 ? 1'000 + draw.below(4'000) : 1 + draw.below(seed % 2 == 0 ? 5 : 64);
  Message message(rig, &draw, count);
  Region table(rig, draw.one_in(3) ? Kind::pinned : Kind::device, count * sizeof(gpu::Piece));
  std::memcpy(table.mirror().data(), message.table.data(), table.bytes());
  table.upload();
  const gpu::PieceTable pieces{table.address(), count};
  const std::uint64_t total = message.bytes.size();
  std::uint64_t cuts[4] = {draw.below(total + 1), draw.below(total + 1), draw.below(total + 1), draw.below(total + 1)};
  if (draw.one_in(2)) cuts[0] = 0, cuts[1] = total;
  std::sort(cuts, cuts + 4);
  const std::uint64_t begin = cuts[0], end = cuts[3], at = draw.below(64), after = draw.one_in(2) ? 0 : draw.below(64);
  Region lying(rig, draw.one_in(2) ? Kind::pinned : Kind::device, at + (end - begin) + after + (begin == end ? 1 : 0));
  std::fill(lying.mirror().begin(), lying.mirror().end(), kUntouched);
  lying.upload();
  message.mirror(0, total);
  message.upload();
  for (int i = 0; i < 3; ++i) {
    rig.require("cuLaunchKernel", rig.kernels->gather(pieces, cuts[i], cuts[i + 1],
                                                      lying.address() + at + (cuts[i] - begin), rig.stream));
  }
  std::memcpy(lying.mirror().data() + at, message.bytes.data() + begin, end - begin);
  if (!say(lying.download() == lying.mirror(), "gather", seed)) return false;
  message.mirror(0, 0);
  message.upload();
  for (int i = 0; i < 3; ++i) {
    rig.require("cuLaunchKernel", rig.kernels->scatter(lying.address() + at + (cuts[i] - begin), pieces, cuts[i],
                                                       cuts[i + 1], rig.stream));
  }
  message.mirror(begin, end);
  return say(std::all_of(message.regions.begin(), message.regions.end(),
                         [](Region& region) { return region.download() == region.mirror(); }),
             "scatter", seed);
}

// Launches the persistent copy kernel after a stop request, so that it does the queued jobs and ends: compute-sanitizer
// waits for each launch.
bool check_persistent(const Rig& rig, std::uint64_t seed) {
  Draw draw(seed);
  Message message(rig, &draw, 1 + draw.below(200));
  Region table(rig, Kind::pinned, message.table.size() * sizeof(gpu::Piece));
  std::memcpy(table.mirror().data(), message.table.data(), table.bytes());
  table.upload();
  const std::uint64_t total = message.bytes.size(), jobs = 1 + draw.below(gpu::kPersistentJobs / 2);
  Region lying(rig, Kind::pinned, total + 1), memory(rig, Kind::pinned, sizeof(gpu::PersistentBoard));
  memory.upload();
  auto* const board = reinterpret_cast<gpu::PersistentBoard*>(memory.address());
  // Jobs are numbered from 1, or from a number so high that it wraps around.
  std::uint32_t number = static_cast<std::uint32_t>(draw.below(2) == 0 ? 1 : 0 - draw.below(jobs) - 1);
  const auto run = [&](bool gathers, std::uint32_t generation) {
    const std::uint32_t first = number;
    for (std::uint64_t i = 0; i < jobs; ++i) {
      gpu::PersistentJob& job = board->jobs[number % gpu::kPersistentJobs];
      const std::uint64_t begin = total * i / jobs, end = total * (i + 1) / jobs, chunk_bytes = 128 << draw.below(8);
      const std::uint64_t at = lying.address() + begin;
      job.pieces = {table.address(), message.table.size(), begin, end, at, chunk_bytes};
      job.chunks = (end - begin + at % gpu::kLineBytes + chunk_bytes - 1) / chunk_bytes;
      job.gathers = gathers ? 1 : 0;
      job.generation = generation;
      job.number = number;
      number += number + 1 == 0 ? 2 : 1;
    }
    board->leave = generation;
    rig.require("cuLaunchKernel", rig.kernels->start_persistent({memory.address(), first, generation}, rig.stream));
    rig.synchronize();
    const std::uint32_t last = number - (number == 1 ? 2 : 1);
    return std::all_of(std::begin(board->done), std::end(board->done),
                       [&](std::uint32_t done) { return done == last; });
  };
  message.mirror(0, total);
  message.upload();
  std::fill(lying.mirror().begin(), lying.mirror().end(), kUntouched);
  lying.upload();
  if (!say(run(true, 1), "persistent jobs", seed)) return false;
  std::memcpy(lying.mirror().data(), message.bytes.data(), total);
  if (!say(lying.download() == lying.mirror(), "persistent gather", seed)) return false;
  message.mirror(0, 0);
  message.upload();
  if (!say(run(false, 2), "persistent jobs", seed)) return false;
  message.mirror(0, total);
  return say(std::all_of(message.regions.begin(), message.regions.end(),
                         [](Region& region) { return region.download() == region.mirror(); }),
             "persistent scatter", seed);
}

bool check_reduce(const Rig& rig, std::uint64_t seed) {
  Draw draw(seed);
  for (std::size_t i = 0; i < 21; ++i) {
    const auto type = static_cast<gpu::ElementType>(i / 3);
    const std::size_t bytes = bytes_of(type);
    const std::size_t elements = 1 + draw.below(draw.one_in(4) ? 200'000 / bytes : 300);
    const bool alike = draw.one_in(3);
    const std::size_t one = bytes * draw.below(16 / bytes);
    Arrays arrays;
    for (int k = 0; k < 4; ++k) {
      arrays.add(rig, elements * bytes, alike ? one : bytes * draw.below(16 / bytes));
      draw.fill(arrays.regions.back().mirror().data(), arrays.regions.back().bytes());
    }
    static constexpr int kWhich[][4] = {{0, 1, 2, -1}, {0, 1, 2, 3}, {0, 1, 0, 3}, {0, 1, 1, -1}, {0, 1, 2, 0}};
    const bool right = reduces_alike(rig, type, static_cast<gpu::Operation>(i % 3), elements, &arrays,
                                     kWhich[draw.below(std::size(kWhich))]);
    if (!say(right, ("reduce " + std::to_string(i)).c_str(), seed)) return false;
  }
  return true;
}

bool check_narrow(const Rig& rig, gpu::ElementType type, std::uint64_t distance) {
  constexpr std::size_t kAll = 0x10000;
  Arrays arrays;
  for (int k = 0; k < 3; ++k) arrays.add(rig, 2 * kAll, 0);
  for (std::size_t i = 0; i < kAll; ++i) {
    const auto a = static_cast<std::uint16_t>(i), b = static_cast<std::uint16_t>(i + distance);
    std::memcpy(arrays.host(0) + 2 * i, &a, sizeof(a));
    std::memcpy(arrays.host(1) + 2 * i, &b, sizeof(b));
  }
  bool right = true;
  for (const auto operation : {gpu::Operation::sum, gpu::Operation::min, gpu::Operation::max})
    right &= reduces_alike(rig, type, operation, kAll, &arrays, {0, 1, 2, -1});
  return say(right, type == gpu::ElementType::f16 ? "f16" : "bf16", distance);
}

}  // namespace weft::test

int main(int argc, char** argv) {
  using namespace weft;
  std::uint64_t rounds = 100, seed = 1, bytes = std::uint64_t{1} << 30, repeats = 20;
  std::string library;
  for (int i = 1; i < argc; i += 2) {
    const std::string option = argv[i];
    std::uint64_t* const number = option == "--rounds"    ? &rounds
                                  : option == "--seed"    ? &seed
                                  : option == "--bytes"   ? &bytes
                                  : option == "--repeats" ? &repeats
                                                          : nullptr;
    if (i + 1 == argc || (number == nullptr && option != "--driver")) {
      std::fprintf(stderr, "%s is no option, or lacks its value: see the first lines of kernels_check.cc\n", argv[i]);
      return 2;
    }
    if (number == nullptr) library = argv[i + 1];
    if (number != nullptr) *number = std::strtoull(argv[i + 1], nullptr, 10);
  }
  const test::Rig rig(library);
  std::uint64_t wrong = 0;
  for (std::uint64_t round = 0; round < rounds; ++round) {
    wrong += test::check_pieces(rig, seed + round) ? 0 : 1;
    wrong += test::check_persistent(rig, seed + round) ? 0 : 1;
    wrong += test::check_reduce(rig, seed + round) ? 0 : 1;
    for (const auto type : {gpu::ElementType::f16, gpu::ElementType::bf16})
      wrong += round % 8 != 0 || test::check_narrow(rig, type, 1 + (seed + round) * 1'031) ? 0 : 1;
  }
  const std::string measured =
      bytes == 0 ? "[]" : test::measure(rig, bytes, static_cast<int>(std::max<std::uint64_t>(repeats, 1)));
  std::printf("{\"device\": \"%s\", \"rounds\": %llu, \"seed\": %llu, \"wrong\": %llu, \"measured\": %s}\n",
              rig.name.c_str(), static_cast<unsigned long long>(rounds), static_cast<unsigned long long>(seed),
              static_cast<unsigned long long>(wrong), measured.c_str());
  return wrong == 0 ? 0 : 1;
}
