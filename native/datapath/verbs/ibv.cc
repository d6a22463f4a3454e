// Loads libibverbs.so.1 and keeps it: providers start threads and hold handlers, so that it is never unloaded.
// Calls nothing of it.
#include "native/datapath/verbs/ibv.h"

#include <dlfcn.h>

#include <mutex>

namespace weft::datapath {
namespace {

template <class Function>
bool find(void* library, const char* name, Function* out, std::string* error) {
  *out = reinterpret_cast<Function>(::dlsym(library, name));
  if (*out == nullptr) *error = std::string("libibverbs lacks ") + name + ": install a current rdma-core";
  return *out != nullptr;
}

bool load(Ibv* out, std::string* error) {
  void* library = ::dlopen("libibverbs.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    *error = "libibverbs is not installed: apt-get install libibverbs1 ibverbs-providers";
    return false;
  }
#define WEFT_IBV_FIND(name) \
  if (!find(library, "ibv_" #name, &out->name, error)) return false;
  WEFT_IBV_FUNCTIONS(WEFT_IBV_FIND)
#undef WEFT_IBV_FIND
  std::string unused;
  static_cast<void>(find(library, "ibv_reg_mr_iova2", &out->reg_mr_iova2, &unused));
  static_cast<void>(find(library, "ibv_reg_dmabuf_mr", &out->reg_dmabuf_mr, &unused));
  return find(library, "ibv_reg_mr", &out->reg_mr, error) && find(library, "ibv_query_port", &out->query_port, error);
}

}  // namespace

const Ibv* load_ibv(std::string* error) {
  static Ibv table;
  static std::string problem;
  static std::once_flag once;
  static bool loaded = false;
  std::call_once(once, [] { loaded = load(&table, &problem); });
  if (!loaded) *error = problem;
  return loaded ? &table : nullptr;
}

}  // namespace weft::datapath
