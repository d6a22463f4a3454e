// Reads and writes the values of settings as people write them: 20ms, 64MiB, 0.05, auto.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace weft::engine {

// The values that a number may have. `zero`: 0 is allowed even if it is below `low`, and means automatic, or never.
struct IntegerRange {
  std::string_view unit;
  std::int64_t low = 0, high = 0;
  bool zero = false;
};

// Ports from `first` to `last`. {0, 0}: any port. is_range: two numbers were given, and not one alone.
struct PortRange {
  std::int64_t first = 0, last = 0;
  bool is_range = false;
  std::int64_t count() const noexcept { return last - first + 1; }
};

// Each function returns why it refuses the text, or an empty text if it has set `out`. Numbers of nanoseconds take the
// units ns, us, ms, s, min and h, and numbers of bytes B, kB, MB, GB (powers of 1,000) and KiB, MiB, GiB (K, M, G);
// without a unit, the number counts nanoseconds or bytes.
std::string_view read_value(const std::string& text, const IntegerRange& range, std::int64_t* out) noexcept;
std::string_view read_value(const std::string& text, double low, double high, double* out) noexcept;
// "0", "7000" or "7000-7063"; ports below `low` are out of range.
std::string_view read_value(const std::string& text, std::int64_t low, PortRange* out) noexcept;
// `words` are separated by '|'; `out`: index of the word that equals the text, in upper or lower case.
std::string_view read_value(const std::string& text, std::string_view words, std::size_t* out) noexcept;

// Returns the word at `index`; empty if there are fewer.
std::string_view word_at(std::string_view words, std::size_t index) noexcept;

// Returns a value as text, with the largest unit that leaves the value whole.
std::string written(std::int64_t value, std::string_view unit);
std::string written(double value);
std::string written(const IntegerRange& range);

// What a refusal of `text` should add about units, such as "; 30 without a unit is 30 ns: give ns, us, ms, s, min or
// h". Empty if units are not what the text lacks.
std::string unit_hint(const std::string& text, const IntegerRange& range, std::string_view why);

}  // namespace weft::engine
