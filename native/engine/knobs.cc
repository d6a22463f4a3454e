// Reads the settings (knobs) from WEFT_* variables, checks their ranges, and suggests a name for a misspelt variable.
#include "native/engine/knobs.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <stdexcept>
#include <string_view>
#include <utility>

#include "native/datapath/faults.h"
#include "native/engine/setup/engine_cpus.h"

extern "C" char** environ;  // NOLINT: declared by no header under strict ISO

namespace weft::engine {
namespace {

constexpr std::string_view kPrefix = "WEFT_";

std::string variable_of(std::string_view field) {
  std::string variable(kPrefix);
  for (const char c : field) variable += (c >= 'a' && c <= 'z') ? static_cast<char>(c - 'a' + 'A') : c;
  return variable;
}

std::string text_of(const std::string& value) { return value; }
std::string text_of(std::int64_t value) { return std::to_string(value); }
std::string text_of(double value) {
  char buffer[64];
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, value).ptr;
  return std::string(buffer, end);
}

// Returns the word at `index` of a list separated by '|'; empty if the list has fewer words.
std::string_view word_at(std::string_view words, std::size_t index) {
  for (; index > 0; --index) {
    const std::size_t bar = words.find('|');
    if (bar == std::string_view::npos) return {};
    words.remove_prefix(bar + 1);
  }
  return words.substr(0, words.find('|'));
}

std::string integer_range(std::int64_t low, std::int64_t high, bool zero) {
  const std::string range = std::to_string(low) + ".." + std::to_string(high);
  return zero && low > 0 ? "0 or " + range : range;
}

// The name of a setting and its allowed values, for error messages.
struct Row {
  std::string_view field;
  std::string range;
};

Status refuse(const Row& row, const std::string& text, const char* why, std::string* error) {
  *error = variable_of(row.field) + "=" + text + ": " + why;
  if (!row.range.empty()) *error += "; allowed: " + row.range;
  return Status::invalid_argument;
}

Status parse_integer(const Row& row, const std::string& text, std::int64_t low, std::int64_t high, bool zero,
                     std::int64_t* out, std::string* error) {
  std::int64_t value = 0;
  const char* end = text.data() + text.size();
  const auto [stop, code] = std::from_chars(text.data(), end, value);
  if (code == std::errc::result_out_of_range) return refuse(row, text, "out of range", error);
  if (code != std::errc() || stop != end) return refuse(row, text, "not a whole number", error);
  if ((value < low || value > high) && !(zero && value == 0)) return refuse(row, text, "out of range", error);
  *out = value;
  return Status::ok;
}

Status parse_real(const Row& row, const std::string& text, double low, double high, double* out, std::string* error) {
  double value = 0.0;
  const char* end = text.data() + text.size();
  const auto [stop, code] = std::from_chars(text.data(), end, value);
  if (code != std::errc() || stop != end || !std::isfinite(value)) return refuse(row, text, "not a number", error);
  if (value < low || value > high) return refuse(row, text, "out of range", error);
  *out = value;
  return Status::ok;
}

template <typename Enum>
Status parse_choice(const Row& row, const std::string& text, std::string_view words, Enum* out, std::string* error) {
  for (std::size_t i = 0; !word_at(words, i).empty(); ++i) {
    if (word_at(words, i) != text) continue;
    *out = static_cast<Enum>(i);
    return Status::ok;
  }
  return refuse(row, text, "unknown value", error);
}

std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t above = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, diagonal + (a[i - 1] == b[j - 1] ? 0U : 1U)});
      diagonal = above;
    }
  }
  return row[b.size()];
}

bool is_prefixed(const std::string& name) { return name.compare(0, kPrefix.size(), kPrefix) == 0; }

// Names settings as the caller does: with the prefix, or without it.
Status refuse_unknown(const std::string& name, std::string* error) {
  const std::string variable = is_prefixed(name) ? name : variable_of(name);
  const KnobInfo* nearest = nullptr;
  std::size_t nearest_distance = 0;
  for (const KnobInfo& info : knob_table()) {
    const bool begins = variable.size() > kPrefix.size() && info.variable.rfind(variable + "_", 0) == 0;
    const std::size_t distance = begins ? 0 : edit_distance(variable, info.variable);
    if (nearest == nullptr || distance < nearest_distance) {
      nearest = &info;
      nearest_distance = distance;
    }
  }
  *error = name + " is not a setting of weft";
  // Suggests a name that begins with the given one, or one of which at most a third of the characters differ.
  if (nearest != nullptr && nearest_distance * 3 <= variable.size())
    *error += "; did you mean " + (is_prefixed(name) ? nearest->variable : nearest->field) + "?";
  *error += " (weft knobs lists the settings)";
  return Status::invalid_argument;
}

}  // namespace

const std::vector<KnobInfo>& knob_table() {
  static const std::vector<KnobInfo> table = [] {
    std::vector<KnobInfo> rows;
#define WEFT_KNOB_TEXT(field, value, wild, sentence) \
  rows.push_back({#field, variable_of(#field), "text", "", value, "", wild, sentence});
#define WEFT_KNOB_INTEGER(field, unit, value, low, high, zero, wild, sentence)                             \
  rows.push_back({#field, variable_of(#field), "integer", unit, text_of(static_cast<std::int64_t>(value)), \
                  integer_range(low, high, zero), wild, sentence});
#define WEFT_KNOB_REAL(field, unit, value, low, high, wild, sentence)                             \
  rows.push_back({#field, variable_of(#field), "real", unit, text_of(static_cast<double>(value)), \
                  text_of(static_cast<double>(low)) + ".." + text_of(static_cast<double>(high)), wild, sentence});
#define WEFT_KNOB_CHOICE(field, type, value, words, wild, sentence) \
  rows.push_back({#field, variable_of(#field), "choice", "",        \
                  std::string(word_at(words, static_cast<std::size_t>(type::value))), words, wild, sentence});
    WEFT_KNOB_TABLE(WEFT_KNOB_TEXT, WEFT_KNOB_INTEGER, WEFT_KNOB_REAL, WEFT_KNOB_CHOICE)
#undef WEFT_KNOB_TEXT
#undef WEFT_KNOB_INTEGER
#undef WEFT_KNOB_REAL
#undef WEFT_KNOB_CHOICE
    return rows;
  }();
  return table;
}

std::string knob_value(const Knobs& knobs, const std::string& name) {
#define WEFT_KNOB_TEXT(field, value, wild, sentence) \
  if (name == #field || name == variable_of(#field)) return text_of(knobs.field);
#define WEFT_KNOB_INTEGER(field, unit, value, low, high, zero, wild, sentence) \
  WEFT_KNOB_TEXT(field, value, wild, sentence)
#define WEFT_KNOB_REAL(field, unit, value, low, high, wild, sentence) WEFT_KNOB_TEXT(field, value, wild, sentence)
#define WEFT_KNOB_CHOICE(field, type, value, words, wild, sentence) \
  if (name == #field || name == variable_of(#field))                \
    return std::string(word_at(words, static_cast<std::size_t>(knobs.field)));
  WEFT_KNOB_TABLE(WEFT_KNOB_TEXT, WEFT_KNOB_INTEGER, WEFT_KNOB_REAL, WEFT_KNOB_CHOICE)
#undef WEFT_KNOB_TEXT
#undef WEFT_KNOB_INTEGER
#undef WEFT_KNOB_REAL
#undef WEFT_KNOB_CHOICE
  return {};
}

Status set_knob(Knobs* knobs, const std::string& name, const std::string& text, std::string* error) {
#define WEFT_KNOB_TEXT(field, value, wild, sentence)   \
  if (name == #field || name == variable_of(#field)) { \
    knobs->field = text;                               \
    return Status::ok;                                 \
  }
#define WEFT_KNOB_INTEGER(field, unit, value, low, high, zero, wild, sentence) \
  if (name == #field || name == variable_of(#field))                           \
    return parse_integer({#field, integer_range(low, high, zero)}, text, low, high, zero, &knobs->field, error);
#define WEFT_KNOB_REAL(field, unit, value, low, high, wild, sentence) \
  if (name == #field || name == variable_of(#field))                  \
    return parse_real({#field, text_of(low) + ".." + text_of(high)}, text, low, high, &knobs->field, error);
#define WEFT_KNOB_CHOICE(field, type, value, words, wild, sentence) \
  if (name == #field || name == variable_of(#field))                \
    return parse_choice({#field, words}, text, words, &knobs->field, error);
  WEFT_KNOB_TABLE(WEFT_KNOB_TEXT, WEFT_KNOB_INTEGER, WEFT_KNOB_REAL, WEFT_KNOB_CHOICE)
#undef WEFT_KNOB_TEXT
#undef WEFT_KNOB_INTEGER
#undef WEFT_KNOB_REAL
#undef WEFT_KNOB_CHOICE
  return refuse_unknown(name, error);
}

std::string KnobSettings::text(const char* knob) const {
#define WEFT_KNOB_TEXT(field, value, wild, sentence) \
  if (std::string_view(knob) == #field) return knobs_->field;
#define WEFT_KNOB_OTHER(...)
#define WEFT_KNOB_CHOICE(field, type, value, words, wild, sentence) \
  if (std::string_view(knob) == #field) return std::string(word_at(words, static_cast<std::size_t>(knobs_->field)));
  WEFT_KNOB_TABLE(WEFT_KNOB_TEXT, WEFT_KNOB_OTHER, WEFT_KNOB_OTHER, WEFT_KNOB_CHOICE)
#undef WEFT_KNOB_TEXT
#undef WEFT_KNOB_CHOICE
  throw std::out_of_range(std::string("no text or choice knob '") + knob + "'");
}

std::int64_t KnobSettings::number(const char* knob) const {
#define WEFT_KNOB_INTEGER(field, unit, value, low, high, zero, wild, sentence) \
  if (std::string_view(knob) == #field) return knobs_->field;
  WEFT_KNOB_TABLE(WEFT_KNOB_OTHER, WEFT_KNOB_INTEGER, WEFT_KNOB_OTHER, WEFT_KNOB_OTHER)
#undef WEFT_KNOB_INTEGER
  throw std::out_of_range(std::string("no integer knob '") + knob + "'");
}

double KnobSettings::real(const char* knob) const {
#define WEFT_KNOB_REAL(field, unit, value, low, high, wild, sentence) \
  if (std::string_view(knob) == #field) return knobs_->field;
  WEFT_KNOB_TABLE(WEFT_KNOB_OTHER, WEFT_KNOB_OTHER, WEFT_KNOB_REAL, WEFT_KNOB_OTHER)
#undef WEFT_KNOB_REAL
#undef WEFT_KNOB_OTHER
  throw std::out_of_range(std::string("no real knob '") + knob + "'");
}

Status check_knobs(const Knobs& knobs, std::string* error) {
  std::bitset<256> paths;
  if (!datapath::read_paths(knobs.fault_paths, &paths, error)) return Status::invalid_argument;
  Cpus cpus;
  if (!parse_wish(knobs.engine_cpus, &cpus, error)) return Status::invalid_argument;
  if (knobs.rto_ns_min > knobs.rto_ns_max) {
    *error = "WEFT_RTO_NS_MIN=" + text_of(knobs.rto_ns_min) + " is above WEFT_RTO_NS_MAX=" + text_of(knobs.rto_ns_max);
    return Status::invalid_argument;
  }
  if (knobs.telemetry != "auto" && knobs.telemetry != "off" && knobs.telemetry.substr(0, 1) != "/") {
    *error = "WEFT_TELEMETRY=" + knobs.telemetry + ": must be auto, off, or the absolute path of a directory";
    return Status::invalid_argument;
  }
  return Status::ok;
}

Status load_knobs(Knobs* knobs, std::string* error) {
  Knobs loaded = *knobs;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view pair(*entry);
    if (pair.substr(0, kPrefix.size()) != kPrefix) continue;
    const std::size_t equals = pair.find('=');
    if (equals == std::string_view::npos) continue;
    const std::string name(pair.substr(0, equals));
    const std::string text(pair.substr(equals + 1));
    if (const Status status = set_knob(&loaded, name, text, error); status != Status::ok) return status;
  }
  if (const Status status = check_knobs(loaded, error); status != Status::ok) return status;
  *knobs = std::move(loaded);
  return Status::ok;
}

}  // namespace weft::engine
