// Finds the library of a policy by name, loads it, and checks that this process can use it. No function of this header
// throws or calls a hook.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "native/policy/policy.h"

namespace weft::policy {

// A loaded policy library that fits this build's records. It is unloaded when its last owner releases it; by then no
// engine may run one of its hooks.
class Library {
 public:
  // Returns null with `error` set if the file cannot be loaded or does not fit.
  static std::shared_ptr<const Library> load(const std::string& path, std::string* error) noexcept;

  // Wraps a descriptor that is linked into this binary.
  static std::shared_ptr<const Library> linked_in(const Descriptor& descriptor) noexcept;

  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;
  ~Library();

  const Descriptor& descriptor() const noexcept { return *descriptor_; }

 private:
  Library(void* handle, const Descriptor* descriptor) noexcept : handle_(handle), descriptor_(descriptor) {}

  void* handle_;  // null if the policy is linked into this binary
  const Descriptor* descriptor_;
};

// The built-in fallback policy of a family.
const Descriptor& fixed(Family family) noexcept;

// The name of a family: "window", "credit", "path" or "loss".
const char* family_name(Family family) noexcept;

// The name of an entry of Descriptor::hooks, such as "on_ack".
const char* hook_name(Family family, std::size_t hook) noexcept;

// The message about a failed policy, such as "the window policy 'mine' failed in on_ack".
std::string failure_text(Family family, const char* name, std::size_t hook);

// Returns why a descriptor cannot be used; empty if it can.
std::string complaint(const Descriptor& descriptor);

// In a list of directories, this stands for the policies that are linked into this binary.
inline constexpr const char* kLinkedIn = "";

// Finds a policy library. `name_or_path`: `fixed`, a path (with a slash or ending in .so), or a name, for which the
// first <family>_<name>.so in `directories` is taken. For an unknown name, returns null and an error that lists the
// known names.
std::shared_ptr<const Library> find(Family family, const std::string& name_or_path,
                                    const std::vector<std::string>& directories, std::string* error) noexcept;

}  // namespace weft::policy
