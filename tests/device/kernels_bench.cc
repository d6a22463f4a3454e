// Measures the speed of the kernels against copies of as many bytes on the device, interleaved.
// kernels_check.cc checks the results.
#include <algorithm>
#include <cstring>

#include "tests/device/gpu_rig.h"
#include "tests/native/draw.h"

namespace weft::test {
namespace {

// The median time of each launch. Launches run in turn; the first round is a warm-up.
template <class... Launch>
std::vector<double> medians(const Rig& rig, int repeats, Launch... launch) {
  std::vector<std::vector<double>> times(sizeof...(launch));
  for (int turn = 0; turn <= repeats; ++turn) {
    std::size_t i = 0;
    const auto take = [&](double seconds) {
      if (turn != 0) times[i].push_back(seconds);
      ++i;
    };
    (take(rig.seconds(launch)), ...);
  }
  std::vector<double> all;
  for (auto& one : times) {
    std::sort(one.begin(), one.end());
    all.push_back(one[one.size() / 2]);
  }
  return all;
}

// `floor`: the time of a copy that reads and writes as many bytes; ratio 1 means as fast as the copy.
void add_row(std::string* rows, const std::string& what, std::uint64_t bytes, double seconds, double floor) {
  char text[256];
  std::snprintf(text, sizeof(text),
                "%s\n  {\"what\": \"%s\", \"bytes\": %llu, \"seconds\": %.9f, \"GB_per_s\": %.3f, \"floor_seconds\": "
                "%.9f, \"ratio\": %.4f}",
                rows->empty() ? "" : ",", what.c_str(), static_cast<unsigned long long>(bytes), seconds,
                static_cast<double>(bytes) / seconds / 1e9, floor, floor / seconds);
  *rows += text;
}

// A message of pieces of equal length in random order, at addresses that are multiples of 16, or at random ones.
struct Pieces {
  std::vector<gpu::Piece> table;
  std::uint64_t bytes = 0;

  Pieces(const Region& memory, std::uint64_t piece_bytes, std::uint64_t count, bool anywhere) {
    Draw draw(piece_bytes + (anywhere ? 1 : 0));
    const std::uint64_t slot = (piece_bytes + 31) / 16 * 16;
    for (std::uint64_t i = 0; i < count; ++i)
      table.push_back({memory.address() + i * slot + (anywhere ? draw.below(16) : 0), piece_bytes, 0});
    for (std::uint64_t i = count; i > 1; --i) std::swap(table[i - 1], table[draw.below(i)]);
    bytes = gpu::lay_out(table.data(), count);
  }
};

void measure_pieces(const Rig& rig, std::uint64_t bytes, int repeats, const Region& from, const Region& to,
                    std::string* rows) {
  for (const std::uint64_t piece_bytes : {65'536, 8'900, 1'400}) {
    for (const bool anywhere : {false, true}) {
      const std::uint64_t count = std::max<std::uint64_t>(bytes / (piece_bytes + 32), 1);
      const Pieces pieces(from, piece_bytes, count, anywhere);
      Region table(rig, Kind::device, count * sizeof(gpu::Piece));
      std::memcpy(table.mirror().data(), pieces.table.data(), table.bytes());
      table.upload();
      const gpu::PieceTable listed{table.address(), count};
      const auto times = medians(
          rig, repeats,
          [&] {
            rig.require("cuMemcpyDtoDAsync",
                        rig.driver.copy_on_device(to.address(), from.address(), pieces.bytes, rig.stream));
          },
          [&] {
            rig.require("cuLaunchKernel", rig.kernels->gather(listed, 0, pieces.bytes, to.address(), rig.stream));
          },
          [&] {
            rig.require("cuLaunchKernel", rig.kernels->scatter(to.address(), listed, 0, pieces.bytes, rig.stream));
          });
      const std::string tail = " of " + std::to_string(piece_bytes) + " bytes" + (anywhere ? ", anywhere" : ", at 16");
      add_row(rows, "gather" + tail, pieces.bytes, times[1], times[0]);
      add_row(rows, "scatter" + tail, pieces.bytes, times[2], times[0]);
    }
  }
}

// Measures copies through pinned memory, one piece of a ring at a time, against the copy engine.
void measure_ring(const Rig& rig, std::uint64_t bytes, int repeats, const Region& from, std::string* rows) {
  constexpr std::uint64_t kPieceBytes = 8'900;
  for (const bool anywhere : {false, true}) {
    const std::uint64_t count =
        std::max<std::uint64_t>(std::min<std::uint64_t>(bytes, 4 << 20) / (kPieceBytes + 32), 1);
    const Pieces pieces(from, kPieceBytes, count, anywhere);
    Region table(rig, Kind::device, count * sizeof(gpu::Piece)), ring(rig, Kind::pinned, pieces.bytes);
    std::memcpy(table.mirror().data(), pieces.table.data(), table.bytes());
    table.upload();
    ring.upload();
    const gpu::PieceTable listed{table.address(), count};
    void* const host = reinterpret_cast<void*>(ring.address());
    const auto times = medians(
        rig, repeats,
        [&] {
          rig.require("cuMemcpyDtoHAsync", rig.driver.copy_to_host(host, from.address(), pieces.bytes, rig.stream));
        },
        [&] {
          rig.require("cuLaunchKernel", rig.kernels->gather(listed, 0, pieces.bytes, ring.address(), rig.stream));
        },
        [&] {
          rig.require("cuMemcpyHtoDAsync", rig.driver.copy_to_device(from.address(), host, pieces.bytes, rig.stream));
        },
        [&] {
          rig.require("cuLaunchKernel", rig.kernels->scatter(ring.address(), listed, 0, pieces.bytes, rig.stream));
        });
    const std::string tail = std::string(" pinned memory, of 8900 bytes") + (anywhere ? ", anywhere" : ", at 16");
    add_row(rows, "gather to" + tail, pieces.bytes, times[1], times[0]);
    add_row(rows, "scatter from" + tail, pieces.bytes, times[3], times[2]);
  }
}

void measure_reduce(const Rig& rig, std::uint64_t bytes, int repeats, const Region& from, const Region& to,
                    std::string* rows) {
  const std::uint64_t each = bytes / 2 / 256 * 256;
  if (each < 512) return;
  const std::uint64_t used = each - 256;
  const auto row = [&](gpu::ElementType type, const char* name, std::uint64_t element_bytes, bool twice, bool skewed) {
    gpu::Reduction reduction{from.address(), from.address() + each + (skewed ? element_bytes : 0), to.address(),
                             twice ? to.address() + each : 0, used / element_bytes};
    const auto times = medians(
        rig, repeats,
        [&] {
          rig.require("cuMemcpyDtoDAsync", rig.driver.copy_on_device(to.address(), from.address(), used, rig.stream));
        },
        [&] { rig.require("cuLaunchKernel", rig.kernels->reduce(type, gpu::Operation::sum, reduction, rig.stream)); });
    // The floor: a copy reads and writes each byte once; this kernel reads two arrays and writes one or two.
    add_row(rows, std::string("reduce ") + name + (twice ? " and copy" : "") + (skewed ? ", b an element on" : ""),
            used, times[1], times[0] * (twice ? 2.0 : 1.5));
  };
  for (const bool twice : {false, true}) {
    for (const bool skewed : {false, true}) {
      row(gpu::ElementType::f32, "f32", 4, twice, skewed);
      row(gpu::ElementType::f16, "f16", 2, twice, skewed);
      row(gpu::ElementType::bf16, "bf16", 2, twice, skewed);
    }
  }
  row(gpu::ElementType::u8, "u8", 1, false, false);
}

}  // namespace

std::string measure(const Rig& rig, std::uint64_t bytes, int repeats) {
  bytes = std::max<std::uint64_t>(bytes, 100'000);
  // Initialised by copies from a small region, because initcheck reports reads of uninitialised memory.
  Region from(rig, Kind::device, bytes + 64, false), to(rig, Kind::device, bytes + 64, false);
  Region zeros(rig, Kind::device, std::min<std::uint64_t>(bytes, 1 << 20));
  zeros.upload();
  for (const Region* region : {&from, &to}) {
    for (std::uint64_t at = 0; at < region->bytes(); at += zeros.bytes()) {
      const std::uint64_t part = std::min<std::uint64_t>(zeros.bytes(), region->bytes() - at);
      rig.require("cuMemcpyDtoDAsync",
                  rig.driver.copy_on_device(region->address() + at, zeros.address(), part, rig.stream));
    }
  }
  rig.synchronize();
  std::string rows;
  measure_pieces(rig, bytes, repeats, from, to, &rows);
  measure_ring(rig, bytes, repeats, from, &rows);
  measure_reduce(rig, bytes, repeats, from, to, &rows);
  return "[" + rows + "]";
}

}  // namespace weft::test
