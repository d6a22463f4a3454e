// Loads libcuda, keeps it loaded, and formats its error codes.
#include "native/gpu/driver.h"

#include <dlfcn.h>

#include <map>
#include <mutex>
#include <utility>

namespace weft::gpu {
namespace {

bool load(const char* path, Driver* out, std::string* error) {
  void* library = ::dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    *error =
        std::string("no ") + path + " on this host: device memory needs the NVIDIA driver (host memory needs none)";
    return false;
  }
  const char* missing = nullptr;
#define WEFT_CUDA_FIND(name, symbol, parameters)                               \
  out->name = reinterpret_cast<decltype(out->name)>(::dlsym(library, symbol)); \
  if (out->name == nullptr) missing = symbol;
  WEFT_CUDA_FUNCTIONS(WEFT_CUDA_FIND)
#undef WEFT_CUDA_FIND
  if (missing != nullptr) {
    *error = std::string(path) + " lacks " + missing + ": install a current NVIDIA driver";
    return false;
  }
  int devices = 0;
  Result result = out->init(0);
  if (result != kSuccess && result != kNoDevice) {
    *error = out->say("cuInit", result) + ": check nvidia-smi";
    return false;
  }
  if (result == kSuccess && (result = out->device_count(&devices)) != kSuccess) {
    *error = out->say("cuDeviceGetCount", result);
    return false;
  }
  if (devices == 0) *error = "the NVIDIA driver finds no device: check nvidia-smi and CUDA_VISIBLE_DEVICES";
  return devices != 0;
}

}  // namespace

std::string Driver::say(const char* symbol, Result result) const {
  const char *name = nullptr, *words = nullptr;
  const bool known = error_name(result, &name) == kSuccess && error_string(result, &words) == kSuccess;
  const std::string what = known && name != nullptr && words != nullptr ? std::string(name) + ", " + words
                                                                        : "error " + std::to_string(result);
  return std::string(symbol) + ": " + what;
}

const Driver* load_driver(const char* path, std::string* error) {
  struct Loaded {
    Driver driver;
    std::string problem;
    bool usable = false;
  };
  static std::mutex mutex;
  static auto* const all = new std::map<std::string, Loaded>();  // never destroyed, like the libraries it lists
  const std::lock_guard lock(mutex);
  const auto [entry, fresh] = all->try_emplace(path);
  Loaded& loaded = entry->second;
  if (fresh) loaded.usable = load(path, &loaded.driver, &loaded.problem);
  if (!loaded.usable) *error = loaded.problem;
  return loaded.usable ? &loaded.driver : nullptr;
}

}  // namespace weft::gpu
