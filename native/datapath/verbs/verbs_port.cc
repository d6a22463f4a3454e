// Opens a port of an RDMA device, from the device context to posted receive slots, and closes it in reverse order. Each
// failure gives one line that says what to do. Errors while closing are ignored, as the device may have vanished.
#include "native/datapath/verbs/verbs_port.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>

#include "native/wire/wire.h"

namespace weft::datapath {
namespace {

constexpr std::size_t kKeptMin = 32;
constexpr std::uint32_t kSendSlotBytesMin = 2048;  // large enough for any control packet
constexpr std::uint32_t kInlineBytes = 256;        // large enough for probes, and for acknowledgments of a few paths

std::string system_says(const std::string& what) { return what + ": " + std::strerror(errno); }

std::string locked_memory_limit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_MEMLOCK, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return "unlimited";
  return std::to_string(limit.rlim_cur / 1024) + " KiB";
}

std::uint32_t round_up(std::uint32_t bytes, std::uint32_t to) { return (bytes + to - 1) / to * to; }

bool nonblocking(int descriptor) {
  const int flags = ::fcntl(descriptor, F_GETFL);
  return flags >= 0 && ::fcntl(descriptor, F_SETFL, flags | O_NONBLOCK) == 0;
}

}  // namespace

std::uint32_t bytes_of(ibv_mtu mtu) noexcept { return 128u << static_cast<unsigned>(mtu); }

ibv_mtu mtu_of(std::uint32_t bytes) noexcept {
  ibv_mtu best = IBV_MTU_256;
  for (const ibv_mtu mtu : {IBV_MTU_512, IBV_MTU_1024, IBV_MTU_2048, IBV_MTU_4096}) {
    if (bytes_of(mtu) <= bytes) best = mtu;
  }
  return best;
}

bool SlotArray::open(const Ibv* ibv, ibv_pd* pd, std::uint32_t count, std::uint32_t slot_bytes, std::string* error) {
  total_bytes_ = std::size_t{count} * slot_bytes;
  void* memory = ::mmap(nullptr, total_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    *error = "out of memory for " + std::to_string(total_bytes_ >> 10) + " KiB of RDMA slots: lower WEFT_RDMA=slots";
    return false;
  }
  bytes_ = static_cast<std::uint8_t*>(memory);
  // Excludes the pages from forked children: after a fork, copy-on-write could give this process other pages than the
  // NIC's.
  ::madvise(memory, total_bytes_, MADV_DONTFORK);
  region_ = ibv->reg_mr(pd, memory, total_bytes_, IBV_ACCESS_LOCAL_WRITE);
  if (region_ == nullptr) {
    *error = system_says("the NIC cannot register " + std::to_string(total_bytes_ >> 10) + " KiB") +
             "; the limit of locked memory is " + locked_memory_limit() +
             ": raise it (ulimit -l unlimited, LimitMEMLOCK= of a service) or lower WEFT_RDMA=slots";
    close();
    return false;
  }
  ibv_ = ibv;
  count_ = count;
  slot_bytes_ = slot_bytes;
  return true;
}

void SlotArray::close() noexcept {
  if (region_ != nullptr) static_cast<void>(ibv_->dereg_mr(region_));
  if (bytes_ != nullptr) ::munmap(bytes_, total_bytes_);
  region_ = nullptr;
  bytes_ = nullptr;
}

bool VerbsPort::open_device(std::string* error) {
  int count = 0;
  ibv_device** devices = ibv->get_device_list(&count);
  ibv_device* wanted = nullptr;
  for (int i = 0; devices != nullptr && i < count; ++i) {
    if (name.device == ibv->get_device_name(devices[i])) wanted = devices[i];
  }
  if (wanted == nullptr) {
    *error = "libibverbs does not list " + name.device +
             ": install its provider (apt-get install ibverbs-providers) and load ib_uverbs";
  } else {
    context = ibv->open_device(wanted);
    if (context == nullptr) {
      // Sets errno to the true reason: after a refusal, libibverbs tries other device nodes and then reports a
      // misleading errno.
      static_cast<void>(::access((std::string("/dev/infiniband/") + wanted->dev_name).c_str(), R_OK | W_OK));
      *error = system_says("RDMA device " + name.device + " cannot be opened") +
               (errno == EACCES || errno == EPERM ? "; give this user /dev/infiniband/uverbs* (group rdma)" : "");
    }
  }
  if (devices != nullptr) ibv->free_device_list(devices);
  return context != nullptr;
}

bool VerbsPort::query(std::string* error) {
  ibv_port_attr port{};
  const std::string text = name.device + " port " + std::to_string(name.number);
  if (ibv->query_port(context, name.number, &port) != 0) {
    *error = text + ": ibv_query_port failed";
    return false;
  }
  if (port.state != IBV_PORT_ACTIVE) {
    *error = text + " is not active: bring its link up (ip link set dev … up; rdma link)";
    return false;
  }
  lid = port.lid;
  traits.port = name.number;
  traits.traffic_class = options.traffic_class;
  traits.service_level = options.service_level;
  traits.remote_writes = options.direct;
  traits.global = port.link_layer == IBV_LINK_LAYER_ETHERNET || name.gid > 0;
  traits.mtu = options.mtu_bytes == 0 ? port.active_mtu : std::min(port.active_mtu, mtu_of(options.mtu_bytes));
  mtu_bytes = bytes_of(traits.mtu);
  datagram_bytes_max = bytes_of(port.active_mtu);
  if (name.gid < 0) return true;
  traits.gid_index = static_cast<std::uint8_t>(name.gid);
  if (ibv->query_gid(context, name.number, name.gid, &gid) != 0) {
    *error = text + " has no GID " + std::to_string(name.gid);
    return false;
  }
  return true;
}

bool VerbsPort::make_queues(std::string* error) {
  ibv_device_attr limits{};
  if (ibv->query_device(context, &limits) != 0) {
    *error = name.device + ": ibv_query_device failed";
    return false;
  }
  const std::int64_t most = std::min(limits.max_srq_wr > 0 ? limits.max_srq_wr : 1, limits.max_cqe);
  const auto slots = static_cast<std::uint32_t>(std::min<std::int64_t>(options.slots, most));
  // A segment sent by RDMA write takes two receive requests: an empty one for the write, and one for its header.
  const auto received = static_cast<std::uint32_t>(std::min<std::int64_t>(options.direct ? 2 * slots : slots, most));
  channel = ibv->create_comp_channel(context);
  if (channel == nullptr || !nonblocking(channel->fd) || !nonblocking(context->async_fd)) {
    *error = system_says(name.device + ": cannot create a completion channel");
    return false;
  }
  data_cq = ibv->create_cq(context, static_cast<int>(received), nullptr, channel, 0);
  control_cq = ibv->create_cq(context, kControlSlots, nullptr, channel, 0);
  send_cq =
      ibv->create_cq(context, static_cast<int>(std::min<std::int64_t>(limits.max_cqe, 4 * slots)), nullptr, nullptr, 0);
  if (data_cq == nullptr || control_cq == nullptr || send_cq == nullptr) {
    *error = system_says(name.device + ": cannot create the completion queues");
    return false;
  }
  ibv_srq_init_attr shared{};
  shared.attr.max_wr = received;
  shared.attr.max_sge = 1;
  srq = ibv->create_srq(pd, &shared);
  if (srq == nullptr) {
    *error = system_says(name.device + ": cannot create a shared receive queue");
    return false;
  }
  // Control packets may also be sent on a path's queue pair.
  const auto longest = std::max(options.segment_bytes, static_cast<std::uint32_t>(wire::kControlBytesMax));
  const std::uint32_t slot_bytes = round_up(longest + kGrhBytes, 64);
  if (!data_slots.open(ibv, pd, received, slot_bytes, error) ||
      !send_slots.open(ibv, pd, slots, std::max(slot_bytes, kSendSlotBytesMin), error) ||
      !control_slots.open(ibv, pd, kControlSlots, kSendSlotBytesMin, error)) {
    return false;
  }
  QueuePair::Plan plan;
  plan.type = IBV_QPT_UD;
  plan.pd = pd;
  plan.send_cq = send_cq;
  plan.receive_cq = control_cq;
  plan.sends = kControlSends;
  plan.receives = kControlSlots;
  plan.inline_bytes = kInlineBytes;
  if (!control.make(ibv, plan, error) || !control.join(traits, {}, 0, error)) return false;
  // If the device has no memory windows, messages are received into slots and copied from there.
  std::string unused;
  if (options.direct && options.mode != VerbsMode::ud) {
    static_cast<void>(windows.start(ibv, pd, traits, gid, lid, &unused));
  }
  return true;
}

bool VerbsPort::open(const Ibv* library, const Place& where, const VerbsOptions& how, std::string* error) {
  ibv = library;
  place = where;
  if (!name.parse(where.port)) {
    *error = "'" + where.port + "' is not of the form device:port@gid";
    return false;
  }
  options = how;
  if (!open_device(error) || !query(error)) return false;
  pd = ibv->alloc_pd(context);
  if (pd == nullptr) {
    *error = system_says(name.device + ": cannot allocate a protection domain");
    return false;
  }
  if (!make_queues(error)) return false;
  for (std::uint32_t slot = 0; slot < send_slots.count(); ++slot) free_sends.push_back(slot);
  for (std::uint32_t slot = 0; slot < data_slots.count(); ++slot) repost_data(&slot, 1);
  for (std::uint32_t slot = 0; slot < control_slots.count(); ++slot) repost_control(&slot, 1);
  return arm();
}

void VerbsPort::close() noexcept {
  control.reset();
  windows.shut();
  if (srq != nullptr) static_cast<void>(ibv->destroy_srq(srq));
  for (ibv_cq* queue : {data_cq, control_cq, send_cq}) {
    if (queue != nullptr) static_cast<void>(ibv->destroy_cq(queue));
  }
  data_slots.close();
  control_slots.close();
  send_slots.close();
  if (channel != nullptr) static_cast<void>(ibv->destroy_comp_channel(channel));
  if (pd != nullptr) static_cast<void>(ibv->dealloc_pd(pd));
  if (context != nullptr) static_cast<void>(ibv->close_device(context));
  srq = nullptr;
  data_cq = control_cq = send_cq = nullptr;
  channel = nullptr;
  pd = nullptr;
  context = nullptr;
}

bool VerbsPort::make_data_qp(QueuePair* out, std::string* error) {
  QueuePair::Plan plan;
  plan.type = options.mode == VerbsMode::uc ? IBV_QPT_UC : options.mode == VerbsMode::rc ? IBV_QPT_RC : IBV_QPT_UD;
  plan.pd = pd;
  plan.send_cq = send_cq;
  plan.receive_cq = data_cq;
  plan.srq = srq;
  plan.sends = sends_per_qp(options);
  return out->make(ibv, plan, error);
}

ibv_ah* VerbsPort::make_address(const RemoteQp& remote) noexcept {
  ibv_ah_attr address = address_of(traits, remote);
  return ibv->create_ah(pd, &address);
}

namespace {

template <class Post>
void repost(const SlotArray& array, const std::uint32_t* slots, std::size_t count, const Post& post) noexcept {
  constexpr std::size_t kChain = 32;
  ibv_recv_wr requests[kChain];
  ibv_sge pieces[kChain];
  for (std::size_t done = 0; done < count;) {
    const std::size_t length = std::min(count - done, kChain);
    for (std::size_t i = 0; i < length; ++i) {
      const std::uint32_t slot = slots[done + i];
      pieces[i] = {reinterpret_cast<std::uintptr_t>(array.at(slot)), array.slot_bytes(), array.key()};
      requests[i] = {};
      requests[i].wr_id = slot;
      requests[i].sg_list = &pieces[i];
      requests[i].num_sge = 1;
      requests[i].next = i + 1 < length ? &requests[i + 1] : nullptr;
    }
    post(requests);
    done += length;
  }
}

}  // namespace

void VerbsPort::repost_data(const std::uint32_t* slots, std::size_t count) noexcept {
  repost(data_slots, slots, count, [this](ibv_recv_wr* requests) {
    ibv_recv_wr* bad = nullptr;
    static_cast<void>(ibv_post_srq_recv(srq, requests, &bad));
  });
}

void VerbsPort::repost_control(const std::uint32_t* slots, std::size_t count) noexcept {
  repost(control_slots, slots, count, [this](ibv_recv_wr* requests) {
    ibv_recv_wr* bad = nullptr;
    static_cast<void>(ibv_post_recv(control.get(), requests, &bad));
  });
}

// Moves received completions to kept_data and kept_control. Memory is reserved first; if there is none, completions
// stay in their queue.
void VerbsPort::keep_received() noexcept {
  const auto has_room = [](std::vector<ibv_wc>* kept) {
    if (kept->size() < kept->capacity()) return true;
    try {
      kept->reserve(std::max<std::size_t>(kKeptMin, 2 * kept->capacity()));
    } catch (const std::bad_alloc&) {
      return false;
    }
    return true;
  };
  const auto keep = [&](ibv_cq* queue, std::vector<ibv_wc>* kept) {
    ibv_wc one{};
    while (has_room(kept) && ibv_poll_cq(queue, 1, &one) > 0) kept->push_back(one);
  };
  keep(data_cq, &kept_data);
  keep(control_cq, &kept_control);
}

void VerbsPort::forget_received(std::uint32_t number) noexcept {
  landed.erase(number);
  keep_received();
  for (ibv_wc& kept : kept_data) {
    if (kept.qp_num == number) kept.status = IBV_WC_WR_FLUSH_ERR;
  }
}

// Moves the queue pair to the error state first, so that nothing arrives between the polling and the reset.
bool VerbsPort::reset_pair(QueuePair* pair) noexcept {
  static_cast<void>(pair->to_error());
  keep_received();
  return pair->to_reset();
}

bool VerbsPort::arm() noexcept { return ibv_req_notify_cq(data_cq, 0) == 0 && ibv_req_notify_cq(control_cq, 0) == 0; }

std::uint32_t active_mtu_bytes(const Ibv* library, const Place& place) noexcept {
  std::string unused;
  VerbsPort port;
  VerbsOptions options;
  options.segment_bytes = 1024;
  options.slots = 16;
  return port.open(library, place, options, &unused) ? port.mtu_bytes : 1024;
}

std::vector<VerbsMode> probe_modes(const Ibv* library, const Place& place, std::string* error) {
  std::vector<VerbsMode> found;
  for (const VerbsMode mode : {VerbsMode::uc, VerbsMode::rc, VerbsMode::ud}) {
    VerbsOptions options;
    options.mode = mode;
    options.segment_bytes = 1024;
    options.slots = 16;
    VerbsPort port;
    QueuePair pair;
    std::string problem;
    if (!port.open(library, place, options, &problem)) {
      *error = problem;
      return {};
    }
    // Connects the queue pair to itself, which fails if the NIC cannot send from the GID.
    RemoteQp itself;
    const bool made = port.make_data_qp(&pair, &problem);
    itself.number = pair.number();
    itself.gid = port.gid;
    itself.lid = port.lid;
    if (made && pair.join(port.traits, itself, 0, &problem)) {
      found.push_back(mode);
    } else {
      *error = problem;
    }
  }
  return found;
}

}  // namespace weft::datapath
