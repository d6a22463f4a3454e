// Loads libibverbs or a replacement. Libraries are never unloaded, because providers start threads and register
// handlers.
#include "native/datapath/verbs/ibv.h"

#include <dlfcn.h>

#include <map>
#include <mutex>
#include <string>

#include "native/files/trusted_file.h"

namespace weft::datapath {
namespace {

template <class Function>
bool find(void* library, const char* name, Function* out, std::string* error) {
  *out = reinterpret_cast<Function>(::dlsym(library, name));
  if (*out == nullptr) *error = std::string("the RDMA library lacks ") + name + ": install a current rdma-core";
  return *out != nullptr;
}

bool introduce(void* library, Ibv* out, std::string* error) {
  using Introduction = const char* (*)(const char** problem);
  const auto say = reinterpret_cast<Introduction>(::dlsym(library, "weft_software_provider"));
  if (say == nullptr) return true;
  const char* problem = nullptr;
  const char* said = say(&problem);
  if (said == nullptr) {
    *error = problem;
    return false;
  }
  out->software = said;
  return true;
}

bool load(const std::string& name, Ibv* out, std::string* error) {
  const std::string file = name.empty() ? "libibverbs.so.1" : name;
  std::string path = file;  // without a slash, dlopen searches the system's directories
  if (file.find('/') != std::string::npos && !files::check_library(file, &path, error)) {
    *error = "the RDMA library " + file + " is not used: " + *error;
    return false;
  }
  void* library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    *error = name.empty()
                 ? "libibverbs is not installed: apt-get install libibverbs1 ibverbs-providers"
                 : std::string(::dlerror()) + "; WEFT_RDMA_LIBRARY must name the file of a library like libibverbs";
    return false;
  }
#define WEFT_IBV_FIND(name) \
  if (!find(library, "ibv_" #name, &out->name, error)) return false;
  WEFT_IBV_FUNCTIONS(WEFT_IBV_FIND)
#undef WEFT_IBV_FIND
  std::string unused;
  static_cast<void>(find(library, "ibv_reg_mr_iova2", &out->reg_mr_iova2, &unused));
  static_cast<void>(find(library, "ibv_reg_dmabuf_mr", &out->reg_dmabuf_mr, &unused));
  return introduce(library, out, error);
}

}  // namespace

const Ibv* load_ibv(const std::string& name, std::string* error) {
  struct Loaded {
    Ibv table;
    std::string problem;
    bool usable = false;
  };
  static std::mutex mutex;
  static auto* const all = new std::map<std::string, Loaded>();  // never destroyed, like the libraries it lists
  const std::lock_guard lock(mutex);
  const auto [entry, fresh] = all->try_emplace(name);
  Loaded& loaded = entry->second;
  if (fresh) {
    loaded.usable = load(name, &loaded.table, &loaded.problem);
    if (!name.empty()) loaded.problem.insert(0, "WEFT_RDMA_LIBRARY=" + name + ": ");
  }
  if (!loaded.usable) *error = loaded.problem;
  return loaded.usable ? &loaded.table : nullptr;
}

}  // namespace weft::datapath
