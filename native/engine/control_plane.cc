// The control thread: one epoll over listening sockets, channels and a doorbell, woken at least every 20 ms while
// something has a deadline. Sockets are in control_sockets.cc, the conversation in control_handshake.cc.
#include "native/engine/control_plane.h"

#include <pthread.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <sstream>

#include "native/engine/clock.h"
#include "native/engine/log.h"

namespace weft::engine {

ControlPlane::ControlPlane(const Knobs* knobs, std::vector<std::unique_ptr<Engine>>* engines,
                           const std::vector<DeviceState>* devices, Notifier* notifier)
    : knobs_(knobs),
      engines_(engines),
      devices_(devices),
      notifier_(notifier),
      setup_(knobs, engines, devices),
      node_(random_token()) {}

ControlPlane::~ControlPlane() {
  stop();
  for (const auto& [descriptor, device] : listening_) ::close(descriptor);
  if (doorbell_ >= 0) ::close(doorbell_);
  if (epoll_ >= 0) ::close(epoll_);
}

Status ControlPlane::start(std::string* error) {
  if (!knobs_->secret_file.empty()) {
    std::ifstream file(knobs_->secret_file, std::ios::binary);
    std::stringstream content;
    content << file.rdbuf();
    secret_ = content.str();
    while (!secret_.empty() && (secret_.back() == '\n' || secret_.back() == '\r')) secret_.pop_back();
    if (!file || secret_.empty()) {
      *error = "WEFT_SECRET_FILE=" + knobs_->secret_file + " cannot be read or is empty";
      return Status::invalid_argument;
    }
  }
  epoll_ = ::epoll_create1(EPOLL_CLOEXEC);
  doorbell_ = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (epoll_ < 0 || doorbell_ < 0) {
    *error =
        std::string("no descriptor for the control plane: ") + std::strerror(errno) + "; raise the limit (ulimit -n)";
    return Status::out_of_descriptors;
  }
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.fd = doorbell_;
  ::epoll_ctl(epoll_, EPOLL_CTL_ADD, doorbell_, &event);
  sigset_t all, before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  try {
    thread_ = std::thread([this] { run(); });
    ::pthread_setname_np(thread_.native_handle(), "weft-control");
  } catch (const std::exception& problem) {
    *error = std::string("no thread for the control plane: ") + problem.what();
  }
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return thread_.joinable() ? Status::ok : Status::system_error;
}

void ControlPlane::stop() noexcept {
  if (!thread_.joinable()) return;
  stopping_.store(true);
  wake();
  thread_.join();
}

void ControlPlane::wake() noexcept {
  const std::uint64_t one = 1;
  static_cast<void>(!::write(doorbell_, &one, sizeof one));
}

void ControlPlane::run() noexcept {
  while (!stopping_.load()) {
    bool waits = accept_again_ns_ != 0 || !dials_.empty() || !accepts_.empty() || !deaths_.empty();
    for (const auto& [id, channel] : channels_) waits = waits || channel->state() != Channel::State::ready;
    epoll_event events[64];
    const int count = ::epoll_wait(epoll_, events, 64, waits ? 20 : -1);
    try {
      for (int i = 0; i < count; ++i) serve(events[i].data.fd);
      take_dials();
      check_deadlines(now_ns());
    } catch (const std::bad_alloc&) {
      log(LogLevel::error, "the control plane is out of memory; a connection attempt is lost");
    }
  }
}

void ControlPlane::serve(int descriptor) {
  if (descriptor == doorbell_) {
    std::uint64_t rung;
    static_cast<void>(!::read(doorbell_, &rung, sizeof rung));
    return;
  }
  bool listening = false;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    listening = listening_.count(descriptor) != 0;
  }
  if (listening) {
    accept_all(descriptor);
    return;
  }
  const auto place = by_descriptor_.find(descriptor);
  if (place == by_descriptor_.end()) return;
  Channel* channel = channels_.at(place->second).get();
  if (channel->state() == Channel::State::connecting) {
    on_connected(channel);
  } else {
    on_readable(channel);
  }
}

void ControlPlane::dial(std::shared_ptr<DialState> dial) {
  dial->id = random_token();
  dial->deadline_ns = now_ns() + knobs_->handshake_timeout_ns;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    new_dials_.push_back(std::move(dial));
  }
  wake();
}

void ControlPlane::take_dials() {
  std::vector<std::shared_ptr<DialState>> taken;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    taken.swap(new_dials_);
  }
  for (const auto& dial : taken) start_dial(dial);
}

void ControlPlane::start_dial(const std::shared_ptr<DialState>& dial) {
  std::string error;
  Channel* channel = channel_to(*dial, &error);
  if (channel == nullptr) {
    finish_dial(dial, Status::address_unavailable, error);
    return;
  }
  PendingDial& pending = dials_[dial->id];
  pending.state = dial;
  pending.channel = channel->id();
  if (channel->state() == Channel::State::ready) send_open(channel, &pending);
}

void ControlPlane::finish_dial(const std::shared_ptr<DialState>& dial, Status status, const std::string& error) {
  {
    const std::lock_guard<std::mutex> lock(dial->mutex);
    dial->status = status;
    dial->error = error;
  }
  const auto place = dials_.find(dial->id);
  if (place != dials_.end()) {
    if (status != Status::ok) setup_.give_back(place->second.flows);
    dials_.erase(place);
  }
  notifier_->notify();
}

void ControlPlane::check_deadlines(std::int64_t now_ns) {
  if (accept_again_ns_ != 0 && now_ns >= accept_again_ns_) {
    accept_again_ns_ = 0;
    std::string ignored;
    const std::lock_guard<std::mutex> lock(mutex_);
    for (const auto& [descriptor, device] : listening_) static_cast<void>(watch_listening(descriptor, &ignored));
  }
  std::vector<Channel*> late;
  for (const auto& [id, channel] : channels_) {
    if (channel->state() != Channel::State::ready && now_ns >= channel->deadline_ns()) late.push_back(channel.get());
  }
  for (Channel* channel : late) {
    if (!channel->dialled()) stranger(channel, "said nothing that we understand in time");
    drop_channel(channel, "no answer within the handshake's time (knob handshake_timeout_ns)", Status::peer_silent);
  }
  std::vector<std::shared_ptr<DialState>> overdue;
  for (const auto& [id, pending] : dials_) {
    const std::lock_guard<std::mutex> lock(pending.state->mutex);
    if (pending.state->abandoned || now_ns >= pending.state->deadline_ns) overdue.push_back(pending.state);
  }
  for (const auto& dial : overdue)
    finish_dial(dial, Status::timed_out,
                "no answer from " + dial->to.text() + " within the handshake's time (knob handshake_timeout_ns)");
  for (auto place = accepts_.begin(); place != accepts_.end();) {
    if (now_ns < place->second.deadline_ns) {
      ++place;
      continue;
    }
    place->second.connection->fail(Status::timed_out);
    place = accepts_.erase(place);
  }
  for (std::size_t i = 0; i < deaths_.size();) {
    if (now_ns < deaths_[i].at_ns) {
      ++i;
      continue;
    }
    setup_.forget(deaths_[i].channel);
    deaths_.erase(deaths_.begin() + static_cast<std::ptrdiff_t>(i));
  }
}

}  // namespace weft::engine
