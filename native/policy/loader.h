// Finds the library that a policy's name means, and checks that it may run here.
// Throws nothing and calls no hook.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "native/policy/policy.h"

namespace weft::policy {

// A policy library in this process, checked against the records this build was compiled with. Unloaded with its last
// owner: keep it until every engine has passed a quiet point.
class Library {
 public:
  // Null, with `error` set, when the file cannot be loaded or does not fit.
  static std::shared_ptr<const Library> load(const std::string& path, std::string* error) noexcept;

  // Of a descriptor that is linked in and always there.
  static std::shared_ptr<const Library> linked_in(const Descriptor& descriptor) noexcept;

  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;
  ~Library();

  const Descriptor& descriptor() const noexcept { return *descriptor_; }

 private:
  Library(void* handle, const Descriptor* descriptor) noexcept : handle_(handle), descriptor_(descriptor) {}

  void* handle_;  // null when linked in
  const Descriptor* descriptor_;
};

// The always-safe policy of a family.
const Descriptor& fixed(Family family) noexcept;

// "window", "credit", "path" or "loss".
const char* family_name(Family family) noexcept;

// "on_ack": the name of a place in Descriptor::hooks.
const char* hook_name(Family family, std::size_t hook) noexcept;

// "the window policy 'mine' failed in on_ack".
std::string failure_text(Family family, const char* name, std::size_t hook);

// What is wrong with a descriptor, in words; empty when it can be used.
std::string complaint(const Descriptor& descriptor);

// Among directories: the policies that are linked in.
inline constexpr const char* kLinkedIn = "";

// `fixed`, a path (it holds a slash or ends in .so), or the first <family>_<name>.so in `directories`.
// An unknown name gives null and an error that lists what there is.
std::shared_ptr<const Library> find(Family family, const std::string& name_or_path,
                                    const std::vector<std::string>& directories, std::string* error) noexcept;

}  // namespace weft::policy
