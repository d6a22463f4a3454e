// Calls any version of the plugin's tables in a uniform way, for the host program. It uses only the
// ABI headers, and dlopens the library as NCCL does.
#pragma once

#include <dlfcn.h>

#include <atomic>
#include <chrono>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#include "native/plugin/abi_v10.h"
#include "native/plugin/abi_v11.h"
#include "native/plugin/abi_v12.h"
#include "native/plugin/abi_v6.h"
#include "native/plugin/abi_v7.h"
#include "native/plugin/abi_v8.h"
#include "native/plugin/abi_v9.h"
#include "native/plugin/profiler/net_message.h"

namespace host {

using weft::nccl::DeviceHandle;
using weft::nccl::Result;

// Number of communicators between init and finalize. While there is none the plugin must not log, because NCCL may have
// unloaded its logger. Up to v10 there is no finalize.
inline std::atomic<int> communicators{0};

[[noreturn]] inline void fail(const char* file, int line, const char* what);

inline void log(int level, unsigned long, const char*, int, const char* format, ...) {
  if (communicators <= 0) fail(__FILE__, __LINE__, "a line after the last finalize");
  va_list arguments;
  va_start(arguments, format);
  char text[4096];
  std::vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  std::fprintf(stderr, "log %d %s\n", level, text);
}

[[noreturn]] inline void fail(const char* file, int line, const char* what) {
  std::fprintf(stderr, "%s:%d: not true: %s\n", file, line, what);
  std::_Exit(1);
}
#define REQUIRE(condition)                                          \
  do {                                                              \
    if (!(condition)) ::host::fail(__FILE__, __LINE__, #condition); \
  } while (false)

using Clock = std::chrono::steady_clock;
// Time limits of calls: a call that blocks would stop all connections of NCCL's proxy thread, and could not be aborted.
// The limits only detect a hang; a busy machine stays far below them.
inline constexpr auto kPollBound = std::chrono::seconds(30);
inline constexpr auto kSetupBound = std::chrono::seconds(30);
// Whether calls have time limits. False in a process that will be stopped, because the stop counts as time of a call.
inline std::atomic<bool> bounded{true};

// Runs one call of the plugin. It must return in time, and not with "in progress", which NCCL
// treats as success.
template <typename Call>
Result called(const char* name, std::chrono::seconds bound, Call&& call) {
  const auto begin = Clock::now();
  const Result result = call();
  if (bounded && Clock::now() - begin > bound) fail(__FILE__, __LINE__, name);
  REQUIRE(result != Result::in_progress);
  return result;
}

// The trafficClass that NCCL would pass for the communicator; -1: undefined.
inline int traffic_class() {
  const char* given = std::getenv("HOST_TRAFFIC_CLASS");
  return given == nullptr ? -1 : std::atoi(given);
}

// NCCL's profiler callback. A start without a parent or a stop without an event would crash NCCL, and so would any
// call after the connections are closed.
inline std::atomic<bool> profiler_open{true};
inline constexpr std::uint32_t kProfiledChannel = 77;
inline Result profile(void** event, int type, void* parent, std::int64_t plugin_id, void* data) {
  constexpr int start = 0;
  REQUIRE(profiler_open && event != nullptr);
  REQUIRE(type == start ? parent != nullptr : *event != nullptr);
  if (type == start && plugin_id == weft::nccl::kNetPluginId) {
    static_cast<weft::nccl::NetMessage*>(data)->channel = kProfiledChannel;
    *event = parent;
  }
  return Result::success;
}

struct Facts {
  std::string name;
  std::uint64_t guid = 0;
  int pointer_support = 0;
  int speed_mbps = 0;
  int receives_max = 0;
  int registration_is_global = -1;  // 0 where the version has no such field
  int net_device_type = -1;         // 0 (host) where the version has no such field
};

// The tag of sends and receives whose tags do not matter.
inline constexpr int kTag = 7;

// One buffer of a grouped receive.
struct Place {
  void* data = nullptr;
  std::size_t bytes = 0;
  int tag = 0;
  void* mhandle = nullptr;
};

class Net {
 public:
  virtual ~Net() = default;
  virtual const char* name() = 0;
  virtual Result init(void** context) = 0;
  virtual Result finalize(void* context) = 0;  // success if this version has no finalize
  virtual bool has_finalize() = 0;
  virtual Result devices(int* count) = 0;
  virtual Result properties(int device, Facts* facts) = 0;
  // The properties struct after the plugin filled it; before the call every byte is `garbage`.
  virtual std::vector<unsigned char> raw_properties(int device, int garbage) = 0;
  virtual Result listen(void* context, int device, void* handle, void** comm) = 0;
  virtual Result connect(void* context, int device, void* handle, void** comm) = 0;
  virtual Result accept(void* listen_comm, void** comm) = 0;
  virtual Result reg(void* comm, void* data, std::size_t bytes, void** mhandle) = 0;
  virtual Result reg_cuda(void* comm, void* data, std::size_t bytes, void** mhandle) = 0;
  virtual Result dereg(void* comm, void* mhandle) = 0;
  virtual Result isend(void* comm, void* data, std::size_t bytes, void* mhandle, void** request, int tag) = 0;
  Result isend(void* comm, void* data, std::size_t bytes, void* mhandle, void** request) {
    return isend(comm, data, bytes, mhandle, request, kTag);
  }
  virtual Result irecv(void* comm, void* data, std::size_t bytes, void* mhandle, void** request) = 0;
  virtual Result irecv_count(void* comm, int count, void** request) = 0;
  // A receive of several buffers, each for the send with its tag.
  virtual Result irecv_group(void* comm, std::vector<Place>* places, void** request) = 0;
  virtual Result iflush(void* comm, void** request) = 0;
  virtual Result test(void* request, int* done, int* sizes) = 0;
  virtual Result close_send(void* comm) = 0;
  virtual Result close_receive(void* comm) = 0;
  virtual Result close_listen(void* comm) = 0;

  void* parent = nullptr;  // passed to isend and irecv for the profiler, from version 10 on
};

template <typename Abi, typename Properties, int version>
class NetOf final : public Net {
 public:
  explicit NetOf(Abi* abi) : abi_(abi) {
    // A plugin for host memory leaves these functions null, and NCCL checks for null.
    REQUIRE(abi->reg_mr_dma_buf == nullptr);
    if constexpr (version >= 7) REQUIRE(abi->get_device_mr == nullptr && abi->irecv_consumed == nullptr);
    if constexpr (version >= 9) REQUIRE(abi->make_virtual_device == nullptr);
    if constexpr (version >= 11) REQUIRE(abi->set_attributes == nullptr);
  }

  const char* name() override { return abi_->name; }

  Result init(void** context) override {
    *context = nullptr;
    return called("init", kSetupBound, [&] {
      if constexpr (version >= 11) {
        weft::nccl::CommConfig config{traffic_class()};
        return abi_->init(context, 42, &config, log, profile);
      } else if constexpr (version == 10) {
        return abi_->init(log, profile);
      } else {
        return abi_->init(log);
      }
    });
  }
  Result finalize(void* context) override {
    return called("finalize", kSetupBound, [&] {
      if constexpr (version >= 11) return abi_->finalize(context);
      return Result::success;
    });
  }
  bool has_finalize() override { return version >= 11; }
  Result devices(int* count) override {
    return called("devices", kPollBound, [&] { return abi_->devices(count); });
  }

  Result properties(int device, Facts* facts) override {
    Properties raw;
    std::memset(static_cast<void*>(&raw), 0xAA, sizeof raw);  // NCCL does not initialise it
    const Result result = called("getProperties", kPollBound, [&] { return abi_->get_properties(device, &raw); });
    if (result != Result::success) return result;
    *facts = {raw.name, raw.guid, raw.pointer_support, raw.speed_mbps, raw.receives_max, 0, 0};
    REQUIRE(raw.pci_path == nullptr || raw.pci_path[0] == '/');
    REQUIRE(raw.port == 0 && raw.comms_max > 0);
    if constexpr (version >= 7) {
      facts->net_device_type = raw.net_device_type;
      REQUIRE(raw.net_device_version == 0);
    }
    if constexpr (version >= 8) facts->registration_is_global = raw.registration_is_global;
    REQUIRE(raw.latency_us >= 0.0F && raw.latency_us < 1e6F);
    if constexpr (version >= 9) {
      REQUIRE(raw.force_flush == 0);
      REQUIRE(raw.virtual_properties.ndevs == 1 && raw.virtual_properties.devs[0] == device);
      REQUIRE(raw.p2p_bytes_max > 0 && raw.p2p_bytes_max <= std::size_t{1} << 40);
    }
    if constexpr (version >= 11) REQUIRE(raw.multi_request_size_max == 1);
    if constexpr (version >= 12) REQUIRE(raw.rail_id == -1 && raw.plane_id == -1);
    return result;
  }
  std::vector<unsigned char> raw_properties(int device, int garbage) override {
    Properties raw;
    std::memset(static_cast<void*>(&raw), garbage, sizeof raw);
    REQUIRE(abi_->get_properties(device, &raw) == Result::success);
    const auto* const bytes = reinterpret_cast<const unsigned char*>(&raw);
    return {bytes, bytes + sizeof raw};
  }

  Result listen(void* context, int device, void* handle, void** comm) override {
    return called("listen", kSetupBound, [&] {
      if constexpr (version >= 11)
        return abi_->listen(context, device, handle, comm);
      else
        return abi_->listen(device, handle, comm);
    });
  }
  Result connect(void* context, int device, void* handle, void** comm) override {
    auto* device_comm = reinterpret_cast<DeviceHandle*>(0x10);
    const Result result = called("connect", kPollBound, [&] {
      if constexpr (version >= 11) {
        return abi_->connect(context, device, handle, comm, &device_comm);
      } else if constexpr (version == 10) {
        weft::nccl::CommConfig config{traffic_class()};
        return abi_->connect(device, &config, handle, comm, &device_comm);
      } else if constexpr (version >= 7) {
        return abi_->connect(device, handle, comm, &device_comm);
      } else {
        return abi_->connect(device, handle, comm);
      }
    });
    if (version >= 7 && result == Result::success) REQUIRE(device_comm == nullptr);
    return result;
  }
  Result accept(void* listen_comm, void** comm) override {
    auto* device_comm = reinterpret_cast<DeviceHandle*>(0x10);
    const Result result = called("accept", kPollBound, [&] {
      if constexpr (version >= 7)
        return abi_->accept(listen_comm, comm, &device_comm);
      else
        return abi_->accept(listen_comm, comm);
    });
    if (version >= 7 && result == Result::success) REQUIRE(device_comm == nullptr);
    return result;
  }
  Result reg(void* comm, void* data, std::size_t bytes, void** mhandle) override {
    return called("regMr", kSetupBound, [&] {
      return abi_->reg_mr(comm, data, static_cast<RegisteredBytes>(bytes), weft::nccl::kPointerHost, mhandle);
    });
  }
  Result reg_cuda(void* comm, void* data, std::size_t bytes, void** mhandle) override {
    return abi_->reg_mr(comm, data, static_cast<RegisteredBytes>(bytes), weft::nccl::kPointerCuda, mhandle);
  }
  Result dereg(void* comm, void* mhandle) override {
    return called("deregMr", kSetupBound, [&] { return abi_->dereg_mr(comm, mhandle); });
  }

  using Net::isend;
  Result isend(void* comm, void* data, std::size_t bytes, void* mhandle, void** request, int tag) override {
    return called("isend", kPollBound, [&] {
      if constexpr (version >= 10)
        return abi_->isend(comm, data, bytes, tag, mhandle, parent, request);
      else if constexpr (version == 9)
        return abi_->isend(comm, data, bytes, tag, mhandle, request);
      else
        return abi_->isend(comm, data, static_cast<int>(bytes), tag, mhandle, request);
    });
  }
  Result irecv(void* comm, void* data, std::size_t bytes, void* mhandle, void** request) override {
    int tag = kTag;
    return called("irecv", kPollBound, [&] {
      if constexpr (version >= 10) {
        return abi_->irecv(comm, 1, &data, &bytes, &tag, &mhandle, parent == nullptr ? nullptr : &parent, request);
      } else if constexpr (version == 9) {
        return abi_->irecv(comm, 1, &data, &bytes, &tag, &mhandle, request);
      } else {
        int bytes32 = static_cast<int>(bytes);
        return abi_->irecv(comm, 1, &data, &bytes32, &tag, &mhandle, request);
      }
    });
  }
  Result irecv_count(void* comm, int count, void** request) override {
    void* data[2] = {};
    std::size_t sizes[2] = {};
    int tags[2] = {};
    void* mhandles[2] = {};
    if constexpr (version >= 10)
      return abi_->irecv(comm, count, data, sizes, tags, mhandles, nullptr, request);
    else if constexpr (version == 9)
      return abi_->irecv(comm, count, data, sizes, tags, mhandles, request);
    else
      return abi_->irecv(comm, count, data, tags, tags, mhandles, request);
  }
  Result irecv_group(void* comm, std::vector<Place>* places, void** request) override {
    using Size = std::conditional_t<(version >= 9), std::size_t, int>;
    std::vector<void*> data, mhandles;
    std::vector<Size> sizes;
    std::vector<int> tags;
    for (const Place& place : *places) {
      data.push_back(place.data);
      mhandles.push_back(place.mhandle);
      sizes.push_back(static_cast<Size>(place.bytes));
      tags.push_back(place.tag);
    }
    const auto count = static_cast<int>(places->size());
    return called("irecv", kPollBound, [&] {
      if constexpr (version >= 10) {
        std::vector<void*> parents(places->size(), parent);
        return abi_->irecv(comm, count, data.data(), sizes.data(), tags.data(), mhandles.data(),
                           parent == nullptr ? nullptr : parents.data(), request);
      } else {
        return abi_->irecv(comm, count, data.data(), sizes.data(), tags.data(), mhandles.data(), request);
      }
    });
  }
  Result iflush(void* comm, void** request) override {
    void* data = nullptr;
    int size = 8;
    void* mhandle = nullptr;
    return called("iflush", kPollBound, [&] { return abi_->iflush(comm, 1, &data, &size, &mhandle, request); });
  }
  Result test(void* request, int* done, int* sizes) override {
    return called("test", kPollBound, [&] { return abi_->test(request, done, sizes); });
  }
  Result close_send(void* comm) override {
    return called("closeSend", kSetupBound, [&] { return abi_->close_send(comm); });
  }
  Result close_receive(void* comm) override {
    return called("closeRecv", kSetupBound, [&] { return abi_->close_receive(comm); });
  }
  Result close_listen(void* comm) override {
    return called("closeListen", kSetupBound, [&] { return abi_->close_listen(comm); });
  }

 private:
  using RegisteredBytes = std::conditional_t<(version >= 8), std::size_t, int>;
  Abi* abi_;
};

inline void* library = nullptr;  // the library opened by the last load()

// Opens the library as NCCL does and leaves it open.
inline std::unique_ptr<Net> load(const char* path, int version) {
  library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    std::fprintf(stderr, "%s\n", dlerror());
    std::_Exit(1);
  }
  void* table = dlsym(library, ("ncclNetPlugin_v" + std::to_string(version)).c_str());
  REQUIRE(table != nullptr);
  using namespace weft::nccl;
  switch (version) {
    case 6:
      return std::make_unique<NetOf<v6::Net, v6::Properties, 6>>(static_cast<v6::Net*>(table));
    case 7:
      return std::make_unique<NetOf<v7::Net, v7::Properties, 7>>(static_cast<v7::Net*>(table));
    case 8:
      return std::make_unique<NetOf<v8::Net, v8::Properties, 8>>(static_cast<v8::Net*>(table));
    case 9:
      return std::make_unique<NetOf<v9::Net, v9::Properties, 9>>(static_cast<v9::Net*>(table));
    case 10:
      return std::make_unique<NetOf<v10::Net, v10::Properties, 10>>(static_cast<v10::Net*>(table));
    case 11:
      return std::make_unique<NetOf<v11::Net, v11::Properties, 11>>(static_cast<v11::Net*>(table));
    case 12:
      return std::make_unique<NetOf<v12::Net, v12::Properties, 12>>(static_cast<v12::Net*>(table));
    default:
      std::_Exit(2);
  }
}

}  // namespace host
