// Writes the trace records of a connection: its begin, its end, and each of its messages.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "native/core/status.h"
#include "native/engine/clock.h"
#include "native/engine/trace/trace_writer.h"

namespace weft::engine {

struct TracedConnection {
  std::uint64_t pair = 0;  // number that identifies the connection, equal at both ends
  std::string peer, datapath;
  std::size_t flows = 0, paths = 0;
};

// A message that has ended.
struct TracedMessage {
  std::uint64_t message = 0, bytes = 0;
  std::int64_t posted_ns = 0;
  std::uint32_t channel = 0;  // id of the NCCL channel's trace record; 0: none
  bool sends = false;
  Status status = Status::ok;
};

class ConnectionTrace {
 public:
  ConnectionTrace() = default;  // writes nothing
  ConnectionTrace(std::shared_ptr<TraceWriter> writer, const TracedConnection& connection)
      : writer_(std::move(writer)), record_(writer_ == nullptr ? 0 : writer_->next_standing_id()) {
    if (writer_ == nullptr) return;
    telemetry::TraceConnection record;
    record.head.id = record_;
    record.head.time_ns = now_ns();
    record.pair = connection.pair;
    record.peer = writer_->text(connection.peer);
    record.datapath = writer_->text(connection.datapath);
    record.flows = static_cast<std::uint16_t>(connection.flows);
    record.paths = static_cast<std::uint16_t>(connection.paths);
    writer_->begin(record);
  }

  bool on() const noexcept { return writer_ != nullptr; }
  std::uint32_t record() const noexcept { return record_; }
  void message(const TracedMessage& ended) const noexcept {
    telemetry::TraceMessage record;
    record.head.id = writer_->next_id();
    record.head.time_ns = now_ns();
    record.message = ended.message;
    record.bytes = ended.bytes;
    record.posted_ns = ended.posted_ns;
    record.connection = record_;
    record.channel = ended.channel;
    record.sends = ended.sends ? 1 : 0;
    record.status = static_cast<std::uint16_t>(ended.status);
    writer_->put(record);
  }
  // `reason`: why the connection ended; cancelled: this end closed it.
  void end(Status reason) const noexcept {
    if (writer_ == nullptr) return;
    telemetry::TraceConnectionEnd record;
    record.head.id = record_;
    record.head.time_ns = now_ns();
    record.status = reason == Status::cancelled ? 0 : static_cast<std::uint16_t>(reason);
    writer_->end(record);
  }

 private:
  std::shared_ptr<TraceWriter> writer_;
  std::uint32_t record_ = 0;
};

}  // namespace weft::engine
