// Uses memory windows of type 1. They belong to the protection domain, so the queue pair of every path may write
// through them (InfiniBand Architecture Specification 1.4, 10.6.7). Binding a window to length zero closes it. If the
// NIC does not complete this binding, the window is deallocated; that call waits for the NIC.
#include "native/datapath/verbs/memory_windows.h"

#include <cerrno>
#include <cstring>
#include <new>

#include "native/datapath/clock.h"

namespace weft::datapath {
namespace {

constexpr int kAnswers = 16;
constexpr std::size_t kIdleMax = 1024;
constexpr std::uint32_t kBindings = 16;
// How long to wait for a binding: a NIC takes microseconds, an emulated NIC milliseconds.
constexpr std::int64_t kAnswerNsMax = 100'000'000;

}  // namespace

bool MemoryWindowPool::start(const Ibv* ibv, ibv_pd* pd, const QpTraits& traits, const ibv_gid& gid, std::uint16_t lid,
                             std::string* error) {
  ibv_ = ibv;
  pd_ = pd;
  answers_ = ibv->create_cq(pd->context, kAnswers, nullptr, nullptr, 0);
  QueuePair::Plan plan;
  plan.type = IBV_QPT_RC;
  plan.pd = pd;
  plan.send_cq = plan.receive_cq = answers_;
  plan.sends = kBindings;
  traits_ = traits;
  itself_.gid = gid;
  itself_.lid = lid;
  bool made = answers_ != nullptr && keeper_.make(ibv, plan, error);
  itself_.number = keeper_.number();
  made = made && keeper_.join(traits_, itself_, 0, error);
  ibv_mw* first = made ? ibv_alloc_mw(pd, IBV_MW_TYPE_1) : nullptr;
  if (first == nullptr) {
    if (error->empty()) *error = std::string("cannot allocate a memory window: ") + std::strerror(errno);
    shut();
    return false;
  }
  idle_.reserve(kIdleMax);
  idle_.push_back({first, nullptr, 0});
  return true;
}

void MemoryWindowPool::shut() noexcept {
  for (auto& [key, window] : open_) give_up(&window);
  for (Window& window : idle_) give_up(&window);
  open_.clear();
  idle_.clear();
  keeper_.reset();
  if (answers_ != nullptr) static_cast<void>(ibv_->destroy_cq(answers_));
  answers_ = nullptr;
}

void MemoryWindowPool::give_up(Window* window) noexcept { static_cast<void>(ibv_dealloc_mw(window->window)); }

// Posts a binding and waits for its completion. Late completions of earlier bindings are skipped.
bool MemoryWindowPool::bind(Window* window, std::uint8_t* data, std::uint64_t bytes) noexcept {
  ibv_mw_bind binding{};
  binding.wr_id = ++asked_;
  binding.send_flags = IBV_SEND_SIGNALED;
  // The region is set even for length zero, because providers use it.
  binding.bind_info.mr = window->region;
  binding.bind_info.addr = bytes == 0 ? 0 : reinterpret_cast<std::uintptr_t>(data);
  binding.bind_info.length = bytes;
  binding.bind_info.mw_access_flags = bytes == 0 ? 0 : IBV_ACCESS_REMOTE_WRITE;
  if (ibv_bind_mw(keeper_.get(), window->window, &binding) != 0) return false;
  const std::int64_t until_ns = now_ns() + kAnswerNsMax;
  ibv_wc answer{};
  do {
    if (ibv_poll_cq(answers_, 1, &answer) == 1 && answer.wr_id == asked_) return answer.status == IBV_WC_SUCCESS;
  } while (now_ns() < until_ns);
  return false;
}

// Re-establishes the queue pair for bindings, which a failed binding leaves in error. If that fails, no more windows
// are opened.
void MemoryWindowPool::revive() noexcept {
  std::string unused;
  if (!keeper_.to_reset() || !keeper_.join(traits_, itself_, 0, &unused)) keeper_.reset();
}

std::uint32_t MemoryWindowPool::open(ibv_mr* region, std::uint8_t* data, std::uint64_t bytes) noexcept {
  if (!started()) return 0;
  Window window;
  if (!idle_.empty()) {
    window = idle_.back();
    idle_.pop_back();
  } else {
    window.window = ibv_alloc_mw(pd_, IBV_MW_TYPE_1);
    if (window.window == nullptr) return 0;
  }
  window.region = region;
  ++window.uses;
  const bool bound = bind(&window, data, bytes);
  const std::uint32_t key = window.window->rkey;
  bool kept = false;
  try {
    kept = bound && key != 0 && open_.try_emplace(key, window).second;
  } catch (const std::bad_alloc&) {
  }
  if (!kept) give_up(&window);
  if (!bound) revive();
  return kept ? key : 0;
}

void MemoryWindowPool::close(std::uint32_t key) noexcept {
  const auto found = open_.find(key);
  if (found == open_.end()) return;
  Window window = found->second;
  open_.erase(found);
  const bool closed = started() && bind(&window, nullptr, 0);
  window.region = nullptr;
  if (closed && window.uses < kUsesMax && idle_.size() < idle_.capacity()) {
    idle_.push_back(window);
  } else {
    give_up(&window);
  }
  if (!closed && started()) revive();
}

void MemoryWindowPool::close_onto(const ibv_mr* region) noexcept {
  for (auto window = open_.begin(); window != open_.end();) {
    const std::uint32_t key = window->first;
    const bool onto = window->second.region == region;
    ++window;
    if (onto) close(key);
  }
}

}  // namespace weft::datapath
