// dladdr tells where this code was loaded from: the extension, the plugin or a test.
// A name that means nothing is an error that lists what exists; nothing falls back in silence.
#include "native/engine/policy_choice.h"

#include <dlfcn.h>

namespace weft::engine {

std::vector<std::string> policy_directories(const Knobs& knobs) {
  std::vector<std::string> directories;
  if (!knobs.policy_directory.empty()) directories.push_back(knobs.policy_directory);
  Dl_info here{};
  if (::dladdr(reinterpret_cast<const void*>(&policy_directories), &here) != 0 && here.dli_fname != nullptr) {
    const std::string file = here.dli_fname;
    const std::size_t slash = file.rfind('/');
    const std::string directory = slash == std::string::npos ? "." : file.substr(0, slash);
    directories.push_back(directory + "/policies");
    directories.push_back(directory + "/../policies");
  }
  return directories;
}

bool choose_policies(const Knobs& knobs, PolicySet* out, std::string* error) {
  const std::vector<std::string> directories = policy_directories(knobs);
  const auto choose = [&](policy::Family family, const std::string& name, core::PolicyChoice* choice) {
    std::shared_ptr<const policy::Library> library = policy::find(family, name, directories, error);
    if (library == nullptr) return false;
    choice->descriptor = &library->descriptor();
    out->libraries.push_back(std::move(library));
    return true;
  };
  return choose(policy::Family::window, knobs.window_policy, &out->window) &&
         choose(policy::Family::path, knobs.path_policy, &out->path) &&
         choose(policy::Family::loss, knobs.loss_policy, &out->loss) &&
         (knobs.credit_policy == "none" || choose(policy::Family::credit, knobs.credit_policy, &out->credit));
}

}  // namespace weft::engine
