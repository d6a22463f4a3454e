// Implements completion queues, their event channels, and asynchronous device events. Completions stay in order. A
// queue that has overflowed stays in error, as on a NIC.
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "tests/softverbs/native/adapter.h"

namespace weft::softverbs {
namespace {

void add_one(int descriptor) {
  const std::uint64_t one = 1;
  static_cast<void>(!::write(descriptor, &one, sizeof one));
}

}  // namespace

int Adapter::poll(Cq* queue, int most, ibv_wc* out) {
  if (queue->count.load(std::memory_order_acquire) == 0) return 0;
  const std::lock_guard lock(mutex);
  if (queue->overrun) return -EIO;
  int taken = 0;
  for (; taken < most && !queue->done.empty(); ++taken) {
    out[taken] = queue->done.front();
    queue->done.pop_front();
  }
  queue->count.store(queue->done.size(), std::memory_order_release);
  return taken;
}

void Adapter::ring(Cq* queue) {
  queue->armed = false;
  if (queue->bell == nullptr) return;
  queue->bell->rung.push_back(queue);
  add_one(queue->bell->fd);
}

void Adapter::complete(Cq* queue, const ibv_wc& done, bool solicited) {
  if (queue->overrun) return;
  if (queue->done.size() >= queue->most) {
    queue->overrun = true;
    raise(static_cast<Context*>(queue->context), IBV_EVENT_CQ_ERR, nullptr, queue);
    return;
  }
  queue->done.push_back(done);
  queue->count.store(queue->done.size(), std::memory_order_release);
  if (queue->armed && (!queue->solicited_only || solicited || done.status != IBV_WC_SUCCESS)) ring(queue);
}

// Discards a queue pair's completions that were not polled yet.
void Adapter::forget(Cq* queue, std::uint32_t pair) {
  std::erase_if(queue->done, [pair](const ibv_wc& done) { return done.qp_num == pair; });
  queue->count.store(queue->done.size(), std::memory_order_release);
}

void Adapter::raise(Context* context, ibv_event_type type, Qp* pair, Cq* queue) {
  ibv_async_event event{};
  event.event_type = type;
  if (pair != nullptr) event.element.qp = pair;
  if (queue != nullptr) event.element.cq = queue;
  context->events.push_back(event);
  add_one(context->async_fd);
}

}  // namespace weft::softverbs
