// Layout of trace files: what a process recorded of its operations, channels and messages.
//
// A trace is a series of segments (files). A segment has a header, a text that describes the fields of every record, a
// text that identifies the process, and then blocks of records. A reader only needs to know the layout of the header
// and of blocks. docs/TRACING.md describes all of it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace weft::telemetry {

inline constexpr char kTraceMagic[8] = {'w', 'e', 'f', 't', 'r', 'a', 'c', 'e'};
inline constexpr std::uint32_t kTraceVersion = 1;  // layout of header and blocks; records can change within a version
inline constexpr std::uint32_t kTraceBlockMagic = 0x6b'6c'62'77;  // "wblk"
inline constexpr std::size_t kTraceTextBytesMax = 1024;           // longer texts are truncated

struct TraceFileHeader {
  char magic[8];
  std::uint32_t version;
  std::uint32_t header_bytes;    // size of this struct and the two texts, a multiple of 8
  std::uint32_t schema_bytes;    // size of the first text: one line for each record and field
  std::uint32_t identity_bytes;  // size of the second text: one line "name value" for each fact about the process
  std::uint64_t number;          // number of this file in the process's trace, from 0
  std::int64_t monotonic_ns;     // when the file was begun, by CLOCK_MONOTONIC, like all times in records
  std::int64_t realtime_ns;      // when the file was begun, by CLOCK_REALTIME
  std::uint32_t crc;             // CRC-32C of the first header_bytes bytes, computed with this field as 0
  std::uint32_t reserved;
};
static_assert(sizeof(TraceFileHeader) == 56);

struct TraceBlockHeader {
  std::uint32_t magic;
  std::uint32_t bytes;    // size of the records that follow, a multiple of 8
  std::uint32_t ring;     // number of the ring buffer that the records come from; one thread at a time uses a ring
  std::uint32_t crc;      // CRC-32C of this header and the records, computed with this field as 0
  std::uint64_t number;   // number of the block in the process's trace, from 0
  std::uint64_t dropped;  // records that the process has dropped so far, for lack of room
};
static_assert(sizeof(TraceBlockHeader) == 32);

// The head of every record.
struct TraceHead {
  std::uint16_t type;
  std::uint16_t bytes;  // size of the record, head included, a multiple of 8
  std::uint32_t id;     // id of what the record describes, never 0
  std::int64_t time_ns;
};
static_assert(sizeof(TraceHead) == 16);

// Fields of each record: type, name, unit, sentence. Fields of 8 bytes come first, then shorter ones, so that the
// structs have no gaps. A field with the unit `text` holds the id of a text record, or 0 for none.
#define WEFT_TRACE_COMMUNICATOR(F)                                                \
  F(u64, comm_id, id, "NCCL's id of the communicator, the same on all its ranks") \
  F(u32, name, text, "name that the program gave the communicator")               \
  F(i32, ranks, count, "ranks in the communicator")                               \
  F(i32, nodes, count, "nodes that the ranks are on")                             \
  F(i32, rank, index, "rank of this process")

#define WEFT_TRACE_COMMUNICATOR_END(F)

#define WEFT_TRACE_OPERATION(F)                                                          \
  F(u64, sequence, count, "NCCL's sequence number of the operation in its communicator") \
  F(u64, count, elements, "number of elements, the argument of the NCCL call")           \
  F(u64, tag, id, "tag that the program gave the call, 0: none")                         \
  F(i64, called_ns, ns, "when the program called NCCL, 0: not known")                    \
  F(u32, communicator, record, "its communicator")                                       \
  F(u32, function, text, "AllReduce, Send, ...")                                         \
  F(u32, datatype, text, "type of an element")                                           \
  F(u32, algorithm, text, "RING, TREE, ...; point to point: none")                       \
  F(u32, protocol, text, "LL, LL128, SIMPLE; point to point: none")                      \
  F(i32, root, index, "root of a collective, peer of a Send or Recv; -1: none")          \
  F(u16, channels, count, "channels that it uses")                                       \
  F(u16, kind, kind, "0 collective, 1 point to point, 2 copy engines")                   \
  F(u16, captured, flag, "1 if it is part of a captured graph")                          \
  F(u16, unused, count, "0")

#define WEFT_TRACE_OPERATION_END(F)

#define WEFT_TRACE_CHANNEL(F)                                                            \
  F(u32, operation, record, "its operation; 0: unknown, such as one of another process") \
  F(u32, communicator, record, "its communicator")                                       \
  F(i32, peer, index, "rank of the peer in the communicator")                            \
  F(i32, steps, count, "steps that NCCL plans")                                          \
  F(u32, chunk_bytes, bytes, "bytes that NCCL plans for a chunk")                        \
  F(u16, channel, index, "channel of the communicator")                                  \
  F(u16, sends, flag, "1: this rank sends to the peer, 0: it receives")

#define WEFT_TRACE_CHANNEL_END(F)                                              \
  F(u64, bytes, bytes, "bytes that were sent or received")                     \
  F(u64, gpu_wait_ns, ns, "time in which steps waited for the GPU")            \
  F(u64, peer_wait_ns, ns, "time in which sends waited for the peer's buffer") \
  F(u64, network_wait_ns, ns, "time in which steps were in the network")       \
  F(u32, steps, count, "steps that ended")                                     \
  F(u32, messages, count, "steps that carried bytes")

#define WEFT_TRACE_KERNEL(F)                                    \
  F(u64, gpu_start_ns, ns, "start on the GPU's clock")          \
  F(u64, gpu_stop_ns, ns, "end on the GPU's clock, 0: unknown") \
  F(u32, operation, record, "its operation")                    \
  F(u16, channel, index, "channel of the communicator")         \
  F(u16, unused, count, "0")

#define WEFT_TRACE_CONNECTION(F)                                                               \
  F(u64, pair, id, "the same number at both ends of the connection, and at no other")          \
  F(u32, peer, text, "address and port of the peer process")                                   \
  F(u32, datapath, text, "udp, verbs, ...")                                                    \
  F(u16, flows, count, "flows of the connection, each of which carries a stripe of a message") \
  F(u16, paths, count, "paths of each flow")                                                   \
  F(u32, unused, count, "0")

#define WEFT_TRACE_CONNECTION_END(F)                                               \
  F(u16, status, status, "0: this end closed it, otherwise the status of its end") \
  F(u16, unused, count, "0")                                                       \
  F(u32, unused_too, count, "0")

#define WEFT_TRACE_MESSAGE(F)                                                                            \
  F(u64, message, index, "number of the message in its connection and direction, the same at both ends") \
  F(u64, bytes, bytes, "its size")                                                                       \
  F(i64, posted_ns, ns, "when it was posted; the record's time is its end")                              \
  F(u32, connection, record, "connection that carried it")                                               \
  F(u32, channel, record, "channel record that it belongs to, 0: none")                                  \
  F(u16, sends, flag, "1: sent, 0: received")                                                            \
  F(u16, status, status, "0: complete, otherwise the status of its failure")                             \
  F(u32, unused, count, "0")

#define WEFT_TRACE_STRIPE(F)                                                                              \
  F(u64, message, index, "number of its message")                                                         \
  F(u64, bytes, bytes, "bytes of the message that the flow carries")                                      \
  F(i64, posted_ns, ns, "when the flow got it; the record's time is its end")                             \
  F(i64, first_ns, ns, "when its first segment was sent or arrived; 0: none, or it came before the post") \
  F(i64, last_ns, ns, "sends: when its last segment was first sent; receives: when the last one arrived") \
  F(u32, connection, record, "its connection")                                                            \
  F(u32, segments, segments, "sends: segments sent, resent ones included")                                \
  F(u32, resent, segments, "sends: segments that were resent")                                            \
  F(u16, engine, index, "engine that its flow is on")                                                     \
  F(u16, sends, flag, "1: sent, 0: received")                                                             \
  F(u16, status, status, "0: complete, otherwise the status of its failure")                              \
  F(u8, path_0, share, "sends: share of its segments that path 0 carried, in 1/255; and so on")           \
  F(u8, path_1, share, "path 1")                                                                          \
  F(u8, path_2, share, "path 2")                                                                          \
  F(u8, path_3, share, "path 3")                                                                          \
  F(u8, path_4, share, "path 4")                                                                          \
  F(u8, path_5, share, "path 5")                                                                          \
  F(u8, path_6, share, "path 6")                                                                          \
  F(u8, path_7, share, "path 7")                                                                          \
  F(u8, path_8, share, "path 8")                                                                          \
  F(u8, path_9, share, "path 9")                                                                          \
  F(u8, path_10, share, "path 10")                                                                        \
  F(u8, path_11, share, "path 11")                                                                        \
  F(u8, path_12, share, "path 12")                                                                        \
  F(u8, path_13, share, "path 13")                                                                        \
  F(u8, path_14, share, "path 14")                                                                        \
  F(u8, path_15, share, "path 15")                                                                        \
  F(u8, path_16, share, "path 16")                                                                        \
  F(u8, path_17, share, "path 17")                                                                        \
  F(u8, path_18, share, "path 18")                                                                        \
  F(u8, path_19, share, "path 19")                                                                        \
  F(u8, path_20, share, "path 20")                                                                        \
  F(u8, path_21, share, "path 21")                                                                        \
  F(u8, path_22, share, "path 22")                                                                        \
  F(u8, path_23, share, "path 23")                                                                        \
  F(u8, path_24, share, "path 24")                                                                        \
  F(u8, path_25, share, "path 25")                                                                        \
  F(u8, path_26, share, "path 26")                                                                        \
  F(u8, path_27, share, "path 27")                                                                        \
  F(u8, path_28, share, "path 28")                                                                        \
  F(u8, path_29, share, "path 29")                                                                        \
  F(u8, path_30, share, "path 30")                                                                        \
  F(u8, path_31, share, "path 31")                                                                        \
  F(u8, path_others, share, "all other paths")                                                            \
  F(u8, unused, count, "0")                                                                               \
  F(u32, unused_too, count, "0")

#define WEFT_TRACE_PATH(F)                                                            \
  F(u64, bytes_sent, bytes, "payload bytes sent over the path so far")                \
  F(u64, segments_sent, segments, "segments sent over the path so far")               \
  F(u64, segments_lost, segments, "segments that were found lost on the path so far") \
  F(i64, rtt_ns, ns, "smoothed round-trip time")                                      \
  F(u32, peer, text, "address of the peer's end of the path")                         \
  F(u16, path, index, "number of the path")                                           \
  F(u16, engine, index, "engine whose path it is")                                    \
  F(u16, usable, flag, "0: the path is down")                                         \
  F(u16, unused, count, "0")                                                          \
  F(u32, unused_too, count, "0")

#define WEFT_TRACE_EVENT(F)                                                                                       \
  F(u64, value, count, "what the event counts, such as segments lost; of cpu_wait: ns without a core")            \
  F(u32, what, text, "path_down, path_up, peer_quiet, timeout, loss, process_stalled, cpu_wait, host_drops, ...") \
  F(u32, peer, text, "address of the peer or of its end of the path")                                             \
  F(u32, connection, record, "connection, 0: none")                                                               \
  F(u16, path, index, "number of the path")                                                                       \
  F(u16, status, status, "status of the event; of cpu_wait: ms that it is about")

#define WEFT_TRACE_END(F)  // no fields: the process closed its trace, and this is its last record

#define WEFT_TRACE_TEXT(F)  // no fields: the bytes of the text follow the head, with zeros up to a multiple of 8

// Columns of each row: record number, name, struct, fields.
#define WEFT_TRACE_RECORDS(R)                                          \
  R(1, text, Text, WEFT_TRACE_TEXT)                                    \
  R(2, communicator, Communicator, WEFT_TRACE_COMMUNICATOR)            \
  R(3, communicator_end, CommunicatorEnd, WEFT_TRACE_COMMUNICATOR_END) \
  R(4, operation, Operation, WEFT_TRACE_OPERATION)                     \
  R(5, operation_end, OperationEnd, WEFT_TRACE_OPERATION_END)          \
  R(6, channel, Channel, WEFT_TRACE_CHANNEL)                           \
  R(7, channel_end, ChannelEnd, WEFT_TRACE_CHANNEL_END)                \
  R(8, kernel, Kernel, WEFT_TRACE_KERNEL)                              \
  R(9, message, Message, WEFT_TRACE_MESSAGE)                           \
  R(10, connection, Connection, WEFT_TRACE_CONNECTION)                 \
  R(11, connection_end, ConnectionEnd, WEFT_TRACE_CONNECTION_END)      \
  R(12, stripe, Stripe, WEFT_TRACE_STRIPE)                             \
  R(13, path, Path, WEFT_TRACE_PATH)                                   \
  R(14, event, Event, WEFT_TRACE_EVENT)                                \
  R(15, end, End, WEFT_TRACE_END)

namespace trace_types {
using u8 = std::uint8_t;
using u16 = std::uint16_t;
using u32 = std::uint32_t;
using u64 = std::uint64_t;
using i32 = std::int32_t;
using i64 = std::int64_t;
}  // namespace trace_types

#define WEFT_TRACE_FIELD(type, name, unit, sentence) trace_types::type name = 0;
#define WEFT_TRACE_FIELD_BYTES(type, name, unit, sentence) +sizeof(trace_types::type)
#define WEFT_TRACE_STRUCT(number, name, Struct, FIELDS)                                                            \
  struct Trace##Struct {                                                                                           \
    static constexpr std::uint16_t kType = number;                                                                 \
    TraceHead head{kType, sizeof(Trace##Struct), 0, 0};                                                            \
    FIELDS(WEFT_TRACE_FIELD)                                                                                       \
  };                                                                                                               \
  static_assert(sizeof(Trace##Struct) == sizeof(TraceHead) FIELDS(WEFT_TRACE_FIELD_BYTES), "the record has gaps"); \
  static_assert(sizeof(Trace##Struct) % 8 == 0);
WEFT_TRACE_RECORDS(WEFT_TRACE_STRUCT)
#undef WEFT_TRACE_STRUCT
#undef WEFT_TRACE_FIELD_BYTES
#undef WEFT_TRACE_FIELD

// Describes the records: a line "record NUMBER NAME BYTES" for each, and after it "field NAME TYPE UNIT OFFSET" for
// each of its fields, where TYPE is u8, u16, u32, u64, i32 or i64.
std::string trace_schema();

}  // namespace weft::telemetry
