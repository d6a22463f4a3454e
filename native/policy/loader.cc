// Finds and loads policy libraries by name, and checks their descriptors.
#include "native/policy/loader.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <filesystem>
#include <set>
#include <string_view>
#include <system_error>

#include "native/files/trusted_file.h"
#include "native/policy/library_file.h"
#include "native/wire/cpu.h"

// Descriptors of the policy `fixed` of each family, whose objects `python -m transport.compiler --all` writes.
extern "C" {
extern const weft::policy::Descriptor weft_policy_descriptor_window_fixed __attribute__((visibility("hidden")));
extern const weft::policy::Descriptor weft_policy_descriptor_credit_fixed __attribute__((visibility("hidden")));
extern const weft::policy::Descriptor weft_policy_descriptor_path_fixed __attribute__((visibility("hidden")));
extern const weft::policy::Descriptor weft_policy_descriptor_loss_fixed __attribute__((visibility("hidden")));
// The descriptors of all other shipped policies, ended by null. Only the plugin defines this array, because its file
// may be copied without the folder of policies.
extern const weft::policy::Descriptor* const weft_linked_policies[] __attribute__((weak, visibility("hidden")));
}

namespace weft::policy {
namespace {

// The `_min` sizes are those of the first records of this ABI.
struct Shape {
  std::uint32_t hook_count, hook_count_max;
  std::size_t event_bytes_min, event_bytes;
  std::size_t result_bytes_min, result_bytes;
  std::size_t shared_bytes_min;
};

bool known(std::uint32_t family) { return family >= 1 && family <= 4; }

Shape shape_of(Family family) {
  switch (family) {
    case Family::window:
      return {4, 6, 168, sizeof(WindowEvent), 16, sizeof(WindowResult), 0};
    case Family::credit:
      return {3, 3, 80, sizeof(CreditEvent), 16, sizeof(CreditResult), 0};
    case Family::path:
      return {3, 3, 104, sizeof(PathEvent), 16, sizeof(PathResult), sizeof(PathHead)};
    case Family::loss:
      return {3, 3, 168, sizeof(LossEvent), 32, sizeof(LossResult), 0};
  }
  return {0, 0, 0, 0, 0, 0, 0};
}

// Whether a text of a descriptor ends within its field, and is one line.
template <std::size_t bytes>
bool is_line(const char (&text)[bytes]) {
  const char* const end = std::find(text, text + bytes, '\0');
  return end != text + bytes && end != text &&
         std::none_of(text, end, [](unsigned char letter) { return letter < ' '; });
}

// Whether this CPU supports the instruction set baseline that a policy was compiled for.
bool runs_here(const char* baseline) {
#if defined(__x86_64__)
  if (std::strcmp(baseline, "x86-64-v3") != 0) return false;
  static const bool runs = wire::Cpu::of_this_machine().v3;
  return runs;
#elif defined(__aarch64__)
  return std::strcmp(baseline, "aarch64") == 0;
#else
  return false;
#endif
}

// Whether a library's record is one that this build knows, or the beginning of one.
bool is_part(std::size_t bytes, std::size_t bytes_min, std::size_t bytes_max) {
  return bytes >= bytes_min && bytes <= bytes_max && bytes % sizeof(std::int64_t) == 0;
}

// Telemetry ends the event of a window policy, and a policy has all of it or none: fields are added before it.
bool telemetry_fits(const Descriptor& descriptor) {
  return descriptor.family != static_cast<std::uint32_t>(Family::window) ||
         descriptor.event_bytes <= offsetof(WindowEvent, hops) || descriptor.event_bytes == sizeof(WindowEvent);
}

bool record_fits(std::uint32_t bytes) { return bytes <= kMaxRecordBytes && bytes % alignof(std::int64_t) == 0; }

// Sets `error`. If memory runs out, `error` is not set, because no exception may leave this function.
void say(std::string* error, std::string_view text) noexcept {
  if (error == nullptr) return;
  try {
    error->assign(text);
  } catch (const std::exception&) {
    error->clear();
  }
}

bool is_path(const std::string& name) {
  return name.find('/') != std::string::npos || (name.size() > 3 && name.ends_with(".so"));
}

// The policies of a family, other than `fixed`, that are linked into this binary; only the plugin has any.
std::vector<const Descriptor*> linked_policies(Family family) {
  std::vector<const Descriptor*> found;
  // The address is compared as an integer, because a compiler may assume that an array's address is never null.
  if (reinterpret_cast<std::uintptr_t>(weft_linked_policies) == 0) return found;
  for (const Descriptor* const* at = weft_linked_policies; *at != nullptr; ++at) {
    if ((*at)->family == static_cast<std::uint32_t>(family)) found.push_back(*at);
  }
  return found;
}

std::string what_exists(Family family, const std::string& prefix, const std::vector<std::string>& directories) {
  std::set<std::string> names{"fixed"};
  for (const Descriptor* linked : linked_policies(family)) names.insert(linked->name);
  for (const std::string& directory : directories) {
    std::error_code failed;
    std::filesystem::directory_iterator place(directory, failed);
    for (; !failed && place != std::filesystem::directory_iterator(); place.increment(failed)) {
      const std::filesystem::path& file = place->path();
      const std::string stem = file.stem().string();
      if (file.extension() == ".so" && stem.starts_with(prefix)) names.insert(stem.substr(prefix.size()));
    }
  }
  std::string list;
  for (const std::string& name : names) list += (list.empty() ? "" : ", ") + name;
  return list;
}

std::shared_ptr<const Library> load_for(Family family, const std::string& path, const std::string& name,
                                        std::string* error) {
  std::shared_ptr<const Library> library = Library::load(path, error);
  if (library == nullptr) return nullptr;
  const Descriptor& found = library->descriptor();
  if (found.family != static_cast<std::uint32_t>(family)) {
    say(error, path + " holds a " + family_name(static_cast<Family>(found.family)) + " policy; a " +
                   family_name(family) + " policy is wanted");
    return nullptr;
  }
  if (!name.empty() && name != found.name) {
    say(error, path + " holds the policy '" + found.name + "', not '" + name + "'");
    return nullptr;
  }
  return library;
}

std::shared_ptr<const Library> fitting(const Descriptor& linked, std::string* error) {
  const std::string wrong = complaint(linked);
  if (wrong.empty()) return Library::linked_in(linked);
  say(error, std::string("the policy '") + linked.name + "' cannot be used: " + wrong);
  return nullptr;
}

std::shared_ptr<const Library> find_or_throw(Family family, const std::string& name_or_path,
                                             const std::vector<std::string>& directories, std::string* error) {
  if (name_or_path == "fixed") return Library::linked_in(fixed(family));
  if (is_path(name_or_path)) return load_for(family, name_or_path, "", error);
  const std::string prefix = std::string(family_name(family)) + "_";
  for (const std::string& directory : directories) {
    if (directory == kLinkedIn) {
      for (const Descriptor* linked : linked_policies(family)) {
        if (name_or_path == linked->name) return fitting(*linked, error);
      }
      continue;
    }
    const std::filesystem::path file = std::filesystem::path(directory) / (prefix + name_or_path + ".so");
    std::error_code failed;
    if (std::filesystem::is_regular_file(file, failed)) return load_for(family, file.string(), name_or_path, error);
  }
  say(error, std::string("no ") + family_name(family) + " policy '" + name_or_path + "': choose one of " +
                 what_exists(family, prefix, directories));
  return nullptr;
}

}  // namespace

const char* family_name(Family family) noexcept {
  switch (family) {
    case Family::window:
      return "window";
    case Family::credit:
      return "credit";
    case Family::path:
      return "path";
    case Family::loss:
      return "loss";
  }
  return "unknown";
}

const char* hook_name(Family family, std::size_t hook) noexcept {
  constexpr const char* kNames[][kMaxHooks] = {{"on_start", "on_ack", "on_loss", "on_timeout", "on_timer", "on_send"},
                                               {"on_start", "on_demand", "on_tick", nullptr},
                                               {"on_start", "pick", "on_feedback", nullptr},
                                               {"on_start", "on_ack", "on_timer", nullptr}};
  const char* name = hook < kMaxHooks ? kNames[static_cast<std::size_t>(family) - 1][hook] : nullptr;
  return name == nullptr ? "unknown" : name;
}

std::string failure_text(Family family, const char* name, std::size_t hook) {
  return std::string("the ") + family_name(family) + " policy '" + name + "' failed in " + hook_name(family, hook);
}

std::string complaint(const Descriptor& descriptor) {
  // Size and version are checked first, because the layout of the other fields depends on them.
  if (descriptor.descriptor_bytes < kDescriptorBytesMin) return "its descriptor is too short: compile it again";
  if (descriptor.abi_version != kAbiVersion) {
    return "it was compiled for policy ABI " + std::to_string(descriptor.abi_version) + ", this build has ABI " +
           std::to_string(kAbiVersion) + ": compile it again";
  }
  if (!known(descriptor.family)) return "its policy family is unknown to this build: compile it again";
  if (!is_line(descriptor.name) || !is_line(descriptor.source_sha256) || !is_line(descriptor.cpu_baseline)) {
    return "its name, source hash or CPU baseline is not terminated, or has several lines: compile it again";
  }
  if (!runs_here(descriptor.cpu_baseline)) {
    return std::string("it was compiled for ") + descriptor.cpu_baseline + ", which this CPU does not support";
  }
  const Shape shape = shape_of(static_cast<Family>(descriptor.family));
  if (!is_part(descriptor.event_bytes, shape.event_bytes_min, shape.event_bytes) ||
      !is_part(descriptor.result_bytes, shape.result_bytes_min, shape.result_bytes) || !telemetry_fits(descriptor)) {
    return "it was compiled for different event or result records: compile it again";
  }
  if (!record_fits(descriptor.flow_bytes) || !record_fits(descriptor.shared_bytes) ||
      !record_fits(descriptor.params_bytes) || descriptor.shared_bytes < shape.shared_bytes_min) {
    return "the size of its flow, shared or parameter record is invalid: compile it again";
  }
  if ((descriptor.params_bytes != 0) != (descriptor.params_default != nullptr)) {
    return "it has no default parameters: compile it again";
  }
  if (descriptor.params_fields == nullptr) return "it does not name its parameters: compile it again";
  if (descriptor.hook_count < shape.hook_count || descriptor.hook_count > shape.hook_count_max) {
    return "it has the wrong number of hooks: compile it again";
  }
  if (descriptor.hook_count > kFirstHooks && descriptor.descriptor_bytes < sizeof(Descriptor)) {
    return "its descriptor is too short: compile it again";
  }
  for (std::size_t i = 0; i < shape.hook_count; ++i) {
    if (descriptor.hooks[i] == nullptr) return "a hook is missing: compile it again";
  }
  return "";
}

Library::~Library() {
  if (handle_ != nullptr) dlclose(handle_);
}

std::shared_ptr<const Library> Library::load(const std::string& path, std::string* error) noexcept try {
  std::string file, unfit;
  if (files::check_library(path, &file, &unfit)) unfit = file_complaint(file);
  if (!unfit.empty()) {
    say(error, path + " cannot be loaded: " + unfit);
    return nullptr;
  }
  void* handle = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    const char* why = dlerror();
    say(error, why != nullptr ? why : "dlopen failed, and dlerror gives no reason");
    return nullptr;
  }
  // Owns the handle from here on, so that a library that does not fit is closed again.
  std::unique_ptr<void, int (*)(void*)> opened(handle, dlclose);
  const auto* descriptor = static_cast<const Descriptor*>(dlsym(handle, kDescriptorSymbol));
  const std::string wrong =
      descriptor == nullptr ? "it exports no policy (weft policy compile FILE.py makes one)" : complaint(*descriptor);
  if (!wrong.empty()) {
    say(error, path + " cannot be used: " + wrong);
    return nullptr;
  }
  std::unique_ptr<Library> library(new Library(opened.get(), descriptor));
  static_cast<void>(opened.release());
  return library;
} catch (const std::exception& failure) {
  say(error, failure.what());
  return nullptr;
}

std::shared_ptr<const Library> Library::linked_in(const Descriptor& descriptor) noexcept try {
  return std::shared_ptr<const Library>(new Library(nullptr, &descriptor));
} catch (const std::exception&) {
  return nullptr;
}

const Descriptor& fixed(Family family) noexcept {
  switch (family) {
    case Family::window:
      return weft_policy_descriptor_window_fixed;
    case Family::credit:
      return weft_policy_descriptor_credit_fixed;
    case Family::path:
      return weft_policy_descriptor_path_fixed;
    case Family::loss:
      break;
  }
  return weft_policy_descriptor_loss_fixed;
}

std::shared_ptr<const Library> find(Family family, const std::string& name_or_path,
                                    const std::vector<std::string>& directories, std::string* error) noexcept try {
  return find_or_throw(family, name_or_path, directories, error);
} catch (const std::exception& failure) {
  say(error, failure.what());
  return nullptr;
}

}  // namespace weft::policy
