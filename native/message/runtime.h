// The native API: runtime, listeners, connections and requests of a process. Functions do not throw, and block only
// where stated. It is independent of NCCL and Python.
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
#include "native/engine/loan.h"
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
  // How long await_copies() and quiesce() wait for copies to end. Copies take milliseconds; the limit only prevents a
  // hang.
  static constexpr std::int64_t kCopiesEndNs = 5'000'000'000;

  virtual ~Connection() = default;
  // Posts a send or receive; they match in the order in which they are posted. The buffer must stay valid until the
  // request is done. `would_block`: there is no room, try again later; at least 64 requests per direction can be
  // outstanding. A zero-byte message may have a null pointer. `memory`: id of registered memory that contains the whole
  // buffer, or 0. `channel`: id of the NCCL channel's trace record; 0: none.
  virtual Status post_send(const void* data, std::size_t bytes, std::uint32_t memory, engine::Request** out,
                           std::uint32_t channel = 0) noexcept = 0;
  virtual Status post_receive(void* data, std::size_t capacity_bytes, std::uint32_t memory, engine::Request** out,
                              std::uint32_t channel = 0) noexcept = 0;
  // Starts a send or receive of host memory. If the engines have no room, the message waits in the backlog.
  // would_block: WEFT_POSTS_MAX messages wait already. Must not be mixed with post_send() and post_receive(), whose
  // messages would overtake waiting ones.
  virtual Status start(Backlog::Direction direction, HostBuffer buffer, std::shared_ptr<HostMessage>* out) noexcept = 0;
  // Starts a send or receive of GPU memory. If this fails, the caller must cancel the message.
  virtual Status start(Backlog::Direction direction, const std::shared_ptr<DeviceMessage>& message) noexcept = 0;
  // Posts a send or receive of memory that no CPU can access, through bounce buffers that the caller fills and empties.
  // `stages` has core::stage_count(bytes, flows()) stages; each ring has at least 64 KB (see stage.h).
  // A zero-byte message needs none. The stages must stay valid until the request is done; quiesce() and close() release
  // them.
  virtual Status post_staged_send(core::Stage* stages, std::size_t bytes, engine::Request** out) noexcept = 0;
  // `taker`: takes the message if the peer lends it; null: it passes through the bounce buffers in any case.
  virtual Status post_staged_receive(core::Stage* stages, std::size_t capacity_bytes, engine::Request** out,
                                     engine::LoanTaker* taker = nullptr) noexcept = 0;
  // Posts a send of memory that the peer reads where it is, if Loans::can_lend() is true for its device. Once it may be
  // read, the caller sets `ready` and calls on_staged(). `send` must stay valid until the request is done.
  virtual Status post_lent_send(const engine::LentSend* send, std::size_t bytes, engine::Request** out) noexcept {
    static_cast<void>(send), static_cast<void>(bytes), static_cast<void>(out);
    return Status::invalid_argument;
  }
  // Memory of devices that the two ends lend each other; null: they are not processes of one host.
  virtual engine::Loans* loans() noexcept { return nullptr; }
  virtual std::uint32_t flows() const noexcept = 0;
  // Tells the engine that the caller has copied more bytes into this stage of a send, or out of this stage of a
  // receive. False: the engine has no room for the call; repeat it.
  virtual bool on_staged(engine::Request* request, std::uint32_t stage) noexcept = 0;
  // Returns a request that is done. The pointer is invalid after that.
  virtual void release(engine::Request* request) noexcept = 0;
  // Sleeps until the request is done (ok) or the timeout expires (timed_out). May be called from any thread.
  virtual Status wait(engine::Request* request, std::int64_t timeout_ns) noexcept = 0;
  // For a caller that polls a request, again and again, instead of waiting for it: may do the engine's work on this
  // thread.
  virtual void progress(const engine::Request& request) noexcept { static_cast<void>(request); }
  // Closes the connection: outstanding requests fail with `cancelled`, the engines release all buffers within a bounded
  // time, and the peer is notified. Does not wait for the peer's reply. Further calls do nothing.
  virtual void close() noexcept = 0;
  // To be called after close(). Sleeps until weft no longer copies from or to the memory of messages, or for at most
  // kCopiesEndNs.
  virtual void await_copies() noexcept = 0;
  // Makes weft stop using the memory [data, data + bytes). If a request uses it, the request fails with `cancelled`,
  // and the connection ends if the request was already posted to the engines.
  virtual void quiesce(const void* data, std::size_t bytes) noexcept = 0;
  // Makes weft stop using the memory of a message. If the message waits in the backlog, it is removed; otherwise the
  // connection ends, as the engines cannot give a message back and copies of GPU memory may wait for the work of
  // streams.
  virtual void quiesce(DeviceMessage* message) noexcept = 0;
  virtual void quiesce(HostMessage* message) noexcept = 0;
  // Whether the engines read the payload that they send, because either end uses payload checksums. Then GPU memory
  // needs bounce buffers.
  virtual bool reads_payload() const noexcept = 0;
  // ok while the connection is usable, otherwise the reason why it ended.
  virtual Status health() const noexcept = 0;
  // Whether the peer has closed the connection. It stays usable while messages that came before can be received.
  virtual bool closed_by_peer() const noexcept { return health() != Status::ok; }
  virtual std::string peer_address() const = 0;
  // Counters of this connection: bytes and segments by path, losses, retransmissions, round-trip times.
  virtual ConnectionCounters counters() const = 0;
  // Changes a policy of this connection from now on. A path policy is shared by all connections to the same peer.
  // `engine`: changes only the flows on this engine; -1: the flows on all engines.
  virtual Status change_policy(const std::string& family, const std::string& text, engine::PolicyChange what,
                               std::string* error, std::int64_t engine = -1) noexcept = 0;
  virtual std::vector<engine::PolicyInfo> policies() const = 0;
};

// Something that a caller can wait for. It does not keep the runtime alive.
class Event {
 public:
  virtual ~Event() = default;
  // Waits until the event has happened, for `timeout_ns` at most. Any number of threads may wait.
  virtual void wait(std::int64_t timeout_ns) noexcept = 0;
};

// A connection attempt; call poll() until it succeeds or fails.
class Dial {
 public:
  virtual ~Dial() = default;  // gives up the attempt if it is in progress
  // would_block: the attempt is in progress. ok: *out is the connection. Any other status: it has failed, and error()
  // has the reason.
  virtual Status poll(std::shared_ptr<Connection>* out) noexcept = 0;
  // Runs iterations of the control plane's loop on the caller's thread until poll() has a result, but at most for
  // `timeout_ns` or 2 ms, whichever is shorter, plus the time to finish the last iteration.
  virtual void help(std::int64_t timeout_ns) noexcept = 0;
  // The event happens when poll() has a result (anything but would_block), or after close().
  virtual std::shared_ptr<Event> event() const = 0;
  // Gives up the attempt, as destruction does. May be called on any thread, and again.
  virtual void close() noexcept = 0;
  // Text of the last error of the attempt, which may still be in progress; empty: none.
  virtual std::string error() const = 0;
  // Status of the error that error() describes; would_block: there was no error so far.
  virtual Status cause() const { return Status::would_block; }
};

class Listener {
 public:
  virtual ~Listener() = default;
  virtual control::Handle handle() const noexcept = 0;
  // TCP port to which peers connect. A listener made with `open` has a port of its own; 0: that port cannot be opened.
  virtual std::uint16_t port() const noexcept = 0;
  virtual Status accept(std::shared_ptr<Connection>* out) noexcept = 0;  // would_block: no connection waits
  // The event happens when a connection can be accepted or the listener is destroyed.
  virtual std::shared_ptr<Event> event() const = 0;
  // Why the accept() of a peer's TCP connection failed in the last `within_ns`, for example for lack of descriptors;
  // ok: none failed; the text then names the peer that was last refused in that time, and why, if one was.
  virtual Status trouble(std::int64_t, std::string*) const { return Status::ok; }
};

class Runtime {
 public:
  virtual ~Runtime() = default;  // closes remaining connections and ends all threads
  // Starts the engines and the control plane. On failure `error` is one line that suggests a remedy.
  static Status open(const engine::Knobs& knobs, std::shared_ptr<Runtime>* out, std::string* error) noexcept;
  // Computes how many file descriptors open() needs with all paths, without leaving any open.
  static Status descriptor_need(const engine::Knobs& knobs, engine::DescriptorNeed* out, std::string* error) noexcept;
  virtual const std::vector<datapath::Device>& devices() const noexcept = 0;
  // Creates a listener, which accepts peers that have its handle and, if it is `open`, those that dial its address and
  // port. `port` 0: any free port.
  // `policies` (also in connect()): policies of the connections, such as "window=dctcp path=reps" or "class 3" (a
  // traffic class); "": the defaults of the process.
  virtual Status listen(int device, std::uint16_t port, bool open, const std::string& policies,
                        std::unique_ptr<Listener>* out, std::string* error) noexcept = 0;
  virtual Status connect(int device, const control::Handle& handle, const std::string& policies,
                         std::unique_ptr<Dial>* out, std::string* error) noexcept = 0;
  virtual Status connect(int device, const std::string& host, std::uint16_t port, const std::string& policies,
                         std::unique_ptr<Dial>* out, std::string* error) noexcept = 0;
  // Registers memory that is used repeatedly, so that a datapath can send from it and receive into it without copies.
  // If that is not possible, *id is 0 and bytes are copied. `dmabuf`: descriptor of GPU memory; -1: host memory. Blocks
  // until every engine has registered it.
  Status register_memory(void* data, std::size_t bytes, int dmabuf, std::uint64_t dmabuf_offset,
                         std::uint32_t* id) noexcept {
    return register_memory({0, static_cast<std::uint8_t*>(data), bytes, dmabuf, dmabuf_offset, dmabuf >= 0}, id);
  }
  // Registers memory that a datapath::Memory describes. For GPU memory, which cannot be copied, address_unavailable
  // means that no NIC accepts it. GPU memory can be sent by post_send() with its id if reads_payload() is false, but
  // not received into.
  virtual Status register_memory(const datapath::Memory& memory, std::uint32_t* id) noexcept = 0;
  // Deregisters memory, in which no request may be outstanding. When this returns, no NIC accesses the memory any more.
  // Unknown ids and 0 are ignored.
  virtual void deregister_memory(std::uint32_t id) noexcept = 0;
  // Changes a policy of all present and future connections that have no policies of their own.
  virtual Status change_policy(const std::string& family, const std::string& text, engine::PolicyChange what,
                               std::string* error) noexcept = 0;
  virtual std::vector<engine::PolicyInfo> policies() const = 0;
  // Starts to record all policy decisions; only one recording can be active. It ends before it would have more than
  // `bytes_max` bytes. If `written` is not null, it is set to the file's name.
  virtual Status start_recording(const std::string& path, std::int64_t bytes_max, std::string* written,
                                 std::string* error) noexcept = 0;
  // Ends the recording. `stats` may be null.
  virtual Status stop_recording(engine::RecordingStats* stats, std::string* error) noexcept = 0;
  // The GPUs whose memory the runtime sends and receives; null after close_gpus().
  virtual DeviceBoard* gpus() noexcept = 0;
  // Ends messages of GPU memory that are in progress, and their connections. Such messages keep the runtime alive, so
  // its owner must call this before it releases the runtime.
  virtual void close_gpus() noexcept = 0;
  // A file descriptor for event loops. It becomes readable when a request, a dial or an accept has finished.
  virtual int event_descriptor() const noexcept = 0;
  // Makes the event descriptor readable, for events outside this runtime.
  virtual void notify() noexcept = 0;
  virtual EndpointCounters counters() const = 0;
  // File of the telemetry page; empty: there is none.
  virtual std::string telemetry_page() const = 0;
  // One line for logs, with datapath, engines, devices, paths, segment size and policies.
  virtual std::string summary() const = 0;
};

}  // namespace weft::message
