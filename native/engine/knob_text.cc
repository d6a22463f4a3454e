// Parses and formats values of settings. A suffix, such as ms or MiB, is a factor; the unit of the setting decides
// which suffixes it takes.
#include "native/engine/knob_text.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

namespace weft::engine {
namespace {

constexpr std::string_view kOutOfRange = "out of range", kNoUnit = "not a whole number with a known unit";

struct Unit {
  std::string_view name;
  std::int64_t factor = 0;
};
// Units by ascending factor. written() prints a value in the unit with the largest factor that divides the value.
constexpr std::array kTimes{
    Unit{"ns", 1},
    Unit{"us", 1'000},
    Unit{"ms", 1'000'000},
    Unit{"s", 1'000'000'000},
    Unit{"min", 60'000'000'000},
    Unit{"h", 3'600'000'000'000},
};
constexpr std::array kSizes{Unit{"B", 1}, Unit{"KiB", 1 << 10}, Unit{"MiB", 1 << 20}, Unit{"GiB", 1 << 30}};
constexpr std::array kMoreSizes{
    Unit{"K", 1 << 10}, Unit{"M", 1 << 20},    Unit{"G", 1 << 30},        Unit{"kB", 1'000},
    Unit{"KB", 1'000},  Unit{"MB", 1'000'000}, Unit{"GB", 1'000'000'000},
};

template <std::size_t N>
std::int64_t factor_in(const std::array<Unit, N>& units, std::string_view name) noexcept {
  for (const Unit& unit : units) {
    if (unit.name == name) return unit.factor;
  }
  return 0;
}

// Factor of a unit suffix such as ms; 0: a setting of this unit does not take the suffix.
std::int64_t factor_of(std::string_view unit, std::string_view name) noexcept {
  if (name.empty()) return 1;
  if (unit == "ns") return factor_in(kTimes, name);
  if (unit != "bytes") return 0;
  const std::int64_t factor = factor_in(kSizes, name);
  return factor != 0 ? factor : factor_in(kMoreSizes, name);
}

bool equal_but_for_case(std::string_view a, std::string_view b) noexcept {
  const auto lower = [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; };
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [&](char x, char y) { return lower(x) == lower(y); });
}

template <std::size_t N>
std::string with_unit(const std::array<Unit, N>& units, std::int64_t value) {
  std::size_t at = N - 1;
  while (at > 0 && value % units[at].factor != 0) --at;
  return std::to_string(value / units[at].factor) + std::string(units[at].name);
}

}  // namespace

std::string_view read_value(const std::string& text, const IntegerRange& range, std::int64_t* out) noexcept {
  std::int64_t value = 0;
  const char* end = text.data() + text.size();
  const auto [stop, code] = std::from_chars(text.data(), end, value);
  if (code == std::errc::result_out_of_range) return kOutOfRange;
  if (code != std::errc()) return "not a whole number";
  const std::int64_t factor = factor_of(range.unit, {stop, static_cast<std::size_t>(end - stop)});
  if (factor == 0) return range.unit == "ns" || range.unit == "bytes" ? kNoUnit : "not a whole number";
  if (__builtin_mul_overflow(value, factor, &value)) return kOutOfRange;
  if ((value < range.low || value > range.high) && !(range.zero && value == 0)) return kOutOfRange;
  *out = value;
  return {};
}

std::string_view read_value(const std::string& text, double low, double high, double* out) noexcept {
  double value = 0.0;
  const char* end = text.data() + text.size();
  const auto [stop, code] = std::from_chars(text.data(), end, value);
  if (code != std::errc() || stop != end || !std::isfinite(value)) return "not a number";
  if (value < low || value > high) return kOutOfRange;
  *out = value;
  return {};
}

std::string_view read_value(const std::string& text, std::int64_t low, PortRange* out) noexcept {
  constexpr std::int64_t kPortMax = 65'535;
  const char* end = text.data() + text.size();
  PortRange range;
  const auto [dash, code] = std::from_chars(text.data(), end, range.first);
  if (code != std::errc()) return "neither a port nor a range such as 7000-7063";
  range.last = range.first;
  if (dash != end) {
    if (*dash != '-') return "neither a port nor a range such as 7000-7063";
    const auto [stop, wrong] = std::from_chars(dash + 1, end, range.last);
    if (wrong != std::errc() || stop != end) return "neither a port nor a range such as 7000-7063";
    range.is_range = true;
    if (range.last < range.first) return "the last port is below the first";
  }
  const bool any = range.first == 0 && !range.is_range;
  if (!any && (range.first < low || range.last > kPortMax)) return kOutOfRange;
  *out = range;
  return {};
}

std::string_view read_value(const std::string& text, std::string_view words, std::size_t* out) noexcept {
  for (std::size_t i = 0; !word_at(words, i).empty(); ++i) {
    if (!equal_but_for_case(word_at(words, i), text)) continue;
    *out = i;
    return {};
  }
  return "unknown value";
}

std::string_view word_at(std::string_view words, std::size_t index) noexcept {
  for (; index > 0; --index) {
    const std::size_t bar = words.find('|');
    if (bar == std::string_view::npos) return {};
    words.remove_prefix(bar + 1);
  }
  return words.substr(0, words.find('|'));
}

std::string written(std::int64_t value, std::string_view unit) {
  if (value == 0) return "0";
  if (unit == "ns") return with_unit(kTimes, value);
  if (unit == "bytes") return with_unit(kSizes, value);
  return std::to_string(value);
}

std::string written(double value) {
  char buffer[64];
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, value).ptr;
  return {buffer, end};
}

std::string written(const IntegerRange& range) {
  const std::string both = written(range.low, range.unit) + ".." + written(range.high, range.unit);
  return range.zero && range.low > 0 ? "0 or " + both : both;
}

std::string unit_hint(const std::string& text, const IntegerRange& range, std::string_view why) {
  const bool time = range.unit == "ns", size = range.unit == "bytes";
  if ((!time && !size) || text.empty()) return {};
  const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
  const std::string units = time ? "ns, us, ms, s, min or h" : "B, KiB, MiB or GiB";
  if (why == kOutOfRange && std::all_of(text.begin(), text.end(), is_digit)) {
    return "; " + text + " without a unit is " + text + " " + std::string(range.unit) + ": give " + units;
  }
  return why == kNoUnit && is_digit(text[0]) ? "; units: " + units : std::string();
}

}  // namespace weft::engine
