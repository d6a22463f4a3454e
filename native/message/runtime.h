// The native front door: a process's engines, its listeners, connections and requests, all non-blocking.
// Never throws, never blocks but where it says so, and knows neither NCCL nor Python.
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
class HostMessage;

class Connection {
 public:
  virtual ~Connection() = default;
  // Both match in posting order and keep the buffer until the request is done. `would_block`: rings are full, try
  // again. At least 64 requests a direction may be outstanding. A zero-byte message may have a null pointer.
  // `memory`: a registration of the runtime's that the whole buffer lies in, or 0.
  virtual Status post_send(const void* data, std::size_t bytes, std::uint32_t memory,
                           engine::Request** out) noexcept = 0;
  virtual Status post_receive(void* data, std::size_t capacity_bytes, std::uint32_t memory,
                              engine::Request** out) noexcept = 0;
  // The same for callers that do not try again: what the engines have no room for waits, in order, and is posted by
  // itself. would_block: as many wait as the knob `posts_max` allows. The calls above would overtake what waits.
  virtual Status start(Backlog::Way way, HostBuffer buffer, std::shared_ptr<HostMessage>* out) noexcept = 0;
  virtual Status start(Backlog::Way way, const std::shared_ptr<Post>& post) noexcept = 0;
  // Takes back what waits and is not posted yet; false: it does not wait.
  virtual bool withdraw(const Post* post) noexcept = 0;
  // The same for bytes that no thread can read or write where they lie: `stages` has one for each part of the message
  // (core::stripe_count of the bytes posted, over flows() flows; of a shorter message the last ones stay as they are),
  // each with a ring as stage.h wants it, of 64 KB at least. The caller copies. A message without a byte needs none of
  // this. quiesce() and close() let go of the stages as of a buffer.
  virtual Status post_staged_send(core::Stage* stages, std::size_t bytes, engine::Request** out) noexcept = 0;
  virtual Status post_staged_receive(core::Stage* stages, std::size_t capacity_bytes,
                                     engine::Request** out) noexcept = 0;
  virtual std::uint32_t flows() const noexcept = 0;
  // More of a staged send has been copied into this stage, or of a staged receive out of it. False: the engine's ring
  // is full, say it again.
  virtual bool on_staged(engine::Request* request, std::uint32_t stage) noexcept = 0;
  // Hands a done request back for reuse; the pointer is dead afterwards.
  virtual void release(engine::Request* request) noexcept = 0;
  // Sleeps until the request is done or the time is over (ok / timed_out). The only blocking call; any thread.
  virtual Status wait(engine::Request* request, std::int64_t timeout_ns) noexcept = 0;
  // Fails what is outstanding with `cancelled`, lets the engines go of every buffer (bounded time), tells the peer
  // without waiting for it. Idempotent.
  virtual void close() noexcept = 0;
  // After it returns no engine touches [data, data + bytes): requests inside the range fail with `cancelled`.
  // Returns at once when nothing is outstanding there.
  virtual void quiesce(const void* data, std::size_t bytes) noexcept = 0;
  // Whether engines read what they send (payload_crc, of this end or the peer): memory of a device must be staged then.
  virtual bool reads_payload() const noexcept = 0;
  // ok while usable, otherwise why not.
  virtual Status health() const noexcept = 0;
  virtual std::string peer_address() const = 0;
  // Bytes and segments by path, loss, resends, RTT of this connection so far.
  virtual ConnectionCounters counters() const = 0;
  // From now on, for this connection alone; path policies belong to the peer and so to all connections to it.
  // `family`: window, path, loss or credit. `text`: as in the knobs; for params "name=value,...".
  virtual Status change_policy(const std::string& family, const std::string& text, engine::PolicyChange what,
                               std::string* error) noexcept = 0;
  virtual std::vector<engine::PolicyInfo> policies() const = 0;
};

// A connection on its way; poll until it is there.
class Dial {
 public:
  virtual ~Dial() = default;  // abandons the attempt
  // would_block: not yet; ok: *out is set; anything else: it failed for good, error() says why.
  virtual Status poll(std::shared_ptr<Connection>* out) noexcept = 0;
  // While poll() says would_block: why its attempts have failed so far, or "".
  virtual std::string error() const = 0;
  // The same as a status; would_block when nothing is known to be wrong.
  virtual Status cause() const { return Status::would_block; }
};

class Listener {
 public:
  virtual ~Listener() = default;
  virtual control::Handle handle() const noexcept = 0;
  virtual std::uint16_t port() const noexcept = 0;                       // TCP port that peers reach it by
  virtual Status accept(std::shared_ptr<Connection>* out) noexcept = 0;  // would_block when none waits
  // Why a peer that had connected was not accepted in the last `within_ns`, as when the process is out of descriptors;
  // ok: nothing was wrong.
  virtual Status trouble(std::int64_t, std::string*) const { return Status::ok; }
};

class Runtime {
 public:
  virtual ~Runtime() = default;  // closes what is left, joins every thread
  // Starts engines and the control thread. On failure `error` is one line that says what to do.
  static Status open(const engine::Knobs& knobs, std::shared_ptr<Runtime>* out, std::string* error) noexcept;
  // What open() would ask for with all paths. Opens nothing that stays open.
  static Status descriptor_need(const engine::Knobs& knobs, engine::DescriptorNeed* out, std::string* error) noexcept;
  virtual const std::vector<datapath::Device>& devices() const noexcept = 0;
  // port 0: any. The listener takes peers that hold its handle, or that dial its address and port.
  // `policies` here and below: what its connections use instead of the process's policies: "window=dctcp path=reps",
  // "class 3" for those of a traffic class, or "".
  virtual Status listen(int device, std::uint16_t port, const std::string& policies, std::unique_ptr<Listener>* out,
                        std::string* error) noexcept = 0;
  virtual Status connect(int device, const control::Handle& handle, const std::string& policies,
                         std::unique_ptr<Dial>* out, std::string* error) noexcept = 0;
  virtual Status connect(int device, const std::string& host, std::uint16_t port, const std::string& policies,
                         std::unique_ptr<Dial>* out, std::string* error) noexcept = 0;
  // Memory that is to be used again and again: datapaths that can, send from it without a copy and receive into it
  // directly. Where a datapath has no use for it, or the NIC refuses it, bytes are copied, and *id is 0.
  // `dmabuf`: the descriptor of GPU memory; -1: memory of the host. Blocks until every engine knows it.
  Status register_memory(void* data, std::size_t bytes, int dmabuf, std::uint64_t dmabuf_offset,
                         std::uint32_t* id) noexcept {
    return register_memory({0, static_cast<std::uint8_t*>(data), bytes, dmabuf, dmabuf_offset, dmabuf >= 0}, id);
  }
  // The same, said in full; of a device with or without a dma-buf, which no CPU can copy: address_unavailable where no
  // NIC takes it. Such memory may be sent (post_send with its id) where reads_payload() is false, never received into.
  virtual Status register_memory(const datapath::Memory& memory, std::uint32_t* id) noexcept = 0;
  // No request may be outstanding in it. When it returns no NIC touches it. 0 and ids that are gone are ignored.
  virtual void deregister_memory(std::uint32_t id) noexcept = 0;
  // For every connection without a choice of its own, now and later.
  virtual Status change_policy(const std::string& family, const std::string& text, engine::PolicyChange what,
                               std::string* error) noexcept = 0;
  virtual std::vector<engine::PolicyInfo> policies() const = 0;
  // Records every decision from now on. One recording at a time; `written` (or null) becomes the file's name.
  virtual Status start_recording(const std::string& path, std::string* written, std::string* error) noexcept = 0;
  // `stats` may be null.
  virtual Status stop_recording(engine::RecordingStats* stats, std::string* error) noexcept = 0;
  // The GPUs whose memory it sends and receives; null: none can be used. Valid until close_gpus().
  virtual DeviceBoard* gpus() noexcept = 0;
  // Ends messages of GPU memory that are in progress, and their connections. These messages hold the runtime, so an
  // owner calls this before it drops its reference.
  virtual void close_gpus() noexcept = 0;
  // Readable when any request or dial or accept finished since it was last drained: for event loops.
  virtual int event_descriptor() const noexcept = 0;
  // Makes it readable: something finished that this runtime does not know of.
  virtual void notify() noexcept = 0;
  virtual EndpointCounters counters() const = 0;
  // One line for a log: datapath, engines, devices, paths, segment, policies.
  virtual std::string summary() const = 0;
};

}  // namespace weft::message
