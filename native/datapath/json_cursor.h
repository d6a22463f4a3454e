// Reads JSON front to back without building a tree: the caller says what it expects, and skips the rest.
#pragma once

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <string>
#include <string_view>

namespace weft::datapath {

// Every function moves past what it read and returns true, or returns false where the text is something else. After
// the first false the cursor is of no use.
class JsonCursor {
 public:
  explicit JsonCursor(std::string_view text) : at_(text) {}

  bool at_end() {
    skip_space();
    return at_.empty();
  }

  bool string(std::string* out) {
    if (!take('"')) return false;
    out->clear();
    while (!at_.empty() && at_.front() != '"') {
      if (at_.front() == '\\') {
        at_.remove_prefix(1);
        if (at_.empty()) return false;
      }
      *out += at_.front();  // an escape such as \n is read as its letter: no string of a plan file has escapes
      at_.remove_prefix(1);
    }
    return take('"');
  }

  bool integer(std::int64_t* out) {
    skip_space();
    const auto [end, problem] = std::from_chars(at_.data(), at_.data() + at_.size(), *out);
    if (problem != std::errc()) return false;
    at_.remove_prefix(static_cast<std::size_t>(end - at_.data()));
    return true;
  }

  // A number without sign and exponent, such as 0.25.
  bool decimal(double* out) {
    skip_space();
    const std::size_t length = std::min(at_.find_first_not_of("0123456789."), at_.size());
    double value = 0, place = 0;
    for (const char digit : at_.substr(0, length)) {
      if (digit == '.') {
        if (place != 0) return false;
        place = 1;
        continue;
      }
      if (place != 0) place /= 10;
      value = place == 0 ? value * 10 + (digit - '0') : value + place * (digit - '0');
    }
    at_.remove_prefix(length);
    *out = value;
    return length > 0 && (at_.empty() || at_.front() == ',' || at_.front() == ']' || at_.front() == '}' || is_space());
  }

  // Calls on_key(key) for each key, with the cursor before the key's value. on_key must read or skip the value.
  template <typename OnKey>
  bool object(OnKey on_key) {
    if (!take('{')) return false;
    if (take('}')) return true;
    std::string key;
    do {
      if (!string(&key) || !take(':') || !on_key(key)) return false;
    } while (take(','));
    return take('}');
  }

  // Calls on_element() for each element, with the cursor before the element. on_element must read or skip it.
  template <typename OnElement>
  bool array(OnElement on_element) {
    if (!take('[')) return false;
    if (take(']')) return true;
    do {
      if (!on_element()) return false;
    } while (take(','));
    return take(']');
  }

  bool skip(int depth = 0) {
    if (depth > kDepthMax) return false;
    skip_space();
    if (at_.empty()) return false;
    std::string ignored;
    if (at_.front() == '"') return string(&ignored);
    if (at_.front() == '{') return object([&](const std::string&) { return skip(depth + 1); });
    if (at_.front() == '[') return array([&] { return skip(depth + 1); });
    const std::size_t length = std::min(at_.find_first_of(",]} \t\r\n"), at_.size());
    at_.remove_prefix(length);  // a number, true, false or null
    return length > 0;
  }

 private:
  static constexpr int kDepthMax = 32;

  bool is_space() const { return std::string_view(" \t\r\n").find(at_.front()) != std::string_view::npos; }
  void skip_space() { at_.remove_prefix(std::min(at_.find_first_not_of(" \t\r\n"), at_.size())); }

  bool take(char wanted) {
    skip_space();
    if (at_.empty() || at_.front() != wanted) return false;
    at_.remove_prefix(1);
    return true;
  }

  std::string_view at_;
};

}  // namespace weft::datapath
