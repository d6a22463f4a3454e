// Tests the memory windows that the rig emulates: a write changes memory only through an open window.
#include <vector>

#include "tests/native/check.h"
#include "tests/native/rig/rig_windows.h"

using weft::sim::Windows;
using Bytes = std::vector<std::uint8_t>;

namespace {

std::uint64_t address(const Bytes& bytes, std::uint64_t offset) {
  return reinterpret_cast<std::uintptr_t>(bytes.data()) + offset;
}

}  // namespace

TEST(windows__a_write_lands_where_it_is_addressed) {
  Windows windows;
  Bytes memory(10), from{1, 2, 3};
  const std::uint32_t key = windows.open(memory.data(), memory.size());
  CHECK(windows.write(key, address(memory, 7), from.data(), from.size()));
  CHECK(memory == (Bytes{0, 0, 0, 0, 0, 0, 0, 1, 2, 3}));
}

TEST(windows__a_write_beyond_its_window_changes_nothing) {
  Windows windows;
  Bytes memory(10), from(3, 9);
  const std::uint32_t key = windows.open(memory.data() + 2, 6);
  for (const std::uint64_t offset : {0, 1, 6, 7, 8}) {
    CHECK(!windows.write(key, address(memory, offset), from.data(), from.size()));
  }
  CHECK(!windows.write(key, ~std::uint64_t{0}, from.data(), from.size()));
  CHECK(memory == Bytes(10));
}

TEST(windows__a_closed_one_takes_no_write_and_its_key_is_not_used_again) {
  Windows windows;
  Bytes memory(10), from(3, 9);
  const std::uint32_t first = windows.open(memory.data(), memory.size());
  windows.close(first);
  const std::uint32_t second = windows.open(memory.data(), memory.size());
  CHECK(first != second);
  CHECK(first != 0);
  CHECK(!windows.write(first, address(memory, 0), from.data(), from.size()));
  CHECK(windows.write(second, address(memory, 0), from.data(), from.size()));
  windows.close_all();
  CHECK(!windows.write(second, address(memory, 0), from.data(), from.size()));
}
