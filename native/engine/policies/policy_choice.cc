// Finds policies by name and parses their parameters. An unknown name is an error that lists the known names; no other
// policy is used instead.
#include "native/engine/policies/policy_choice.h"

#include <dlfcn.h>

#include <atomic>
#include <charconv>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <optional>

namespace weft::engine {
namespace {

// One parameter of a policy: a line of Descriptor::params_fields.
struct Field {
  std::string_view name;
  char kind = 'i';
  std::size_t offset = 0, count = 1;
};

// Returns the text before the first `separator`, and removes it and the separator from `rest`.
std::string_view take(std::string_view* rest, char separator) {
  const std::size_t at = rest->find(separator);
  const std::string_view part = rest->substr(0, at);
  rest->remove_prefix(at == std::string_view::npos ? rest->size() : at + 1);
  return part;
}

constexpr const char* kSpace = " \t\n";

std::string_view trimmed(std::string_view text) {
  const std::size_t first = text.find_first_not_of(kSpace);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kSpace) - first + 1);
}

template <typename Number>
std::errc read_number_or_why(std::string_view text, Number* out) {
  const auto [stop, code] = std::from_chars(text.data(), text.data() + text.size(), *out);
  return stop == text.data() + text.size() ? code : std::errc::invalid_argument;
}

template <typename Number>
bool read_number(std::string_view text, Number* out) {
  return read_number_or_why(text, out) == std::errc();
}

// Parses the value of a parameter into 8 bytes. Returns an empty text, or what is wrong with the value.
std::string_view read_word(char kind, std::string_view text, std::int64_t* word) {
  if (kind == 'i') {
    const std::errc code = read_number_or_why(text, word);
    return code == std::errc()                      ? ""
           : code == std::errc::result_out_of_range ? "too large for 64 bits"
                                                    : "not a whole number";
  }
  double real = 0;
  if (!read_number(text, &real) || !std::isfinite(real)) return "not a finite number";
  std::memcpy(word, &real, sizeof real);
  return "";
}

// Position of the colon before the parameters: after the suffix .so or .py, or else the first colon after the last
// slash. So the path of a file may contain colons.
std::size_t params_at(std::string_view text) {
  for (const std::string_view suffix : {".so", ".py"}) {
    for (std::size_t at = text.find(suffix); at != std::string_view::npos; at = text.find(suffix, at + 1)) {
      const std::size_t next = text.find_first_not_of(kSpace, at + suffix.size());
      if (next == std::string_view::npos || text[next] == ':') return next;
    }
  }
  const std::size_t slash = text.rfind('/', text.find('='));
  return text.find(':', slash == std::string_view::npos ? 0 : slash);
}

// Position of the white space before the next "family="; the text before it belongs to the current policy.
std::size_t next_choice(std::string_view text) {
  for (std::size_t at = text.find_first_of(kSpace); at != std::string_view::npos;
       at = text.find_first_of(kSpace, at + 1)) {
    policy::Family family{};
    const std::string_view rest = trimmed(text.substr(at));
    const std::size_t equals = rest.find('=');
    if (equals != std::string_view::npos && family_of(rest.substr(0, equals), &family)) return at;
  }
  return text.size();
}

std::vector<Field> fields_of(const policy::Descriptor& descriptor) {
  std::vector<Field> fields;
  std::string_view rest = descriptor.params_fields;
  while (!rest.empty()) {
    std::string_view line = take(&rest, '\n');
    Field field;
    field.name = take(&line, ' ');
    field.kind = line.empty() ? 'i' : line[0];
    static_cast<void>(take(&line, ' '));
    const bool whole = read_number(take(&line, ' '), &field.offset) && read_number(line, &field.count);
    const std::size_t words = descriptor.params_bytes / 8, first = field.offset / 8;
    if (whole && field.offset % 8 == 0 && field.count != 0 && first < words && field.count <= words - first)
      fields.push_back(field);
  }
  return fields;
}

// Removes the family from a name such as "window/swift", and fails if it is not `family`. Other names and paths stay as
// they are.
bool name_of(policy::Family family, std::string* name, std::string* error) {
  policy::Family said{};
  const std::size_t slash = name->find('/');
  if (slash == std::string::npos || !family_of(std::string_view(*name).substr(0, slash), &said)) return true;
  const std::string rest = name->substr(slash + 1);
  if (rest.find('/') != std::string::npos || rest.ends_with(".so")) return true;
  if (said != family) {
    *error = *name + " is a " + policy::family_name(said) + " policy; a " + policy::family_name(family) +
             " policy is wanted";
    return false;
  }
  *name = rest;
  return true;
}

bool set_field(const policy::Descriptor& descriptor, std::string_view assignment, std::vector<std::int64_t>* words,
               std::string* error) {
  std::string_view values = assignment;
  const std::string_view name = trimmed(take(&values, '='));
  std::string known;
  for (const Field& field : fields_of(descriptor)) {
    known += (known.empty() ? "" : ", ") + std::string(field.name);
    if (field.name != name) continue;
    std::size_t index = 0;
    for (; !values.empty(); ++index) {
      const std::string_view text = trimmed(take(&values, '/'));
      std::int64_t word = 0;
      std::string wrong(read_word(field.kind, text, &word));
      if (wrong.empty() && index == field.count) wrong = "too many values: at most " + std::to_string(field.count);
      if (!wrong.empty()) {
        *error = std::string(descriptor.name) + ": " + std::string(name) + "=" + std::string(text) + ": " + wrong;
        return false;
      }
      (*words)[field.offset / 8 + index] = word;
    }
    if (index != 0) return true;
    *error = std::string(descriptor.name) + ": " + std::string(name) + " needs a value";
    return false;
  }
  *error = std::string(descriptor.name) + " has no parameter '" + std::string(name) +
           "': " + (known.empty() ? "it has none" : "choose one of " + known);
  return false;
}

// The parameters of the policy's preset of this name, if there is one. The names of all presets are added to `known`.
std::optional<std::string_view> preset_of(const policy::Descriptor& descriptor, std::string_view name,
                                          std::string* known) {
  std::string_view rest = policy::presets_of(descriptor);
  std::optional<std::string_view> found;
  while (!rest.empty()) {
    std::string_view line = take(&rest, '\n');
    const std::string_view called = take(&line, ' ');
    *known += (known->empty() ? "" : ", ") + std::string(called);
    if (called == name) found = line;
  }
  return found;
}

bool set_fields(const policy::Descriptor& descriptor, std::string_view text, std::vector<std::int64_t>* words,
                std::string* error) {
  while (!text.empty()) {
    const std::string_view assignment = take(&text, ',');
    if (set_field(descriptor, assignment, words, error)) continue;
    const std::string name(trimmed(assignment)), policy(descriptor.name);
    std::string ignored;
    if (preset_of(descriptor, name, &ignored)) {
      *error =
          policy + ": " + name + " is a preset: give at most one, before the parameters, as " + policy + ":" + name;
    }
    return false;
  }
  return true;
}

// Sets all parameters to their defaults, and then those of the preset.
bool set_preset(const policy::Descriptor& descriptor, std::string_view name, std::vector<std::int64_t>* words,
                std::string* error) {
  std::string known;
  const std::optional<std::string_view> params = preset_of(descriptor, name, &known);
  if (!params) {
    static_cast<void>(set_field(descriptor, name, words, error));  // says what parameters there are: this has no value
    if (!known.empty()) *error += "; presets: " + known;
    return false;
  }
  if (descriptor.params_default != nullptr)
    std::memcpy(words->data(), descriptor.params_default, descriptor.params_bytes);
  return set_fields(descriptor, *params, words, error);
}

// The directory of this library, without symbolic links; empty: unknown.
std::string own_directory() {
  Dl_info here{};
  if (::dladdr(reinterpret_cast<const void*>(&policy_directories), &here) == 0 || here.dli_fname == nullptr) return {};
  std::error_code ignored;
  std::string file = std::filesystem::canonical(here.dli_fname, ignored).string();
  if (file.empty()) file = here.dli_fname;
  const std::size_t slash = file.rfind('/');
  return slash == std::string::npos ? "." : file.substr(0, slash);
}

std::uint64_t next_number() noexcept {
  static std::atomic<std::uint64_t> last{0};
  return last.fetch_add(1, std::memory_order_relaxed) + 1;
}

}  // namespace

std::vector<std::string> policy_directories(const Knobs& knobs) {
  std::vector<std::string> directories;
  if (!knobs.policy_directory.empty()) directories.push_back(knobs.policy_directory);
  directories.emplace_back(policy::kLinkedIn);  // comes before directories that other users may be able to write to
  static const std::string own = own_directory();
  if (!own.empty()) {
    directories.push_back(own + "/policies");
    directories.push_back(own + "/../policies");
  }
  return directories;
}

bool family_of(std::string_view word, policy::Family* out) noexcept {
  for (const auto family :
       {policy::Family::window, policy::Family::credit, policy::Family::path, policy::Family::loss}) {
    if (word != policy::family_name(family)) continue;
    *out = family;
    return true;
  }
  return false;
}

ChoiceParts parts_of(std::string_view text) noexcept {
  const std::size_t colon = params_at(text);
  ChoiceParts parts{trimmed(text.substr(0, colon)), colon != std::string_view::npos, {}};
  if (parts.has_params) parts.params = text.substr(colon + 1);
  return parts;
}

std::vector<std::string_view> choices_of(std::string_view text) {
  std::vector<std::string_view> choices;
  for (std::string_view rest = trimmed(text); !rest.empty();) {
    const std::size_t end = next_choice(rest);
    choices.push_back(trimmed(rest.substr(0, end)));
    rest = trimmed(rest.substr(end));
  }
  return choices;
}

bool set_params(const policy::Descriptor& descriptor, std::string_view text, std::vector<std::int64_t>* words,
                std::string* error) {
  const std::string_view first = trimmed(text.substr(0, text.find(',')));
  if (!first.empty() && first.find('=') == std::string_view::npos) {
    static_cast<void>(take(&text, ','));
    if (!set_preset(descriptor, first, words, error)) return false;
  }
  return set_fields(descriptor, text, words, error);
}

bool choose_policy(policy::Family family, const std::string& text, const std::vector<std::string>& directories,
                   PolicyRef* out, std::string* error) {
  const ChoiceParts parts = parts_of(text);
  std::string name(parts.name);
  if (!name_of(family, &name, error)) return false;
  if (family == policy::Family::credit && name == "none" && !parts.has_params) {
    out->reset();
    return true;
  }
  auto chosen = std::make_shared<ChosenPolicy>();
  chosen->number = next_number();
  chosen->library = policy::find(family, name, directories, error);
  if (chosen->library == nullptr) return false;
  const policy::Descriptor& descriptor = chosen->library->descriptor();
  chosen->params.resize(descriptor.params_bytes / 8);
  if (!chosen->params.empty()) std::memcpy(chosen->params.data(), descriptor.params_default, descriptor.params_bytes);
  if (!set_params(descriptor, parts.params, &chosen->params, error)) return false;
  *out = std::move(chosen);
  return true;
}

bool change_params(const PolicyRef& policy, std::string_view text, PolicyRef* out, std::string* error) {
  auto changed = std::make_shared<ChosenPolicy>(*policy);
  changed->number = next_number();
  if (!set_params(changed->library->descriptor(), text, &changed->params, error)) return false;
  *out = std::move(changed);
  return true;
}

bool choose_set(std::string_view text, const std::vector<std::string>& directories, PolicySet* out,
                std::string* error) {
  for (std::string_view word : choices_of(text)) {
    const std::string whole(word);
    const std::string_view family_word = take(&word, '=');
    policy::Family family{};
    if (!family_of(family_word, &family) || word.empty()) {
      *error = "'" + whole + "': write family=policy, where family is window, path, loss or credit";
      return false;
    }
    if (!choose_policy(family, std::string(word), directories, &out->of(family), error)) return false;
    if (family == policy::Family::credit) out->own_credit = true;
  }
  return true;
}

bool choose_classes(std::string_view text, const std::vector<std::string>& directories,
                    std::map<std::int64_t, PolicySet>* out, std::string* error) {
  while (!trimmed(text).empty()) {
    std::string_view entry = trimmed(take(&text, ';'));
    if (entry.empty()) continue;
    const std::string whole(entry);
    std::int64_t number = 0;
    if (!read_number(take(&entry, ' '), &number) || number < 0 || trimmed(entry).empty()) {
      *error = "WEFT_TRAFFIC_CLASSES: '" + whole + "': write a class number and its policies, as in 3 window=dctcp";
      return false;
    }
    if (!choose_set(entry, directories, &(*out)[number], error)) {
      *error = "WEFT_TRAFFIC_CLASSES: class " + std::to_string(number) + ": " + *error;
      return false;
    }
  }
  return true;
}

bool choose_policies(const Knobs& knobs, PolicySet* out, std::string* error) {
  const std::vector<std::string> directories = policy_directories(knobs);
  return choose_policy(policy::Family::window, knobs.window_policy, directories, &out->window, error) &&
         choose_policy(policy::Family::path, knobs.path_policy, directories, &out->path, error) &&
         choose_policy(policy::Family::loss, knobs.loss_policy, directories, &out->loss, error) &&
         choose_policy(policy::Family::credit, knobs.credit_policy, directories, &out->credit, error);
}

}  // namespace weft::engine
