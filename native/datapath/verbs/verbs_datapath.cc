// Opens and closes the datapath, and sleeps. A port is opened when a link first needs it and stays open. Before
// sleeping, the completion queues are armed and then polled once more, because a completion that arrives before the
// arming raises no event.
#include "native/datapath/verbs/verbs_datapath.h"

#include <poll.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace weft::datapath {

VerbsDatapath::VerbsDatapath(const VerbsOptions& options, const Ibv* library)
    : ibv_(library), options_(options), faults_(options.faults), random_(options.faults.seed | 1) {}

VerbsDatapath::~VerbsDatapath() {
  // Closes links first: their queue pairs must be destroyed before the objects that they refer to.
  for (std::uint32_t peer = 0; peer < links_.size(); ++peer) close_link(peer);
  shared_.clear();
  for (const auto& port : ports_) port->windows.shut();
  while (!memories_.empty()) remove_memory(memories_.begin()->first);
  ports_.clear();
  if (epoll_ >= 0) ::close(epoll_);
}

bool VerbsDatapath::open(std::string* error) {
  if (ibv_ == nullptr) ibv_ = load_ibv(options_.library, error);
  if (ibv_ == nullptr) return false;
  epoll_ = ::epoll_create1(EPOLL_CLOEXEC);
  if (epoll_ < 0) {
    *error = std::string("cannot create an epoll instance: ") + std::strerror(errno);
    return false;
  }
  records_.reset(options_.slots);
  return true;
}

bool VerbsDatapath::watch(int descriptor) {
  epoll_event event{};
  event.events = EPOLLIN;
  return ::epoll_ctl(epoll_, EPOLL_CTL_ADD, descriptor, &event) == 0;
}

void VerbsDatapath::wait(std::int64_t timeout_ns) {
  bool idle = reestablishments_.empty();
  for (const auto& port : ports_) {
    ibv_cq* queue = nullptr;
    void* unused = nullptr;
    unsigned events[2] = {0, 0};
    while (ibv_->get_cq_event(port->channel, &queue, &unused) == 0) ++events[queue == port->control_cq ? 1 : 0];
    if (events[0] != 0) ibv_->ack_cq_events(port->data_cq, events[0]);
    if (events[1] != 0) ibv_->ack_cq_events(port->control_cq, events[1]);
    idle = port->arm() && idle;
    port->keep_received();
    idle = idle && port->kept_data.empty() && port->kept_control.empty();
    take_async(port.get());
  }
  if (!idle) return;
  pollfd descriptor{epoll_, POLLIN, 0};
  const timespec timeout{timeout_ns / 1'000'000'000, timeout_ns % 1'000'000'000};
  ::ppoll(&descriptor, 1, timeout_ns < 0 ? nullptr : &timeout, nullptr);
}

}  // namespace weft::datapath
