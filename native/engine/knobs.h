// The table of all user settings (knobs), with type, unit, default, range and meaning.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "native/core/defaults.h"
#include "native/core/status.h"
#include "native/datapath/names.h"
#include "native/datapath/settings.h"
#include "native/engine/knob_text.h"

namespace weft::engine {

// The enumerators are in the same order as the words in the CHOICE row of the setting.
enum class AddressFamily : std::int32_t { automatic, ipv4, ipv6 };
enum class CrcMode : std::int32_t { automatic, on, off };
#define WEFT_NAME(name) name,
enum class DatapathKind : std::int32_t { WEFT_DATAPATHS(WEFT_NAME) automatic };
#undef WEFT_NAME
#define WEFT_WORD(name) #name "|"
enum class RdmaMode : std::int32_t { automatic, uc, rc, ud };
enum class LocalMode : std::int32_t { automatic, parent, any, ring, off };
enum class RdmaPlacement : std::int32_t { slots, direct };
enum class LogLevel : std::int32_t { error, warn, info, debug };

// The environment variable of a row is WEFT_ followed by the field in upper case. `wild` lists values for randomised
// tests. `who` sets it: operator (runs jobs), researcher (writes policies), measurer (compares speeds and costs),
// tests.
//   TEXT(field, who, default, wild, sentence)
//   INTEGER(field, who, unit, default, low, high, zero, wild, sentence)   zero: 0 is allowed below `low`: automatic
//   REAL(field, who, unit, default, low, high, wild, sentence)
//   CHOICE(field, who, enum, default, words, wild, sentence)
// clang-format off
#define WEFT_KNOB_TABLE(TEXT, INTEGER, REAL, CHOICE)                                                                  \
  TEXT(interfaces, operator, "", "lo",                                                                                \
    "Network interfaces to use, by name (eth0), address (10.0.0.1) or prefix (10.0.0.0/8): ',' separates devices, "   \
    "'+' joins NICs into one device; '^' before the list leaves those out of what is used if it is empty: what "      \
    "NCCL_SOCKET_IFNAME says, else every interface with an address beyond its link that is no bridge, overlay or "    \
    "container network; without one, a routable address of lo, else lo")                                                                                 \
  CHOICE(datapath, operator, DatapathKind, udp, WEFT_DATAPATHS(WEFT_WORD) "auto", "udp,auto",                         \
    "What moves the data: UDP sockets, RDMA queue pairs, UDP through AF_XDP past the kernel's stack; auto: queue pairs " \
    "where a device works, UDP sockets otherwise")                                                                    \
  CHOICE(local, operator, LocalMode, automatic, "auto|parent|any|ring|off", "auto,ring",                                \
    "Messages between processes of one host and user pass through shared memory instead of the network; auto: long "  \
    "ones are copied once where the kernel allows it; parent, any: as auto, and where Yama forbids that, this "       \
    "process permits its parent and all that descend from it, or any process of its user, to trace it, which lets "   \
    "them read its memory; ring: long ones are copied twice, too. Policies, paths, faults and plans play no part "    \
    "there, so that a knob that sets one of them turns it off")                                                       \
  TEXT(rdma_devices, operator, "", "",                                                                                \
    "RDMA ports to use, as in rxe0 or mlx5_0:1@3 (port 1, GID 3): ',' separates devices, '+' joins ports into one "   \
    "device; empty: what NCCL_IB_HCA says, else every active RoCE or InfiniBand port")                                \
  TEXT(rdma_library, tests, "", "",                                                                                   \
    "A file to load in place of libibverbs, as tests do to emulate an RDMA device; empty: libibverbs itself")         \
  CHOICE(family, operator, AddressFamily, automatic, "auto|ipv4|ipv6", "ipv4,ipv6",                                   \
    "Address family of control and data sockets")                                                                     \
  TEXT(control_port, operator, "0", "0",                                                                              \
    "TCP port that listeners take when the caller names none: one, a range such as 7000-7063, of which each process " \
    "of a host takes free ones, or 0 for any free port")                                                              \
  INTEGER(engines, operator, "count", 0, 0, 64, true, "1,2,4",                                                        \
    "Engine threads of the process; 0: a quarter of the cores that affinity and CPU quota allow, 1 to 8, but not "    \
    "more than the CPUs of a list in WEFT_ENGINE_CPUS; 1 with WEFT_DATAPATH=xdp")                                     \
  TEXT(engine_cpus, operator, "auto", "any,0",                                                                        \
    "CPUs on which engine threads run: auto (those near the devices; all if a NUMA node is unknown or has fewer CPUs " \
    "than there are engines), any, or a list such as 0-3,8 (CPUs that the process may not use are left out)")         \
  INTEGER(paths, operator, "count", 0, 1, 256, true, "1,2,3,64,256",                                                  \
    "Paths to each peer, one UDP port pair or queue pair each; 0: 32")                                                \
  INTEGER(stripes, measurer, "count", 0, 0, 16, true, "1,2,5",                                                        \
    "Flows of a connection, over which large messages are striped; 0: chosen from the number of engines")             \
  TEXT(port_base, operator, "0", "20000,20000-24095",                                                                 \
    "UDP ports of the data paths: the first one, so that engine e's path i takes port_base + e * paths + i of its "   \
    "address, or a range such as 20000-24095, of which each process of a host takes free ones; 0: any free ports")    \
  TEXT(plan, operator, "", "",                                                                                        \
    "Plan of weft plan assign, which chooses the UDP ports at both ends of each path; empty: path i takes port i of " \
    "both ends")                                                                                                      \
  TEXT(weights, operator, "", "",                                                                                     \
    "File in which weft plan watch writes the weights of paths, which connections then follow; needs "                \
    "WEFT_PATH_POLICY=weighted; empty: none")                                                                         \
  TEXT(tune, operator, "", "",                                                                                        \
    "File of weft estimate tune, which chooses NCCL's algorithm, protocol and channels; the same at every rank; "     \
    "empty: NCCL chooses")                                                                                            \
  INTEGER(segment_bytes, measurer, "bytes", 0, 576, 65472, true, "576,1472,4096,65472",                               \
    "Datagram payload, our header included, at most what the path MTU leaves; 0: as much as that, up to 65472")       \
  INTEGER(eager_bytes, measurer, "bytes", core::defaults::kEagerBytes, 0, 65536, false, "0,1,65536",                  \
    "Messages up to this size are sent before the receiver advertises a buffer")                                      \
  TEXT(window_policy, researcher, "swift", "fixed",                                                                   \
    "Window policy: how much may be in flight and how fast it leaves; parameters as in swift:decrease_max=0.3")       \
  TEXT(path_policy, researcher, "power_of_two", "fixed",                                                              \
    "Path policy: which path the next burst takes")                                                                   \
  TEXT(loss_policy, researcher, "rack", "fixed",                                                                      \
    "Loss policy: what counts as lost, and when to look again")                                                       \
  TEXT(credit_policy, researcher, "none", "none",                                                                     \
    "Credit policy: what a receiver lets its senders send; none: receivers grant no credit")                          \
  TEXT(traffic_classes, operator, "", "",                                                                             \
    "Policies by NCCL traffic class, as in '3 window=dctcp path=reps; 7 loss=go_back_n'; other classes: those above") \
  TEXT(policy_directory, researcher, "", "",                                                                          \
    "Directory searched for compiled policies before the shipped ones; empty: the shipped ones only")                 \
  TEXT(record_file, researcher, "", "",                                                                               \
    "File into which every decision of every policy is recorded, up to 1 GiB, for weft policy replay; '%p' becomes "  \
    "the process id")                                                                                                 \
  INTEGER(window_bytes_max, operator, "bytes", core::defaults::kWindowBytesMax, 65536, 1073741824, false, "65536,1048576", \
    "Upper bound on a flow's bytes in flight, whatever the window policy asks for")                                   \
  INTEGER(handshake_timeout_ns, operator, "ns", 10000000000, 1000000, 3600000000000, false, "100000000",              \
    "How long a connection attempt, or a stranger at a listener, may take to finish its handshake")                   \
  INTEGER(gpu_pool_bytes, operator, "bytes", 268435456, 1048576, 1099511627776, false, "1048576",                     \
    "Pinned host memory that messages in GPU memory pass through, for each GPU; pinned when the first one is posted") \
  INTEGER(posts_max, measurer, "count", 65536, 1, 1048576, false, "1,16",                                             \
    "Sends, and receives, of a connection that may wait for room in the engines; further ones are refused")           \
  INTEGER(socket_buffer_bytes, operator, "bytes", 8388608, 65536, 1073741824, false, "65536",                         \
    "Kernel buffer asked for each data socket; the kernel may grant less")                                            \
  INTEGER(dscp, operator, "DSCP", 0, 0, 63, false, "0,26",                                                            \
    "Differentiated services code point of data and control packets over IP, for switches that prioritize")           \
  INTEGER(ecn, operator, "switch", 1, 0, 1, false, "0",                                                               \
    "1: mark datagrams as ECN-capable and report marks to the policies")                                              \
  CHOICE(payload_crc, operator, CrcMode, automatic, "auto|on|off", "on,off",                                          \
    "Checksum over payloads, used where either end wants it; auto: over sockets, and where corruption is injected")   \
  INTEGER(nccl_speed_mbps, operator, "Mbit/s", 0, 0, 10000000, true, "1000,400000",                                   \
    "Speed reported to NCCL for each device; 0: the device's own, 10000 where the kernel does not say, as NCCL's Socket") \
  INTEGER(nccl_receives_max, operator, "count", 1, 1, 8, false, "8",                                                  \
    "Buffers of one grouped receive of NCCL, whose InfiniBand transport takes 8; with more than 1 each receive costs " \
    "a message more")                                                                                                 \
  TEXT(telemetry, operator, "auto", "off",                                                                            \
    "Where the process keeps its counters for weft counters --live: auto (a file in /dev/shm, or private memory and " \
    "a warning where it has no room), off, or the absolute path of a directory, which must have room")                \
  TEXT(trace, operator, "", "",                                                                                       \
    "Directory for a trace of messages and of NCCL's operations, which weft trace reads; made if its parent exists; " \
    "empty: none")                                                                                                    \
  TEXT(trace_job, operator, "", "job-17",                                                                             \
    "Name of the job in its traces; empty: that of the launcher (Slurm, PBS, LSF, torchrun)")                         \
  INTEGER(trace_kernels, measurer, "count", 0, 1, 1000000000, true, "1,100",                                          \
    "The trace has the times of NCCL's kernels on the GPU for one in this many operations; with it, all collectives " \
    "are slower; 0: for none")                                                                                        \
  TEXT(profiler_chain, operator, "", "",                                                                              \
    "Another profiler plugin of NCCL, as in NCCL_PROFILER_PLUGIN, that gets all of NCCL's calls after weft's profiler") \
  TEXT(secret_file, operator, "", "",                                                                                 \
    "File with the shared secret; when set, peers that do not hold it are refused")                                   \
  CHOICE(log_level, operator, LogLevel, warn, "error|warn|info|debug", "error,debug",                                 \
    "Least severe message that is logged")

// Settings that consist of keys, as in WEFT_FAULT=loss=0.01,seed=7. A key that is not given keeps its default.
//   GROUP(group, who, wild, sentence)
#define WEFT_KNOB_GROUPS(GROUP)                                                                                       \
  GROUP(rdma, operator, "mode=uc,mode=rc,mode=ud,placement=direct,mtu=1024,slots=64",                                 \
    "Queue pairs")                                                                                                    \
  GROUP(rto, operator, "min=10us,max=60s",                                                                            \
    "Bounds on the retransmission timeout, which follows the measured round-trip time")                               \
  GROUP(peer_timeout, operator, "silence=50ms,dead=3s,stall=1s",                                                      \
    "When a connection ends with an error")                                                                           \
  GROUP(open_bytes, operator, "address=1MiB,all=1MiB",                                                                \
    "Memory for connections that peers opened without authentication; when it is full, connections that never "       \
    "answered on a data path are ended, and if there are none, new ones are refused")                                 \
  GROUP(poll, operator, "engine=0,caller=0,share=1,copiers=3",                                                        \
    "CPU time spent to save waking threads, and cores that copy at once")                                             \
  GROUP(trace_limits, operator, "bytes=1MiB,age=1s",                                                                  \
    "What is kept of a process's trace")                                                                              \
  GROUP(fault, tests, "loss=0.02,reorder=0.1,duplicate=0.1,corrupt=0.001,qp_error=0.001,seed=2,paths=0+1",            \
    "Injected faults")

//   TEXT(group, key, field, default, sentence)
//   INTEGER(group, key, field, unit, default, low, high, zero, sentence)
//   REAL(group, key, field, unit, default, low, high, sentence)
//   CHOICE(group, key, field, enum, default, words, sentence)
#define WEFT_KNOB_KEYS(TEXT, INTEGER, REAL, CHOICE)                                                                   \
  CHOICE(rdma, mode, rdma_mode, RdmaMode, automatic, "auto|uc|rc|ud",                                                 \
    "Transport of the queue pairs; auto: the first of UC, RC, UD that the device can do")                             \
  CHOICE(rdma, placement, rdma_placement, RdmaPlacement, slots, "slots|direct",                                       \
    "Where segments land: in slots that are copied out of, or directly in registered buffers, through a window that " \
    "the NIC closes before each message completes")                                                                   \
  INTEGER(rdma, mtu, rdma_mtu_bytes, "bytes", 0, 256, 4096, true,                                                     \
    "Largest packet of a queue pair; 0: what the port has active")                                                    \
  INTEGER(rdma, slots, rdma_slots, "count", 2048, 64, 65536, false,                                                   \
    "Segments that an engine can hold in registered memory for a port, in each direction")                            \
  INTEGER(rdma, traffic_class, rdma_traffic_class, "class", 0, 0, 255, false,                                         \
    "Traffic class of RoCE packets: the DSCP in its upper six bits")                                                  \
  INTEGER(rdma, service_level, rdma_service_level, "level", 0, 0, 15, false,                                          \
    "Service level of RDMA packets")                                                                                  \
  INTEGER(rdma, spread_ports, rdma_spread_ports, "switch", 1, 0, 1, false,                                            \
    "1: every path has a flow label of its own, which RoCE v2 turns into a UDP source port for ECMP to spread")       \
  INTEGER(rto, min, rto_ns_min, "ns", core::defaults::kRtoNsMin, 10000, 60000000000, false,                           \
    "Lower bound")                                                                                                    \
  INTEGER(rto, max, rto_ns_max, "ns", core::defaults::kRtoNsMax, 10000, 60000000000, false,                           \
    "Upper bound")                                                                                                    \
  INTEGER(peer_timeout, silence, peer_silence_ns, "ns", core::defaults::kPeerSilenceNs, 50000000, 3600000000000,      \
    false,                                                                                                            \
    "When its peer runs and no data path has carried anything for this long")                                         \
  INTEGER(peer_timeout, dead, peer_dead_ns, "ns", 20000000000, 3000000000, 3600000000000, false,                      \
    "When nothing is heard of its peer process or of that host's kernel for this long")                               \
  INTEGER(peer_timeout, stall, peer_stall_ns, "ns", 0, 1000000, 86400000000000, true,                                 \
    "When its peer process has not run for this long although its host answers; 0: never, it is waited for")          \
  INTEGER(open_bytes, address, open_bytes_per_address, "bytes", 67108864, 1048576, 1099511627776, false,              \
    "Memory for the connections that peers of one address opened without authentication")                             \
  INTEGER(open_bytes, all, open_bytes, "bytes", 268435456, 1048576, 1099511627776, false,                             \
    "Memory for the connections that peers of all addresses opened without authentication")                           \
  INTEGER(poll, engine, spin_ns, "ns", 100000, 0, 1000000000, false,                                                  \
    "How long an idle engine, or a thread that opens connections, spins before it sleeps, at most; less if other "    \
    "threads want its core")                                                                                          \
  INTEGER(poll, caller, poll_ns, "ns", 200000, 0, 1000000000, false,                                                  \
    "How long a waiting caller runs its engine before it sleeps; with a buffer of 32 to 512 KiB up to four times as " \
    "long; 50 ms at most. 0: callers, and NCCL's thread, never run engines")                                          \
  REAL(poll, share, poll_share, "share", 0.05, 0.0, 1.0,                                                              \
    "Share of the time that the callers of a connection may poll without receiving anything, or for longer than "     \
    "WEFT_POLL=caller; 0: none")                                                                                      \
  INTEGER(poll, copiers, copiers, "count", 0, 1, 8, true,                                                             \
    "Threads that copy a long message out of another process of this host at once, the receiver's included; 0: 1 "    \
    "with fewer than 3 cores that affinity and CPU quota allow, 2 with fewer than 8, else 3")                         \
  INTEGER(trace_limits, bytes, trace_bytes_max, "bytes", 1073741824, 1048576, 68719476736, false,                     \
    "Size above which the oldest files of a process's trace are removed")                                             \
  INTEGER(trace_limits, age, trace_keep_ns, "ns", 0, 1000000000, 31536000000000000, true,                             \
    "Age above which files of a process's trace are removed; 0: only WEFT_TRACE_LIMITS=bytes removes files")          \
  INTEGER(fault, seed, fault_seed, "seed", 1, 0, 9223372036854775807, false,                                          \
    "Seed of the faults")                                                                                             \
  REAL(fault, loss, fault_loss, "probability", 0.0, 0.0, 1.0,                                                         \
    "Loss per datagram; 1: nothing arrives on the data paths")                                                        \
  REAL(fault, reorder, fault_reorder, "probability", 0.0, 0.0, 0.9,                                                   \
    "Reordering per datagram")                                                                                        \
  REAL(fault, duplicate, fault_duplicate, "probability", 0.0, 0.0, 0.9,                                               \
    "Duplication per datagram")                                                                                       \
  REAL(fault, corrupt, fault_corrupt, "probability", 0.0, 0.0, 0.9,                                                   \
    "Bit errors per datagram")                                                                                        \
  REAL(fault, qp_error, fault_qp_error, "probability", 0.0, 0.0, 0.9,                                                 \
    "Failures of queue pairs, per burst: each is moved to its error state")                                           \
  TEXT(fault, paths, fault_paths, "",                                                                                 \
    "Paths on which faults are injected, as in 0+3: those of the receiving end's ports; empty: all")
// clang-format on

struct Knobs {
#define WEFT_KNOB_TEXT(field, who, value, wild, sentence) std::string field = value;
#define WEFT_KNOB_INTEGER(field, who, unit, value, low, high, zero, wild, sentence) std::int64_t field = value;
#define WEFT_KNOB_REAL(field, who, unit, value, low, high, wild, sentence) double field = value;
#define WEFT_KNOB_CHOICE(field, who, type, value, words, wild, sentence) type field = type::value;
  WEFT_KNOB_TABLE(WEFT_KNOB_TEXT, WEFT_KNOB_INTEGER, WEFT_KNOB_REAL, WEFT_KNOB_CHOICE)
#undef WEFT_KNOB_TEXT
#undef WEFT_KNOB_INTEGER
#undef WEFT_KNOB_REAL
#undef WEFT_KNOB_CHOICE
#define WEFT_KEY_TEXT(group, key, field, value, sentence) std::string field = value;
#define WEFT_KEY_INTEGER(group, key, field, unit, value, low, high, zero, sentence) std::int64_t field = value;
#define WEFT_KEY_REAL(group, key, field, unit, value, low, high, sentence) double field = value;
#define WEFT_KEY_CHOICE(group, key, field, type, value, words, sentence) type field = type::value;
  WEFT_KNOB_KEYS(WEFT_KEY_TEXT, WEFT_KEY_INTEGER, WEFT_KEY_REAL, WEFT_KEY_CHOICE)
#undef WEFT_KEY_TEXT
#undef WEFT_KEY_INTEGER
#undef WEFT_KEY_REAL
#undef WEFT_KEY_CHOICE
  // Not in the table of settings: only tests change it, to a small number.
  std::int64_t eager_slots = core::defaults::kEagerSlots;
};

// One key of a setting as text, for listings and documentation; see KnobInfo.
struct KeyInfo {
  std::string name, type, unit, value, range, sentence;  // value: the default
};

// One setting of the table as text, for listings and documentation.
struct KnobInfo {
  std::string field;
  std::string variable;
  std::string set_by;         // "operator", "researcher", "measurer" or "tests"
  std::string type;           // "text", "integer", "real", "choice" or "keys"
  std::string unit;           // empty for types text, choice and keys
  std::string default_value;  // as written in an environment variable
  std::string range;          // "1..256", "0 or 576B..65472B", "auto|ipv4|ipv6"; empty for types text and keys
  std::string wild;           // values for randomised tests, separated by ','
  std::string sentence;
  std::vector<KeyInfo> keys = {};  // the keys of a setting of type "keys"; else empty
};
const std::vector<KnobInfo>& knob_table();

// Returns the value of a setting as text; empty if there is no setting of that name.
std::string knob_value(const Knobs& knobs, const std::string& name);

// Sets a setting; `name` is its field or its variable. On failure nothing changes, and `error` states the setting, the
// value and the range.
Status set_knob(Knobs* knobs, const std::string& name, const std::string& text, std::string* error);

// Reads all WEFT_* variables of the environment but empty ones. Fails for unknown names and invalid values.
Status load_knobs(Knobs* knobs, std::string* error);

// The ports that the knobs control_port and port_base allow. check_knobs() has accepted the texts.
PortRange control_ports(const Knobs& knobs) noexcept;
PortRange data_ports(const Knobs& knobs) noexcept;

// Whether the knob port_base has a port for each path of the engines; if not, `error` says how many are needed.
bool ports_suffice(const Knobs& knobs, std::int64_t engines, std::int64_t paths, std::string* error);

// Number of paths if the knob `paths` is 0. If ECMP has four routes, the probability that one of them gets no path is 2
// in 5 with 8 paths, and 1 in 2,500 with 32.
inline constexpr std::int64_t kPathsDefault = 32;

// Gives datapaths access to the settings by name. `knobs` must outlive this object.
class KnobSettings final : public datapath::Settings {
 public:
  explicit KnobSettings(const Knobs& knobs) noexcept : knobs_(&knobs) {}
  std::string text(const char* knob) const override;
  std::int64_t number(const char* knob) const override;
  double real(const char* knob) const override;

 private:
  const Knobs* knobs_;
};

// Checks conditions that involve several settings. load_knobs() calls it at its end.
Status check_knobs(const Knobs& knobs, std::string* error);

}  // namespace weft::engine
