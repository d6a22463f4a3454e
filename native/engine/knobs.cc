// Reads the settings (knobs) from WEFT_* variables, checks their ranges, and suggests a name for a misspelt variable.
#include "native/engine/knobs.h"

#include <algorithm>
#include <cstddef>
#include <stdexcept>
#include <string_view>
#include <tuple>
#include <utility>

#include "native/datapath/faults.h"
#include "native/engine/knob_text.h"
#include "native/engine/setup/engine_cpus.h"

extern "C" char** environ;  // NOLINT: declared by no header under strict ISO

namespace weft::engine {
namespace {

constexpr std::string_view kPrefix = "WEFT_";

bool is_prefixed(const std::string& name) { return name.compare(0, kPrefix.size(), kPrefix) == 0; }

std::string variable_of(std::string_view field) {
  std::string variable(kPrefix);
  for (const char c : field) variable += (c >= 'a' && c <= 'z') ? static_cast<char>(c - 'a' + 'A') : c;
  return variable;
}

bool is_named(const std::string& name, std::string_view field) { return name == field || name == variable_of(field); }

constexpr std::int64_t kPortMax = 65'535, kPortBaseMin = 1024;

std::string range_text(double low, double high) { return written(low) + ".." + written(high); }

// Turns a result of read_value() into a status and an error message. `why`: why the value was refused; empty: it was
// accepted. `given`: the value, with its key if the setting has keys.
Status judged(std::string_view why, std::string_view field, const std::string& given, const std::string& allowed,
              std::string* error) {
  if (why.empty()) return Status::ok;
  *error = variable_of(field) + "=" + given + ": " + std::string(why);
  if (!allowed.empty()) *error += "; allowed: " + allowed;
  return Status::invalid_argument;
}

// Reads an integer. `key`: the setting's key with "=", if it has keys.
Status read_integer(const std::string& text, const IntegerRange& range, std::string_view field, const std::string& key,
                    std::int64_t* out, std::string* error) {
  const std::string_view why = read_value(text, range, out);
  return judged(why, field, key + text, key + written(range) + unit_hint(text, range, why), error);
}

std::string_view read_choice(const std::string& text, std::string_view words, std::int32_t* out) noexcept {
  std::size_t number = 0;
  const std::string_view why = read_value(text, words, &number);
  if (why.empty()) *out = static_cast<std::int32_t>(number);
  return why;
}

std::string names_of_keys(std::string_view group) {
  std::string names;
#define WEFT_KEY(group_, key, ...) \
  if (group == #group_) names += names.empty() ? #key : ", " #key;
  WEFT_KNOB_KEYS(WEFT_KEY, WEFT_KEY, WEFT_KEY, WEFT_KEY)
#undef WEFT_KEY
  return names;
}

// Sets one key of a setting that consists of keys. `text`: the key's value.
Status set_key(Knobs* knobs, std::string_view group, const std::string& key, const std::string& text,
               std::string* error) {
  const std::string given = key + "=" + text;
#define WEFT_IS(group_, key_) (group == #group_ && key == #key_)
#define WEFT_KEY_TEXT(group_, key_, field, value, sentence) \
  if (WEFT_IS(group_, key_)) {                              \
    knobs->field = text;                                    \
    return Status::ok;                                      \
  }
#define WEFT_KEY_INTEGER(group_, key_, field, unit, value, low, high, zero, sentence) \
  if (WEFT_IS(group_, key_)) return read_integer(text, {unit, low, high, zero}, group, #key_ "=", &knobs->field, error);
#define WEFT_KEY_REAL(group_, key_, field, unit, value, low, high, sentence) \
  if (WEFT_IS(group_, key_))                                                 \
    return judged(read_value(text, low, high, &knobs->field), group, given, #key_ "=" + range_text(low, high), error);
#define WEFT_KEY_CHOICE(group_, key_, field, type, value, words, sentence)                                 \
  if (WEFT_IS(group_, key_)) {                                                                             \
    std::int32_t chosen = 0;                                                                               \
    const Status status = judged(read_choice(text, words, &chosen), group, given, #key_ "=" words, error); \
    if (status == Status::ok) knobs->field = static_cast<type>(chosen);                                    \
    return status;                                                                                         \
  }
  WEFT_KNOB_KEYS(WEFT_KEY_TEXT, WEFT_KEY_INTEGER, WEFT_KEY_REAL, WEFT_KEY_CHOICE)
#undef WEFT_KEY_TEXT
#undef WEFT_KEY_INTEGER
#undef WEFT_KEY_REAL
#undef WEFT_KEY_CHOICE
#undef WEFT_IS
  return judged("there is no key '" + key + "'", group, given, names_of_keys(group), error);
}

// Sets the keys of a setting that `text` lists, as in key=value,key=value. The setting's other keys keep their values.
Status set_keys(Knobs* knobs, std::string_view group, const std::string& text, std::string* error) {
  Knobs changed = *knobs;
  std::vector<std::string> seen;
  for (std::size_t from = 0; from <= text.size() && !text.empty();) {
    const std::size_t comma = std::min(text.find(',', from), text.size());
    const std::string pair = text.substr(from, comma - from);
    from = comma + 1;
    const std::size_t equals = pair.find('=');
    if (equals == std::string::npos) {
      const std::string keys = "keys " + names_of_keys(group);
      return judged("give key=value, or several joined by ','", group, text, keys, error);
    }
    const std::string key = pair.substr(0, equals);
    if (std::find(seen.begin(), seen.end(), key) != seen.end()) {
      return judged("key '" + key + "' is given twice", group, text, "", error);
    }
    seen.push_back(key);
    if (const Status status = set_key(&changed, group, key, pair.substr(equals + 1), error); status != Status::ok) {
      return status;
    }
  }
  *knobs = std::move(changed);
  return Status::ok;
}

std::vector<KeyInfo> keys_of(const Knobs& knobs, std::string_view group) {
  std::vector<KeyInfo> keys;
#define WEFT_KEY_TEXT(group_, key, field, value, sentence) \
  if (group == #group_) keys.push_back({#key, "text", "", knobs.field, "", sentence});
#define WEFT_KEY_INTEGER(group_, key, field, unit, value, low, high, zero, sentence) \
  if (group == #group_)                                                              \
    keys.push_back(                                                                  \
        {#key, "integer", unit, written(knobs.field, unit), written(IntegerRange{unit, low, high, zero}), sentence});
#define WEFT_KEY_REAL(group_, key, field, unit, value, low, high, sentence) \
  if (group == #group_) keys.push_back({#key, "real", unit, written(knobs.field), range_text(low, high), sentence});
#define WEFT_KEY_CHOICE(group_, key, field, type, value, words, sentence) \
  if (group == #group_)                                                   \
    keys.push_back(                                                       \
        {#key, "choice", "", std::string(word_at(words, static_cast<std::size_t>(knobs.field))), words, sentence});
  WEFT_KNOB_KEYS(WEFT_KEY_TEXT, WEFT_KEY_INTEGER, WEFT_KEY_REAL, WEFT_KEY_CHOICE)
#undef WEFT_KEY_TEXT
#undef WEFT_KEY_INTEGER
#undef WEFT_KEY_REAL
#undef WEFT_KEY_CHOICE
  return keys;
}

// The values of a setting's keys, as set_keys() reads them.
std::string values_of(const Knobs& knobs, std::string_view group) {
  std::string text;
  for (const KeyInfo& key : keys_of(knobs, group)) {
    text += (text.empty() ? "" : ",") + key.name + "=" + key.value;
  }
  return text;
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

// What replaces a setting of earlier versions, such as WEFT_FAULT_LOSS; empty if there was none of that name.
std::string successor_of(const std::string& name) {
  const bool prefixed = is_prefixed(name);
#define WEFT_KEY(group, key, field, ...)                                                       \
  if (is_named(name, #field)) {                                                                \
    return "but a key of a setting: " +                                                        \
           (prefixed ? variable_of(#group) + "=" #key "=..." : #group "={\"" #key "\": ...}"); \
  }
  WEFT_KNOB_KEYS(WEFT_KEY, WEFT_KEY, WEFT_KEY, WEFT_KEY)
#undef WEFT_KEY
  if (is_named(name, "record_bytes_max")) return "but an argument: Endpoint.record(path, bytes_max=...)";
  if (is_named(name, "eager_slots")) return "but was a setting for tests in earlier versions: leave it out";
  return {};
}

// Sets the error for an unknown setting. Names settings as the caller does: with the prefix WEFT_, or without it.
Status refuse_unknown(const std::string& name, std::string* error) {
  const std::string variable = is_prefixed(name) ? name : variable_of(name);
  const KnobInfo* nearest = nullptr;
  std::size_t nearest_distance = 0;
  for (const KnobInfo& info : knob_table()) {
    // A name that was cut off at a word is as likely as one with two wrong characters.
    const bool begins = variable.size() > kPrefix.size() && info.variable.rfind(variable + "_", 0) == 0;
    const std::size_t apart = edit_distance(variable, info.variable);
    const std::size_t distance = begins ? std::min<std::size_t>(apart, 2) : apart;
    if (nearest == nullptr || distance < nearest_distance) {
      nearest = &info;
      nearest_distance = distance;
    }
  }
  *error = name + " is not a setting of weft";
  // If no setting replaces the given one, suggests a name that begins with it, or one that differs in at most a third
  // of the characters.
  if (const std::string successor = successor_of(name); !successor.empty()) {
    *error += ", " + successor;
  } else if (nearest != nullptr && nearest_distance * 3 <= variable.size()) {
    *error += "; did you mean " + (is_prefixed(name) ? nearest->variable : nearest->field) + "?";
  }
  *error += " (weft knobs lists the settings)";
  return Status::invalid_argument;
}

}  // namespace

const std::vector<KnobInfo>& knob_table() {
  static const std::vector<KnobInfo> table = [] {
    std::vector<KnobInfo> rows;
#define WEFT_KNOB_TEXT(field, who, value, wild, sentence) \
  rows.push_back({#field, variable_of(#field), #who, "text", "", value, "", wild, sentence});
#define WEFT_KNOB_INTEGER(field, who, unit, value, low, high, zero, wild, sentence)         \
  rows.push_back({#field, variable_of(#field), #who, "integer", unit, written(value, unit), \
                  written(IntegerRange{unit, low, high, zero}), wild, sentence});
#define WEFT_KNOB_REAL(field, who, unit, value, low, high, wild, sentence)                              \
  rows.push_back({#field, variable_of(#field), #who, "real", unit, written(static_cast<double>(value)), \
                  range_text(low, high), wild, sentence});
#define WEFT_KNOB_CHOICE(field, who, type, value, words, wild, sentence) \
  rows.push_back({#field, variable_of(#field), #who, "choice", "",       \
                  std::string(word_at(words, static_cast<std::size_t>(type::value))), words, wild, sentence});
    WEFT_KNOB_TABLE(WEFT_KNOB_TEXT, WEFT_KNOB_INTEGER, WEFT_KNOB_REAL, WEFT_KNOB_CHOICE)
#undef WEFT_KNOB_TEXT
#undef WEFT_KNOB_INTEGER
#undef WEFT_KNOB_REAL
#undef WEFT_KNOB_CHOICE
#define WEFT_GROUP(group, who, wild, sentence)                                                                   \
  rows.push_back({#group, variable_of(#group), #who, "keys", "", values_of(Knobs(), #group), "", wild, sentence, \
                  keys_of(Knobs(), #group)});
    WEFT_KNOB_GROUPS(WEFT_GROUP)
#undef WEFT_GROUP
    return rows;
  }();
  return table;
}

std::string knob_value(const Knobs& knobs, const std::string& name) {
#define WEFT_KNOB_TEXT(field, who, value, wild, sentence) \
  if (is_named(name, #field)) return knobs.field;
#define WEFT_KNOB_INTEGER(field, who, unit, value, low, high, zero, wild, sentence) \
  if (is_named(name, #field)) return written(knobs.field, unit);
#define WEFT_KNOB_REAL(field, who, unit, value, low, high, wild, sentence) \
  if (is_named(name, #field)) return written(knobs.field);
#define WEFT_KNOB_CHOICE(field, who, type, value, words, wild, sentence) \
  if (is_named(name, #field)) return std::string(word_at(words, static_cast<std::size_t>(knobs.field)));
  WEFT_KNOB_TABLE(WEFT_KNOB_TEXT, WEFT_KNOB_INTEGER, WEFT_KNOB_REAL, WEFT_KNOB_CHOICE)
#undef WEFT_KNOB_TEXT
#undef WEFT_KNOB_INTEGER
#undef WEFT_KNOB_REAL
#undef WEFT_KNOB_CHOICE
#define WEFT_GROUP(group, who, wild, sentence) \
  if (is_named(name, #group)) return values_of(knobs, #group);
  WEFT_KNOB_GROUPS(WEFT_GROUP)
#undef WEFT_GROUP
  return {};
}

Status set_knob(Knobs* knobs, const std::string& name, const std::string& text, std::string* error) {
#define WEFT_KNOB_TEXT(field, who, value, wild, sentence) \
  if (is_named(name, #field)) {                           \
    knobs->field = text;                                  \
    return Status::ok;                                    \
  }
#define WEFT_KNOB_INTEGER(field, who, unit, value, low, high, zero, wild, sentence) \
  if (is_named(name, #field)) return read_integer(text, {unit, low, high, zero}, #field, "", &knobs->field, error);
#define WEFT_KNOB_REAL(field, who, unit, value, low, high, wild, sentence) \
  if (is_named(name, #field))                                              \
    return judged(read_value(text, low, high, &knobs->field), #field, text, range_text(low, high), error);
#define WEFT_KNOB_CHOICE(field, who, type, value, words, wild, sentence)                         \
  if (is_named(name, #field)) {                                                                  \
    std::int32_t chosen = 0;                                                                     \
    const Status status = judged(read_choice(text, words, &chosen), #field, text, words, error); \
    if (status == Status::ok) knobs->field = static_cast<type>(chosen);                          \
    return status;                                                                               \
  }
  WEFT_KNOB_TABLE(WEFT_KNOB_TEXT, WEFT_KNOB_INTEGER, WEFT_KNOB_REAL, WEFT_KNOB_CHOICE)
#undef WEFT_KNOB_TEXT
#undef WEFT_KNOB_INTEGER
#undef WEFT_KNOB_REAL
#undef WEFT_KNOB_CHOICE
#define WEFT_GROUP(group, who, wild, sentence) \
  if (is_named(name, #group)) return set_keys(knobs, #group, text, error);
  WEFT_KNOB_GROUPS(WEFT_GROUP)
#undef WEFT_GROUP
  return refuse_unknown(name, error);
}

std::string KnobSettings::text(const char* knob) const {
  const std::string_view name(knob);
#define WEFT_KNOB_OTHER(...)
#define WEFT_KNOB_TEXT(field, who, value, wild, sentence) \
  if (name == #field) return knobs_->field;
#define WEFT_KNOB_CHOICE(field, who, type, value, words, wild, sentence) \
  if (name == #field) return std::string(word_at(words, static_cast<std::size_t>(knobs_->field)));
#define WEFT_KEY_TEXT(group, key, field, ...) \
  if (name == #field) return knobs_->field;
#define WEFT_KEY_CHOICE(group, key, field, type, value, words, sentence) \
  if (name == #field) return std::string(word_at(words, static_cast<std::size_t>(knobs_->field)));
  WEFT_KNOB_TABLE(WEFT_KNOB_TEXT, WEFT_KNOB_OTHER, WEFT_KNOB_OTHER, WEFT_KNOB_CHOICE)
  WEFT_KNOB_KEYS(WEFT_KEY_TEXT, WEFT_KNOB_OTHER, WEFT_KNOB_OTHER, WEFT_KEY_CHOICE)
#undef WEFT_KNOB_TEXT
#undef WEFT_KNOB_CHOICE
#undef WEFT_KEY_TEXT
#undef WEFT_KEY_CHOICE
  throw std::out_of_range(std::string("no text or choice knob '") + knob + "'");
}

std::int64_t KnobSettings::number(const char* knob) const {
  const std::string_view name(knob);
#define WEFT_KNOB_INTEGER(field, ...) \
  if (name == #field) return knobs_->field;
#define WEFT_KEY_INTEGER(group, key, field, ...) \
  if (name == #field) return knobs_->field;
  WEFT_KNOB_TABLE(WEFT_KNOB_OTHER, WEFT_KNOB_INTEGER, WEFT_KNOB_OTHER, WEFT_KNOB_OTHER)
  WEFT_KNOB_KEYS(WEFT_KNOB_OTHER, WEFT_KEY_INTEGER, WEFT_KNOB_OTHER, WEFT_KNOB_OTHER)
#undef WEFT_KNOB_INTEGER
#undef WEFT_KEY_INTEGER
  throw std::out_of_range(std::string("no integer knob '") + knob + "'");
}

double KnobSettings::real(const char* knob) const {
  const std::string_view name(knob);
#define WEFT_KNOB_REAL(field, ...) \
  if (name == #field) return knobs_->field;
#define WEFT_KEY_REAL(group, key, field, ...) \
  if (name == #field) return knobs_->field;
  WEFT_KNOB_TABLE(WEFT_KNOB_OTHER, WEFT_KNOB_OTHER, WEFT_KNOB_REAL, WEFT_KNOB_OTHER)
  WEFT_KNOB_KEYS(WEFT_KNOB_OTHER, WEFT_KNOB_OTHER, WEFT_KEY_REAL, WEFT_KNOB_OTHER)
#undef WEFT_KNOB_REAL
#undef WEFT_KEY_REAL
#undef WEFT_KNOB_OTHER
  throw std::out_of_range(std::string("no real knob '") + knob + "'");
}

Status check_knobs(const Knobs& knobs, std::string* error) {
  std::bitset<256> paths;
  if (!datapath::read_paths(knobs.fault_paths, &paths, error)) return Status::invalid_argument;
  Cpus cpus;
  if (!parse_wish(knobs.engine_cpus, &cpus, error)) return Status::invalid_argument;
  if (knobs.rto_ns_min > knobs.rto_ns_max) {
    *error = "WEFT_RTO=" + values_of(knobs, "rto") + ": min is above max";
    return Status::invalid_argument;
  }
  PortRange ports;
  for (const auto& [field, text, low] : {std::tuple{"control_port", &knobs.control_port, std::int64_t{1}},
                                         std::tuple{"port_base", &knobs.port_base, kPortBaseMin}}) {
    const std::string_view why = read_value(*text, low, &ports);
    const std::string allowed = "0, a port of " + std::to_string(low) + "..65535, or FIRST-LAST";
    if (!why.empty()) return judged(why, field, *text, allowed, error);
  }
  if (!ports_suffice(knobs, 1, knobs.paths == 0 ? kPathsDefault : knobs.paths, error)) return Status::invalid_argument;
  if (knobs.telemetry != "auto" && knobs.telemetry != "off" && knobs.telemetry.substr(0, 1) != "/") {
    *error = "WEFT_TELEMETRY=" + knobs.telemetry + ": must be auto, off, or the absolute path of a directory";
    return Status::invalid_argument;
  }
  return Status::ok;
}

PortRange control_ports(const Knobs& knobs) noexcept {
  PortRange range;
  static_cast<void>(read_value(knobs.control_port, 1, &range));
  return range;
}

PortRange data_ports(const Knobs& knobs) noexcept {
  PortRange range;
  static_cast<void>(read_value(knobs.port_base, kPortBaseMin, &range));
  return range;
}

bool ports_suffice(const Knobs& knobs, std::int64_t engines, std::int64_t paths, std::string* error) {
  const PortRange range = data_ports(knobs);
  const std::int64_t needed = engines * paths, last = range.is_range ? range.last : kPortMax;
  if (range.first == 0 || range.first + needed - 1 <= last) return true;
  *error = "WEFT_PORT_BASE=" + knobs.port_base + " has " + std::to_string(last - range.first + 1) + " ports, and " +
           std::to_string(paths) + " paths (WEFT_PATHS) of " + std::to_string(engines) +
           (engines == 1 ? " engine" : " engines") + " need " + std::to_string(needed);
  if (range.is_range) *error += ", in each process of a host";
  return false;
}

// Whether bytes are text: each byte that begins a character says how many continue it.
static bool is_utf8(std::string_view text) {
  std::size_t left = 0;
  for (const char each : text) {
    const auto byte = static_cast<unsigned char>(each);
    if (left > 0) {
      if (byte >> 6 != 0b10) return false;
      --left;
    } else if (byte >= 0x80) {
      if (byte < 0xC2 || byte > 0xF4) return false;
      left = byte < 0xE0 ? 1 : byte < 0xF0 ? 2 : 3;
    }
  }
  return left == 0;
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
    if (text.empty()) continue;  // as if it were not set
    if (!is_utf8(text)) {
      *error = name + ": its value is no UTF-8 text";
      return Status::invalid_argument;
    }
    if (const Status status = set_knob(&loaded, name, text, error); status != Status::ok) return status;
  }
  if (const Status status = check_knobs(loaded, error); status != Status::ok) return status;
  *knobs = std::move(loaded);
  return Status::ok;
}

}  // namespace weft::engine
