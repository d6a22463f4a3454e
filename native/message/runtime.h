// The native API: engines, listeners, connections and requests of a process. Functions never throw, block only where
// stated, and depend on neither NCCL nor Python.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "native/control/handle.h"
#include "native/core/stage.h"
#include "native/core/status.h"
#include "native/datapath/datapath.h"
#include "native/datapath/device.h"
#include "native/engine/knobs.h"
#include "native/engine/policies/policy_info.h"
#include "native/engine/recorder.h"
#include "native/engine/request.h"
#include "native/engine/setup/descriptor_budget.h"
#include "native/message/backlog.h"
#include "native/message/host_buffer.h"
#include "native/telemetry/counters.h"

namespace weft::message {

using telemetry::ConnectionCounters;
using telemetry::EndpointCounters;

class DeviceBoard;
class DeviceMessage;
class HostMessage;

class Connection {
 public:
  // Limit on waiting for copies when a connection ends. They take milliseconds; the limit prevents a hang after a
  // defect.
  static constexpr std::int64_t kCopiesEndNs = 5'000'000'000;

  virtual ~Connection() = default;
  // Sends and receives match in posting order. The buffer must stay valid until the request is done. `would_block`: the
  // rings are full; try again. At least 64 requests per direction can be outstanding. A zero-byte message may have a
  // null pointer. `memory`: a registration that contains the whole buffer, or 0.
  virtual Status post_send(const void* data, std::size_t bytes, std::uint32_t memory,
                           engine::Request** out) noexcept = 0;
  virtual Status post_receive(void* data, std::size_t capacity_bytes, std::uint32_t memory,
                              engine::Request** out) noexcept = 0;
  // The same with a backlog: messages for which the engines have no room wait, and are posted in order later.
  // would_block: the number of waiting messages has reached the knob `posts_max`. Do not mix with the functions above,
  // which would overtake waiting messages.
  virtual Status start(Backlog::Way way, HostBuffer buffer, std::shared_ptr<HostMessage>* out) noexcept = 0;
  // If it fails, the caller cancels the message.
  virtual Status start(Backlog::Way way, const std::shared_ptr<DeviceMessage>& message) noexcept = 0;
  // Sends or receives memory that no CPU can access. `stages` has one stage per part of the message (core::stripe_count
  // of the bytes posted, over flows() flows; a shorter message does not use the last ones), each with a ring as
  // described in stage.h, of at least 64 KB. The caller copies. A zero-byte message needs no stages. quiesce() and
  // close() release stages like buffers.
  virtual Status post_staged_send(core::Stage* stages, std::size_t bytes, engine::Request** out) noexcept = 0;
  virtual Status post_staged_receive(core::Stage* stages, std::size_t capacity_bytes,
                                     engine::Request** out) noexcept = 0;
  virtual std::uint32_t flows() const noexcept = 0;
  // The caller has copied more bytes into this stage of a send, or out of this stage of a receive. False: the engine's
  // ring is full; call it again.
  virtual bool on_staged(engine::Request* request, std::uint32_t stage) noexcept = 0;
  // Returns a done request for reuse; the pointer becomes invalid.
  virtual void release(engine::Request* request) noexcept = 0;
  // Sleeps until the request is done (ok) or the timeout expires (timed_out). The only blocking call; any thread.
  virtual Status wait(engine::Request* request, std::int64_t timeout_ns) noexcept = 0;
  // Fails outstanding requests with `cancelled`, has the engines release every buffer (in bounded time), and notifies
  // the peer without waiting for it. Idempotent.
  virtual void close() noexcept = 0;
  // After close(): sleeps until no copy of this library accesses a message's memory, or kCopiesEndNs have passed.
  virtual void await_copies() noexcept = 0;
  // When it returns, neither an engine nor a copy accesses [data, data + bytes): requests inside the range have failed
  // with `cancelled`. Returns at once if no request is outstanding there.
  virtual void quiesce(const void* data, std::size_t bytes) noexcept = 0;
  // The same for the memory of a message. A message in the backlog is withdrawn; any other ends the connection, because
  // its copies can take as long as the streams that they wait for.
  virtual void quiesce(DeviceMessage* message) noexcept = 0;
  // Whether engines read the payload that they send (payload_crc, of this end or the peer). Then GPU memory must be
  // staged.
  virtual bool reads_payload() const noexcept = 0;
  // ok while usable, otherwise the reason.
  virtual Status health() const noexcept = 0;
  virtual std::string peer_address() const = 0;
  // Counters of this connection: bytes and segments by path, losses, resends, round-trip times.
  virtual ConnectionCounters counters() const = 0;
  // Applies from now on and to this connection only; a path policy belongs to the peer and so applies to all
  // connections to it.
  virtual Status change_policy(const std::string& family, const std::string& text, engine::PolicyChange what,
                               std::string* error) noexcept = 0;
  virtual std::vector<engine::PolicyInfo> policies() const = 0;
};

// A connection attempt; call poll() until it succeeds or fails.
class Dial {
 public:
  virtual ~Dial() = default;  // abandons the attempt
  // would_block: in progress; ok: *out is set; otherwise it has failed, and error() has the reason.
  virtual Status poll(std::shared_ptr<Connection>* out) noexcept = 0;
  // While poll() returns would_block: the error of its attempts so far, or "".
  virtual std::string error() const = 0;
  // The same as a status; would_block: no error so far.
  virtual Status cause() const { return Status::would_block; }
};

class Listener {
 public:
  virtual ~Listener() = default;
  virtual control::Handle handle() const noexcept = 0;
  virtual std::uint16_t port() const noexcept = 0;                       // TCP port for peers
  virtual Status accept(std::shared_ptr<Connection>* out) noexcept = 0;  // would_block: none waits
  // Why a connected peer could not be accepted in the last `within_ns`, for example for lack of descriptors; ok: no
  // failure.
  virtual Status trouble(std::int64_t, std::string*) const { return Status::ok; }
};

class Runtime {
 public:
  virtual ~Runtime() = default;  // closes remaining connections and joins every thread
  // Starts engines and the control thread. On failure `error` is one line with a remedy.
  static Status open(const engine::Knobs& knobs, std::shared_ptr<Runtime>* out, std::string* error) noexcept;
  // The descriptors that open() needs with all paths. Opens nothing permanently.
  static Status descriptor_need(const engine::Knobs& knobs, engine::DescriptorNeed* out, std::string* error) noexcept;
  virtual const std::vector<datapath::Device>& devices() const noexcept = 0;
  // port 0: any. The listener accepts peers that have its handle, or that dial its address and port. `policies` here
  // and below: policies of its connections instead of the process's: "window=dctcp path=reps", "class 3" for those of a
  // traffic class, or "".
  virtual Status listen(int device, std::uint16_t port, const std::string& policies, std::unique_ptr<Listener>* out,
                        std::string* error) noexcept = 0;
  virtual Status connect(int device, const control::Handle& handle, const std::string& policies,
                         std::unique_ptr<Dial>* out, std::string* error) noexcept = 0;
  virtual Status connect(int device, const std::string& host, std::uint16_t port, const std::string& policies,
                         std::unique_ptr<Dial>* out, std::string* error) noexcept = 0;
  // Registers memory that is used repeatedly: datapaths that support it send from it without a copy and receive into it
  // directly. If the datapath does not use it, or the NIC refuses it, bytes are copied and *id is 0. `dmabuf`: the
  // descriptor of GPU memory; -1: host memory. Blocks until every engine has it.
  Status register_memory(void* data, std::size_t bytes, int dmabuf, std::uint64_t dmabuf_offset,
                         std::uint32_t* id) noexcept {
    return register_memory({0, static_cast<std::uint8_t*>(data), bytes, dmabuf, dmabuf_offset, dmabuf >= 0}, id);
  }
  // The same with all fields. For device memory, with or without a dma-buf, which no CPU can copy: address_unavailable
  // if no NIC accepts it. Such memory can be sent (post_send with its id) if reads_payload() is false, but never
  // received into.
  virtual Status register_memory(const datapath::Memory& memory, std::uint32_t* id) noexcept = 0;
  // No request may be outstanding in it. When it returns, no NIC accesses the memory. 0 and unknown ids are ignored.
  virtual void deregister_memory(std::uint32_t id) noexcept = 0;
  // Applies to every present and future connection without policies of its own.
  virtual Status change_policy(const std::string& family, const std::string& text, engine::PolicyChange what,
                               std::string* error) noexcept = 0;
  virtual std::vector<engine::PolicyInfo> policies() const = 0;
  // Starts recording every decision. One recording at a time; `written` (or null) is set to the file's name.
  virtual Status start_recording(const std::string& path, std::string* written, std::string* error) noexcept = 0;
  // `stats` may be null.
  virtual Status stop_recording(engine::RecordingStats* stats, std::string* error) noexcept = 0;
  // The GPUs whose memory it sends and receives; null: none can be used. Valid until close_gpus().
  virtual DeviceBoard* gpus() noexcept = 0;
  // Ends messages of GPU memory that are in progress, and their connections. These messages hold the runtime, so an
  // owner calls this before it drops its reference.
  virtual void close_gpus() noexcept = 0;
  // Readable when a request, dial or accept has finished since it was last drained; for event loops.
  virtual int event_descriptor() const noexcept = 0;
  // Makes it readable, for events outside this runtime.
  virtual void notify() noexcept = 0;
  virtual EndpointCounters counters() const = 0;
  // One line for logs: datapath, engines, devices, paths, segment size, policies.
  virtual std::string summary() const = 0;
};

}  // namespace weft::message
