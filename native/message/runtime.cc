// Creates the devices, policies, engines and the control plane of a process, and destroys them in the opposite order.
// Exceptions are turned into a status and an error text.
#include "native/message/runtime.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <mutex>
#include <new>
#include <set>
#include <sstream>
#include <thread>
#include <utility>

#include "native/control/control_plane.h"
#include "native/control/handle.h"
#include "native/engine/clock.h"
#include "native/engine/exceptions.h"
#include "native/engine/log.h"
#include "native/engine/memory_table.h"
#include "native/engine/policies/policy_board.h"
#include "native/engine/setup/datapath_choice.h"
#include "native/engine/setup/descriptor_budget.h"
#include "native/engine/setup/engine_cpus.h"
#include "native/engine/setup/usable_cores.h"
#include "native/engine/telemetry_files.h"
#include "native/engine/telemetry_page.h"
#include "native/engine/trace/open_trace.h"
#include "native/local/host.h"
#include "native/message/connection_handle.h"
#include "native/message/device_board.h"

namespace weft::message {
namespace {

// How long the destructor waits for peers to confirm that connections are closed: for as long without a datagram, and
// in all. A peer behind bad paths resends until a close packet reaches it, and needs its final position: without it,
// sends that this end received would fail there. After that, peers learn of the close from the closed control sockets.
constexpr std::int64_t kFarewellQuietNs = 300'000'000, kFarewellNsMax = 3'000'000'000;

std::int64_t engine_count(const engine::Knobs& knobs) {
  if (knobs.engines != 0) return knobs.engines;
  if (engine::wants_one_engine(knobs)) return 1;
  engine::Cpus listed;
  std::string unused;  // start() reports a wrong list of CPUs
  if (!engine::choose_cpus(knobs.engine_cpus, {}, 1, &listed, &unused)) listed.clear();
  return engine::engines_for(static_cast<std::int64_t>(engine::usable_cores()), listed);
}

engine::DescriptorNeed need_of(const engine::Knobs& knobs, const engine::DatapathChoice& choice) {
  const std::int64_t paths = knobs.paths != 0 ? knobs.paths : engine::kPathsDefault;
  return {engine_count(knobs), static_cast<std::int64_t>(choice.found.devices.size()),
          choice.entry->descriptor_per_path ? paths : 0};
}

// Runs `work` and turns an exception into a status and an error text.
template <typename Work>
Status guarded(std::string* error, const Work& work) noexcept {
  try {
    return work();
  } catch (const std::bad_alloc&) {
    return Status::out_of_memory;
  } catch (const std::exception& problem) {
    *error = problem.what();
    return Status::internal_error;
  }
}

bool has_happened(const control::DialState& dial) noexcept { return dial.status != Status::would_block; }
bool has_happened(const control::ListenerState& listener) noexcept {
  return listener.closed || !listener.ready.empty();
}

// The event of a dial or of a listener.
template <typename State>
class StateEvent final : public Event {
 public:
  explicit StateEvent(std::shared_ptr<State> state) : state_(std::move(state)) {}
  void wait(std::int64_t timeout_ns) noexcept override {
    std::unique_lock<std::mutex> lock(state_->mutex);
    state_->changed.wait_for(lock, std::chrono::nanoseconds(std::min(timeout_ns, kLongestNs)),
                             [this] { return has_happened(*state_); });
  }

 private:
  // An hour: the clock's time plus a huge timeout would overflow.
  static constexpr std::int64_t kLongestNs = 3'600'000'000'000;
  std::shared_ptr<State> state_;
};

class DialImpl final : public Dial {
 public:
  DialImpl(std::shared_ptr<control::DialState> state, control::ControlPlane* control,
           const ConnectionServices& services, std::shared_ptr<void> runtime)
      : runtime_(std::move(runtime)), control_(control), services_(services), state_(std::move(state)) {}
  ~DialImpl() override { close(); }
  void close() noexcept override {
    std::shared_ptr<engine::ConnectionCore> unclaimed;
    {
      const std::lock_guard<std::mutex> lock(state_->mutex);
      state_->abandoned = true;
      if (state_->status == Status::would_block) state_->status = Status::cancelled;
      unclaimed.swap(state_->connection);
    }
    state_->changed.notify_all();
    if (unclaimed != nullptr) unclaimed->fail(Status::cancelled);
  }
  void help(std::int64_t timeout_ns) noexcept override { control_->help(*state_, timeout_ns); }
  std::shared_ptr<Event> event() const override { return std::make_shared<StateEvent<control::DialState>>(state_); }
  Status poll(std::shared_ptr<Connection>* out) noexcept override {
    try {
      const std::lock_guard<std::mutex> lock(state_->mutex);
      if (state_->abandoned) return Status::cancelled;  // even if it was connected meanwhile
      if (state_->status != Status::ok) return state_->status;
      if (state_->connection == nullptr) return Status::invalid_argument;  // an earlier call returned the connection
      *out = std::make_shared<ConnectionHandle>(state_->connection, services_, runtime_);
      state_->connection.reset();
      return Status::ok;
    } catch (const std::bad_alloc&) {
      return Status::out_of_memory;
    }
  }
  std::string error() const override {
    const std::lock_guard<std::mutex> lock(state_->mutex);
    return state_->error;
  }
  Status cause() const override {
    const std::lock_guard<std::mutex> lock(state_->mutex);
    return state_->cause;
  }

 private:
  std::shared_ptr<void> runtime_;
  control::ControlPlane* control_;
  const ConnectionServices services_;
  std::shared_ptr<control::DialState> state_;
};

class RuntimeImpl;

class ListenerImpl final : public Listener {
 public:
  ListenerImpl(std::shared_ptr<control::ListenerState> state, control::ControlPlane* control,
               const ConnectionServices& services, std::shared_ptr<void> runtime)
      : runtime_(std::move(runtime)), control_(control), services_(services), state_(std::move(state)) {}
  ~ListenerImpl() override { control_->close_listener(state_); }
  std::shared_ptr<Event> event() const override { return std::make_shared<StateEvent<control::ListenerState>>(state_); }
  control::Handle handle() const noexcept override { return state_->handle; }
  std::uint16_t port() const noexcept override { return control_->own_port(state_); }
  Status trouble(std::int64_t within_ns, std::string* text) const override {
    return control_->accept_trouble(within_ns, text);
  }
  Status accept(std::shared_ptr<Connection>* out) noexcept override {
    try {
      const std::lock_guard<std::mutex> lock(state_->mutex);
      if (state_->ready.empty()) return Status::would_block;
      *out = std::make_shared<ConnectionHandle>(state_->ready.front(), services_, runtime_);
      state_->ready.pop_front();
      return Status::ok;
    } catch (const std::bad_alloc&) {
      return Status::out_of_memory;
    }
  }

 private:
  std::shared_ptr<void> runtime_;
  control::ControlPlane* control_;
  const ConnectionServices services_;
  std::shared_ptr<control::ListenerState> state_;
};

class RuntimeImpl final : public Runtime, public std::enable_shared_from_this<RuntimeImpl> {
 public:
  explicit RuntimeImpl(const engine::Knobs& knobs) : knobs_(knobs), board_(&knobs_, &engines_) {}
  ~RuntimeImpl() override;
  Status start(std::string* error);

  const std::vector<datapath::Device>& devices() const noexcept override { return devices_; }
  Status listen(int device, std::uint16_t port, bool open, const std::string& policies, std::unique_ptr<Listener>* out,
                std::string* error) noexcept override;
  Status connect(int device, const control::Handle& handle, const std::string& policies, std::unique_ptr<Dial>* out,
                 std::string* error) noexcept override;
  Status connect(int device, const std::string& host, std::uint16_t port, const std::string& policies,
                 std::unique_ptr<Dial>* out, std::string* error) noexcept override;
  Status change_policy(const std::string& family, const std::string& text, engine::PolicyChange what,
                       std::string* error) noexcept override {
    return guarded(error, [&] {
      const Status status = board_.change(family, text, what, nullptr, 0, error);
      // Connections that follow must use the network, where the policy has an effect.
      if (status == Status::ok && host_ != nullptr) host_->step_aside("a policy was changed");
      return status;
    });
  }
  std::vector<engine::PolicyInfo> policies() const override { return board_.describe(nullptr, 0); }
  using Runtime::register_memory;
  Status register_memory(const datapath::Memory& memory, std::uint32_t* id) noexcept override {
    std::string unused;
    return guarded(&unused, [&] { return memories_.add(memory, id); });
  }
  void deregister_memory(std::uint32_t id) noexcept override {
    std::string unused;
    static_cast<void>(guarded(&unused, [&] {
      memories_.remove(id);
      return Status::ok;
    }));
  }
  Status start_recording(const std::string& path, std::int64_t bytes_max, std::string* written,
                         std::string* error) noexcept override;
  Status stop_recording(engine::RecordingStats* stats, std::string* error) noexcept override;
  int event_descriptor() const noexcept override { return notifier_.descriptor(); }
  void notify() noexcept override { notifier_.notify(); }
  DeviceBoard* gpus() noexcept override { return gpus_.get(); }
  void close_gpus() noexcept override { gpus_.reset(); }
  EndpointCounters counters() const override;
  std::string telemetry_page() const override { return page_ == nullptr ? std::string() : page_->path(); }
  std::string summary() const override;

 private:
  void await_farewells() const;
  void open_host(std::size_t movers, const std::string& network_knob);
  bool valid(int device, std::string* error) const;
  Status open_page(std::int64_t engine_count, std::string* error);
  Status follow_weights(std::string* error);
  std::unique_ptr<Dial> dial(int device, const control::HandleFields& target, engine::PolicySet policies);
  engine::EngineConfig engine_config() const;
  ConnectionServices services() noexcept {
    return {&board_, &backlog_thread_, &notifier_, static_cast<std::size_t>(knobs_.posts_max), weights_.get()};
  }
  // Whether WEFT_PAYLOAD_CRC has turned the payload check off, on a datapath that has no check of its own.
  bool payload_unchecked() const noexcept {
    return knobs_.payload_crc == engine::CrcMode::off && datapath_.entry->unprotected;
  }

  engine::LogUse logs_;  // destroyed last, because every thread may log
  engine::Knobs knobs_;  // not changed after start()
  mutable engine::Notifier notifier_;
  engine::DatapathChoice datapath_;
  std::vector<datapath::Device> devices_;
  engine::Cpus cpus_;                            // where engine threads run; empty: anywhere
  std::unique_ptr<local::Host> host_;            // destroyed after the engines, which own connections; null: unused
  std::string local_text_;                       // for summary()
  engine::DescriptorGrant descriptors_;          // destroyed after the engines, whose sockets it counts
  std::unique_ptr<engine::TelemetryPage> page_;  // destroyed after the engines, whose counters it contains
  std::shared_ptr<engine::TraceWriter> trace_;   // null: nothing is traced
  std::vector<std::unique_ptr<engine::Engine>> engines_;
  engine::MemoryTable memories_{&engines_};
  mutable engine::PolicyBoard board_;
  std::unique_ptr<PathWeights> weights_;  // null: no file of path weights is in use (WEFT_WEIGHTS)
  BacklogThread backlog_thread_{&notifier_};
  std::unique_ptr<DeviceBoard> gpus_;
  std::unique_ptr<control::ControlPlane> control_;
  std::mutex recorder_mutex_;
  std::unique_ptr<engine::Recorder> recorder_;
};

engine::EngineConfig RuntimeImpl::engine_config() const {
  engine::EngineConfig config;
  config.cpus = cpus_;
  config.spin_ns = knobs_.spin_ns;
  config.poll_ns = knobs_.poll_ns;
  config.poll_share = knobs_.poll_share;
  config.page = page_.get();
  config.trace = trace_;
  core::StackConfig& stack = config.stack;
  stack.seed = control::random_token();
  stack.eager_bytes = static_cast<std::uint64_t>(knobs_.eager_bytes);
  stack.eager_slots = static_cast<std::uint64_t>(knobs_.eager_slots);
  stack.window_bytes_max = knobs_.window_bytes_max;
  stack.rto_ns_min = knobs_.rto_ns_min;
  stack.rto_ns_max = knobs_.rto_ns_max;
  stack.peer_silence_ns = knobs_.peer_silence_ns;
  stack.external_failure_detector =
      true;  // the control plane decides when a peer counts as failed, because it also has a control socket
  stack.link_bytes_per_s = devices_.empty() ? 0 : devices_[0].speed_mbps * 125'000;
  const engine::PolicySet policies = board_.defaults();
  stack.window = policies.window->choice();
  stack.path = policies.path->choice();
  stack.loss = policies.loss->choice();
  if (policies.credit != nullptr) stack.credit = policies.credit->choice();
  return config;
}

// Creates the telemetry page. If that fails in a configured directory, the start fails; with `auto`, a warning is
// logged and there is no page.
Status RuntimeImpl::open_page(std::int64_t engine_count, std::string* error) {
  if (knobs_.telemetry == "off") return Status::ok;
  const bool automatic = knobs_.telemetry == "auto";
  const engine::TelemetryPage::Shape shape{static_cast<std::uint32_t>(engine_count),
                                           static_cast<std::uint32_t>(knobs_.paths)};
  std::string problem;
  page_ = engine::TelemetryPage::create(automatic ? engine::kPageDirectory : knobs_.telemetry, shape, &problem);
  if (page_ != nullptr) return Status::ok;
  if (automatic) {
    engine::log(engine::LogLevel::warn,
                problem + "; other processes cannot read the counters (WEFT_TELEMETRY=off silences this warning)");
    return Status::ok;
  }
  *error = "WEFT_TELEMETRY=" + knobs_.telemetry + ": " + problem;
  return Status::system_error;
}

Status RuntimeImpl::follow_weights(std::string* error) {
  if (knobs_.weights.empty()) return Status::ok;
  if (page_ == nullptr) {
    engine::log(engine::LogLevel::warn, "the weights " + knobs_.weights +
                                            " are not used: they are computed from the telemetry page, and there is "
                                            "none (WEFT_TELEMETRY)");
    return Status::ok;
  }
  weights_ = std::make_unique<PathWeights>(knobs_.weights, engine::page_identity(page_->path()), &board_);
  if (weights_->start() == Status::ok) return Status::ok;
  *error = "cannot start the thread that follows WEFT_WEIGHTS";
  return Status::system_error;
}

Status RuntimeImpl::start(std::string* error) {
  engine::prepare_exceptions();
  engine::set_log_level(knobs_.log_level);
  if (engine::check_knobs(knobs_, error) != Status::ok) return Status::invalid_argument;
  const std::string network_knob = local::network_knob(knobs_);
  const std::int64_t count = engine_count(knobs_);
  errno = 0;
  bool chosen = engine::choose_datapath(knobs_, count, &datapath_, error);
  if (!chosen && engine::is_out_of_descriptors(errno) && engine::raise_descriptor_limit()) {
    error->clear();
    chosen = engine::choose_datapath(knobs_, count, &datapath_, error);
  }
  if (!chosen) return engine::is_out_of_descriptors(errno) ? Status::out_of_descriptors : Status::address_unavailable;
  if (knobs_.paths == 0) knobs_.paths = engine::kPathsDefault;
  engine::DescriptorNeed need = need_of(knobs_, datapath_);
  if (!descriptors_.take(&need, error)) return Status::out_of_descriptors;
  if (datapath_.entry->descriptor_per_path) knobs_.paths = need.paths;
  if (!engine::ports_suffice(knobs_, count, knobs_.paths, error)) return Status::invalid_argument;
  if (payload_unchecked()) {
    engine::log(engine::LogLevel::warn,
                "payload check off (WEFT_PAYLOAD_CRC=off): if a middlebox damages a payload and computes a new UDP "
                "checksum, the damaged bytes are delivered, unless the peer has the check on");
  }
  for (const datapath::DeviceState& state : datapath_.found.devices) devices_.push_back(state.info);
  std::vector<std::string> pci_paths;
  for (const datapath::Device& device : devices_) pci_paths.push_back(device.pci_path);
  if (!engine::choose_cpus(knobs_.engine_cpus, pci_paths, static_cast<std::size_t>(count), &cpus_, error))
    return Status::invalid_argument;
  if (!board_.start(error)) return Status::invalid_argument;
  if (const Status status = open_page(count, error); status != Status::ok) return status;
  std::string trace_error;
  trace_ = engine::open_trace(knobs_, &trace_error);
  if (!trace_error.empty()) engine::log(engine::LogLevel::warn, trace_error + "; there will be no trace");
  for (std::int64_t i = 0; i < count; ++i) {
    const auto id = static_cast<std::uint32_t>(i);
    engines_.push_back(
        std::make_unique<engine::Engine>(id, engine_config(), engine::make_datapath(knobs_, datapath_, id)));
    errno = 0;
    if (!engines_.back()->start(error)) {
      return engine::is_out_of_descriptors(errno) ? Status::out_of_descriptors : Status::system_error;
    }
  }
  if (const Status status = follow_weights(error); status != Status::ok) return status;
  if (!knobs_.record_file.empty()) {
    const Status status = start_recording(knobs_.record_file, engine::Recorder::kBytesMax, nullptr, error);
    if (status != Status::ok) return status;
  }
  DeviceLimits limits;
  limits.pool_bytes = static_cast<std::size_t>(knobs_.gpu_pool_bytes);
  gpus_ = std::make_unique<DeviceBoard>("libcuda.so.1", limits, [this] { notifier_.notify(); });
  open_host(static_cast<std::size_t>(count), network_knob);
  control_ = std::make_unique<control::ControlPlane>(&knobs_, &engines_, &datapath_, &notifier_, page_.get(), trace_,
                                                     host_.get());
  const Status status = control_->start(error);
  descriptors_.on_started();
  return status;
}

// Lets messages between processes of this host pass through shared memory, unless WEFT_LOCAL or another knob wants them
// on the network.
void RuntimeImpl::open_host(std::size_t movers, const std::string& network_knob) {
  if (knobs_.local == engine::LocalMode::off) {
    local_text_ = "local off";
    return;
  }
  if (!network_knob.empty()) {
    local_text_ = "local off (" + network_knob + ")";
    return;
  }
  std::string why;
  host_ = std::make_unique<local::Host>(knobs_, movers);
  if (host_->start(&why)) {
    local_text_ = knobs_.local == engine::LocalMode::ring ? "local ring" : "local on";
    return;
  }
  engine::log(engine::LogLevel::info, "messages between processes of this host go over the network: " + why);
  local_text_ = "local off (" + why + ")";
  host_.reset();
}

RuntimeImpl::~RuntimeImpl() {
  close_gpus();
  await_farewells();
  if (control_ != nullptr) control_->stop();
  if (host_ != nullptr) host_->stop();
  weights_.reset();  // ends its thread, which uses the engines
  std::string unused;
  static_cast<void>(stop_recording(nullptr, &unused));
  for (const auto& engine : engines_) engine->stop();
}

// Waits a while for peers to confirm that connections are closed: all are, because they keep the runtime alive.
void RuntimeImpl::await_farewells() const {
  const std::int64_t begin_ns = engine::now_ns();
  std::int64_t heard_ns = begin_ns, now_ns = begin_ns;
  std::int64_t received_before = -1;
  while (now_ns - begin_ns < kFarewellNsMax && now_ns - heard_ns < kFarewellQuietNs) {
    std::size_t open = 0;
    std::int64_t received = 0;
    for (const auto& engine : engines_) {
      open += engine->open_flows();
      received += engine->counters().datagrams_received;
    }
    if (open == 0) return;
    if (std::exchange(received_before, received) != received) heard_ns = now_ns;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    now_ns = engine::now_ns();
  }
}

bool RuntimeImpl::valid(int device, std::string* error) const {
  if (device >= 0 && device < static_cast<int>(devices_.size())) return true;
  *error =
      "device " + std::to_string(device) + " does not exist; there are " + std::to_string(devices_.size()) + " devices";
  return false;
}

Status RuntimeImpl::listen(int device, std::uint16_t port, bool open, const std::string& policies,
                           std::unique_ptr<Listener>* out, std::string* error) noexcept {
  return guarded(error, [&] {
    if (!valid(device, error)) return Status::invalid_argument;
    engine::PolicySet chosen;
    Status status = board_.choose(policies, &chosen, error);
    if (status != Status::ok) return status;
    std::shared_ptr<control::ListenerState> state;
    status = control_->listen(static_cast<std::uint32_t>(device), port, open, chosen, &state, error);
    if (status == Status::ok)
      *out = std::make_unique<ListenerImpl>(state, control_.get(), services(), shared_from_this());
    return status;
  });
}

std::unique_ptr<Dial> RuntimeImpl::dial(int device, const control::HandleFields& target, engine::PolicySet policies) {
  auto state = std::make_shared<control::DialState>();
  state->device = static_cast<std::uint32_t>(device);
  state->node = target.node;
  state->listener = target.listener;
  state->to = target.address;
  state->key = target.key;
  state->policies = std::move(policies);
  control_->dial(state);
  return std::make_unique<DialImpl>(std::move(state), control_.get(), services(), shared_from_this());
}

Status RuntimeImpl::connect(int device, const control::Handle& handle, const std::string& policies,
                            std::unique_ptr<Dial>* out, std::string* error) noexcept {
  return guarded(error, [&] {
    control::HandleFields fields;
    if (!valid(device, error) || !control::read_handle(handle, &fields, error)) return Status::invalid_argument;
    if (fields.address.is_v6() && IN6_IS_ADDR_LINKLOCAL(&fields.address.v6.sin6_addr)) {
      fields.address.v6.sin6_scope_id =
          datapath_.found.devices[static_cast<std::size_t>(device)].places[0].interface_index;
    }
    engine::PolicySet chosen;
    const Status status = board_.choose(policies, &chosen, error);
    if (status == Status::ok) *out = dial(device, fields, std::move(chosen));
    return status;
  });
}

Status RuntimeImpl::connect(int device, const std::string& host, std::uint16_t port, const std::string& policies,
                            std::unique_ptr<Dial>* out, std::string* error) noexcept {
  return guarded(error, [&] {
    if (!valid(device, error)) return Status::invalid_argument;
    const bool v6 = datapath_.found.devices[static_cast<std::size_t>(device)].places[0].address.is_v6();
    control::HandleFields target;
    if (!datapath::resolve(host, port, v6 ? AF_INET6 : AF_INET, &target.address, error))
      return Status::address_unavailable;
    engine::PolicySet chosen;
    const Status status = board_.choose(policies, &chosen, error);
    if (status == Status::ok) *out = dial(device, target, std::move(chosen));
    return status;
  });
}

Status RuntimeImpl::start_recording(const std::string& path, std::int64_t bytes_max, std::string* written,
                                    std::string* error) noexcept {
  return guarded(error, [&] {
    const std::lock_guard<std::mutex> lock(recorder_mutex_);
    if (recorder_ != nullptr) {
      *error = "already recording into " + recorder_->path();
      return Status::invalid_argument;
    }
    auto made = std::make_unique<engine::Recorder>();
    if (!made->start(path, engines_.size(), bytes_max, error)) return Status::invalid_argument;
    for (std::size_t i = 0; i < engines_.size(); ++i) {
      engines_[i]->call([&] { engines_[i]->stack().trace().subscribe(made->tap(i), core::kTraceDecisions); });
    }
    recorder_ = std::move(made);
    // Connections that follow must use the network, where there are decisions.
    if (host_ != nullptr) host_->step_aside("decisions are recorded");
    if (written != nullptr) *written = recorder_->path();
    return Status::ok;
  });
}

Status RuntimeImpl::stop_recording(engine::RecordingStats* stats, std::string* error) noexcept {
  return guarded(error, [&] {
    const std::lock_guard<std::mutex> lock(recorder_mutex_);
    if (recorder_ == nullptr) {
      *error = "no recording is in progress";
      return Status::invalid_argument;
    }
    for (const auto& engine : engines_)
      engine->call([&] { engine->stack().trace().unsubscribe(recorder_->tap(engine->id())); });
    const engine::RecordingStats found = recorder_->stop();
    if (stats != nullptr) *stats = found;
    recorder_.reset();
    return Status::ok;
  });
}

EndpointCounters RuntimeImpl::counters() const {
  EndpointCounters total;
  for (const auto& engine : engines_) merge(engine->counters(), static_cast<telemetry::EngineCounters*>(&total));
  merge(control_->counters(), static_cast<telemetry::ProcessCounters*>(&total));
  return total;
}

std::string RuntimeImpl::summary() const {
  std::ostringstream text;
  text << datapath_.found.summary << ", " << engines_.size() << (engines_.size() == 1 ? " engine, " : " engines, ")
       << knobs_.paths << " paths, devices";
  for (const datapath::DeviceState& device : datapath_.found.devices) {
    text << ' ' << device.info.name << " (" << device.info.address << ", segments of " << device.segment_bytes << " B)";
  }
  text << ", window " << knobs_.window_policy << ", path " << knobs_.path_policy << ", loss " << knobs_.loss_policy
       << ", credit " << knobs_.credit_policy;
  const char* const aside = host_ == nullptr ? nullptr : host_->aside();
  text << ", " << (aside == nullptr ? local_text_ : "local off (" + std::string(aside) + ")");
  if (payload_unchecked()) text << ", payload check off";
  if (datapath::fault_rates(engine::KnobSettings(knobs_), 0).any()) text << ", FAULTS INJECTED";
  return text.str();
}

}  // namespace

Status Runtime::descriptor_need(const engine::Knobs& knobs, engine::DescriptorNeed* out, std::string* error) noexcept {
  return guarded(error, [&] {
    engine::DatapathChoice choice;
    if (!engine::choose_datapath(knobs, engine_count(knobs), &choice, error)) return Status::address_unavailable;
    *out = need_of(knobs, choice);
    return Status::ok;
  });
}

Status Runtime::open(const engine::Knobs& knobs, std::shared_ptr<Runtime>* out, std::string* error) noexcept {
  const Status status = guarded(error, [&] {
    auto runtime = std::make_shared<RuntimeImpl>(knobs);
    const Status started = runtime->start(error);
    if (started == Status::ok) *out = std::move(runtime);
    return started;
  });
  if (status == Status::out_of_memory && error->empty()) *error = "out of memory";
  return status;
}

}  // namespace weft::message
