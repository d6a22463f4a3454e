"""Lists the keys of a scenario: their kinds, bounds, defaults and meanings.

docs/SIMULATOR.md contains these tables.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from transport.ground.text import markdown_table, nearest
from transport.sim.errors import BadKeyError
from transport.sim.key import (
    HOSTS_MAX,
    Key,
    Path,
    Table,
    bytes_key as _bytes,
    int_key as _int,
    ns_key as _ns,
    rate_key as _rate,
    share_key as _share,
)

SAMPLES_MAX = 10_000_000

TOPOLOGIES = ("fat_tree", "rail", "multi_plane", "dumbbell", "lab", "file")
PATTERNS = (
    *("permutation", "incast", "outcast", "all_to_all", "all_reduce_ring", "all_reduce_tree"),
    *("all_reduce_double_tree", "reduce_scatter", "reduce_scatter_pat", "all_gather"),
    *("all_gather_pat", "broadcast", "reduce", "moe", "poisson", "flows", "goal", "chakra"),
    *("steps", "trace"),
)

FAULT_KINDS = (
    *("slow_nic", "lossy_link", "link_down", "flapping", "crash", "stopped_process"),
    *("straggler", "late_calls", "absent_rank", "wrong_call", "collision", "second_job"),
)

OPERATIONS = (
    *("all_reduce_ring", "all_reduce_double_tree", "reduce_scatter", "reduce_scatter_pat"),
    *("all_gather", "all_gather_pat", "broadcast", "reduce", "all_to_all", "send", "receive"),
)

TOP: Table = {
    "name": Key("text", None, "name in reports; default: the file's name"),
    "about": Key("text", "", "one sentence, for `weft sim --list`"),
    "seed": _int(1, "seed of all random choices", 0, (1 << 63) - 1),
    "limit_ns": _ns(1_000_000_000, "virtual time after which a run ends, done or not", 1),
    "compare": Key(
        "bool",
        False,
        "a run with policies from options is shown beside one with the scenario's own",
    ),
    "network": Key("table", {}, "the hosts, the switches and the links"),
    "hosts": Key("table", {}, "protocol settings of every host"),
    "policies": Key("table", {}, 'policies by family, as window = "swift:decrease_max=0.3"'),
    "workload": Key("tables", (), "one [[workload]] for each job"),
    "events": Key("tables", (), "one [[events]] for each change of links"),
    "faults": Key("tables", (), "one [[faults]] for each fault (docs/DIAGNOSIS.md)"),
    "plans": Key("tables", (), "one [[plans]] for each plan of paths (docs/PLANNING.md)"),
    "samples": Key("table", {}, "values to sample over time"),
    "nodes": Key("tables", (), 'one [[nodes]] for each node, with topology = "file"'),
    "links": Key("tables", (), 'one [[links]] for each link, with topology = "file"'),
}

# Properties of a link in each direction.
LINK: Table = {
    "rate": _rate(12_500_000_000, "rate of a link to a host"),
    "delay_ns": _ns(1_000, "delay of a link and of the switch that it leads to", 1),
    "queue_bytes": _bytes(
        None,
        "size of the queue, with the packet that is being sent; default: 10 us at the link's rate",
        256,
    ),
    "mark_from_bytes": _bytes(
        None,
        "queue length above which ECN marking begins; default: a fifth of "
        "queue_bytes, or 0 with mark_full_bytes = 0",
    ),
    "mark_full_bytes": _bytes(
        None,
        "queue length from which every packet is marked; 0: no marks; default: four fifths of "
        "queue_bytes",
    ),
    "loss": _share(0.0, "share of packets lost on the wire"),
    "bit_error_rate": _share(0.0, "probability of a bit error, which loses the packet"),
}

NETWORK: Table = {
    "topology": Key("text", "fat_tree", "the shape", choices=TOPOLOGIES),
    "hosts": _int(None, "number of hosts; not with topology lab or file"),
    "tiers": _int(2, "tiers of a fat tree: 2 (leaf, spine) or 3 (leaf, spine, core)", 2, 3),
    "radix": _int(
        None,
        "ports of a switch; default without hosts_per_leaf: the least power of "
        "two that fits the hosts",
        2,
    ),
    "hosts_per_leaf": _int(None, "hosts of a leaf; default: half the radix"),
    "spines": _int(
        None,
        "spines of each leaf, or with 3 tiers of each pod; default: derived from oversubscription",
    ),
    "pods": _int(None, "number of pods with 3 tiers; default: derived from the radix"),
    "cores": _int(
        None,
        "number of cores with 3 tiers, a multiple of spines; default: enough to "
        "carry the rate of the spines",
    ),
    "oversubscription": Key("number", 1, "rate into a leaf over rate out of it", 0.01, 1_000),
    "rails": _int(
        8,
        "with topology rail: NICs of a server; host h is NIC h % rails of server h // rails",
        1,
        1024,
    ),
    "planes": _int(
        4,
        "with topology multi_plane: ports of a host; path p leaves by port "
        "p % planes, and each plane is a fat tree of 2 tiers",
        1,
        64,
    ),
    **LINK,
    "uplink_rate": _rate(
        None,
        "rate of links between switches; default: rate, or derived from "
        "oversubscription and spines; with topology dumbbell: the middle link",
    ),
    "uplink_delay_ns": _ns(None, "delay of links between switches; default: delay_ns", 1),
    "uplink_queue_bytes": _bytes(
        None, "queue of links between switches; default: queue_bytes, or 10 us at their rate", 256
    ),
    "lab": Key("text", None, "with topology lab: a lab file (docs/LAB.md), relative to this file"),
    "host_queues": Key(
        "bool",
        False,
        "with topology lab: a host puts packets into its device's "
        "queue immediately, and packets that do not fit are lost; false: packets "
        "wait in the host",
    ),
    "ecmp": Key(
        "text",
        "hashed",
        "hashed: by hosts, path and switch, as routers do; even: path p is "
        "pinned to route p, and two paths share one only after all are in use; adaptive: each "
        "switch sends a packet through the port that is free soonest; drill: "
        "through the best of two drawn ports and the last best one",
        choices=("hashed", "even", "adaptive", "drill"),
    ),
    "reroute_ns": _ns(
        None,
        "switches leave out a link between switches, and routes that need it, this long after it "
        "went down, and use it again this long after it came up; default: never",
    ),
    "trim": Key(
        "bool", False, "a full queue trims packets: it drops the payload and keeps the header"
    ),
    "priority": Key("bool", True, "acknowledgments and trimmed headers go before data"),
    "header_queue_bytes_max": _bytes(1 << 20, "size of the priority queue", 256),
    "buffer_bytes": _bytes(
        0,
        "memory for data that all queues of a switch share, instead of queue_bytes each; then "
        "queue_bytes only gives the defaults of marks; 0: none is shared",
    ),
    "buffer_alpha": Key(
        "number",
        1.0,
        "a queue may hold this many times the free bytes of a shared buffer (dynamic thresholds)",
        0.01,
        1_024,
    ),
    "pause_bytes": _bytes(0, "PFC: an ingress is paused from this queue length on; 0: no PFC"),
    "resume_bytes": _bytes(0, "PFC: a paused ingress resumes at this queue length"),
}

HOSTS: Table = {
    "delay_ns": _ns(0, "delay from the wire to the transport"),
    "jitter_ns": _ns(0, "random additional delay, up to this; packets stay in order"),
    "paths": _int(64, "paths of every connection", 1, 256),
    "segment_bytes": _bytes(4160, "size of a packet, with weft's header of 64 bytes", 128, 65_535),
    "wire_overhead_bytes": _bytes(0, "bytes of other headers, on every packet", 0, 1_000),
    "burst_bytes_max": _bytes(65_536, "bytes that one decision sends on one path", 128, 1 << 20),
    "ahead": _int(4, "messages of a connection posted at a time", 1, 256),
    "receives_ready": Key("bool", True, "false: receives are advertised over the network"),
    "rtt_ns": _ns(
        None,
        "initial RTT of every path; 0: probes measure it; default: the longest RTT "
        "between communicating hosts in an empty network",
    ),
    "ack_bytes": _bytes(16_384, "bytes received between acknowledgments", 1),
    "ack_delay_ns": _ns(10_000, "longest delay of an acknowledgment", 0),
    "window_bytes_max": _bytes(16 << 20, "largest congestion window", 1_024),
    "rto_ns_min": _ns(100_000, "least retransmit timeout", 1_000),
    "rto_ns_max": _ns(10_000_000, "largest retransmit timeout", 1_000),
    "peer_silence_ns": _ns(20_000_000_000, "a peer silent for this long counts as dead", 1),
    "speculative_bytes": _bytes(
        None,
        "with a credit policy: bytes that a flow may send before "
        "its first grant; default: its window",
    ),
    "link_rate": _rate(
        None, "link rate reported to policies; default: the sum of the rates of a host's ports"
    ),
}

_EVERY: Table = {
    "pattern": Key("text", "permutation", "traffic pattern", choices=PATTERNS),
    "name": Key("text", None, "name in reports; default: the pattern"),
    "hosts": Key(
        "ranks", None, 'participating hosts in order: "0-31", "0-62/2,70" or a list; default: all'
    ),
    "shuffle": Key("bool", False, "assign ranks to these hosts at random"),
    "start_ns": _ns(0, "earliest start"),
    "jitter_ns": _ns(0, "random delay, up to this, of each transfer that waits for no other"),
    "policies": Key(
        "table",
        {},
        'policies of its transfers, as { window = "dctcp" }; default: those of [policies]',
    ),
    "mix": Key("tables", (), "other policies for some of its connections: [[workload.mix]]"),
}
# The keys of one entry of a workload's mix.
MIX: Table = {
    "policies": Key(
        "table",
        {},
        "policies by family; families that it does not name are those of the workload",
    ),
    "share": _share(
        None,
        "share of the workload's connections, drawn at random, without those of hosts",
    ),
    "hosts": Key("ranks", None, 'instead of share: hosts that send, as "0-15"'),
}
_SIZE: Table = {"size_bytes": _bytes(1_000_000, "size of each message", 0)}
_BUFFER: Table = {"size_bytes": _bytes(1_000_000, "size of the buffer, as in nccl-tests", 1)}
_REPEATS: Table = {
    "repeats": _int(1, "number of consecutive repeats", 1, 1 << 20),
    "gap_ns": _ns(0, "compute time between repeats"),
}
WORKLOAD: dict[str, Table] = {
    "every pattern": _EVERY,
    "permutation": _SIZE | {"repeats": _int(1, "messages of each host, in order", 1, 1 << 20)},
    "incast": {
        **_SIZE,
        "to": _int(0, "rank that receives", 0),
        "senders": _int(None, "number of senders, chosen at random; default: all others"),
        "repeats": _int(1, "messages of each sender, in order", 1, 1 << 20),
    },
    "outcast": {
        **_SIZE,
        "from": _int(0, "rank that sends", 0),
        "receivers": _int(None, "number of receivers, chosen at random; default: all others"),
        "repeats": _int(1, "messages to each receiver, in order", 1, 1 << 20),
    },
    "all_to_all": {
        **_BUFFER,
        **_REPEATS,
        "window": _int(
            4, "messages of a rank in flight: rank r sends to r + 1 first, then to r + 2, and so on"
        ),
    },
    "all_reduce_ring": {
        **_BUFFER,
        **_REPEATS,
        "channels": _int(
            1,
            "parallel rings, each with its part of the buffer; odd ones run in "
            "the opposite direction",
            1,
            64,
        ),
    },
    "all_reduce_tree": {
        **_BUFFER,
        **_REPEATS,
        "slices": _int(8, "pieces that are pipelined up and down a binary tree", 1, 4_096),
    },
    "all_reduce_double_tree": {
        **_BUFFER,
        **_REPEATS,
        "slices": _int(8, "pieces that are pipelined up and down each tree", 1, 4_096),
    },
    "reduce_scatter": _BUFFER | _REPEATS,
    "reduce_scatter_pat": _BUFFER | _REPEATS,
    "all_gather": _BUFFER | _REPEATS,
    "all_gather_pat": _BUFFER | _REPEATS,
    "broadcast": {
        **_BUFFER,
        **_REPEATS,
        "root": _int(0, "rank that sends", 0),
        "slices": _int(8, "pieces that are pipelined along the ring", 1, 4_096),
    },
    "reduce": {
        **_BUFFER,
        **_REPEATS,
        "root": _int(0, "rank that gets the sum", 0),
        "slices": _int(8, "pieces that are pipelined along the ring", 1, 4_096),
    },
    "moe": {
        "tokens": _int(4_096, "tokens of each rank", 1, 1 << 24),
        "token_bytes": _bytes(7_168, "size of a token on its way to an expert", 1, 1 << 24),
        "combine_token_bytes": _bytes(
            None,
            "size of a token on its way back; default: twice "
            "token_bytes (8-bit there, 16-bit back)",
            1,
            1 << 24,
        ),
        "top_k": _int(8, "experts of a token", 1, 1_024),
        "experts": _int(None, "number of experts, a multiple of the ranks; default: one per rank"),
        "skew": Key("number", 0.0, "Zipf exponent of the experts' popularity; 0: uniform", 0, 8),
        "compute_ns": _ns(0, "compute time of an expert before tokens go back"),
        "wait": Key(
            "text",
            "all",
            "all: a rank sends tokens back after it received from all "
            "ranks; each: to each rank after it received that rank's tokens",
            choices=("all", "each"),
        ),
        **_REPEATS,
    },
    "poisson": {
        "sizes": Key(
            "sizes",
            "websearch",
            "websearch, hadoop, alistorage, google_rpc, or a list of [bytes, cumulative share], "
            "interpolated linearly",
        ),
        "load": Key("number", 0.5, "offered load as a share of each host's rate", 0.000_1, 2),
        "duration_ns": _ns(10_000_000, "time during which messages arrive", 1),
    },
    "flows": {
        "file": Key(
            "text",
            None,
            "a list of flows, relative to this file: .csv with the columns from, to, bytes, "
            "start_ns, stream, or a .cm of htsim",
        ),
    },
    "goal": {
        "file": Key("text", None, "a schedule in GOAL's text form, relative to this file"),
        "ns_per_calc": Key("number", 1.0, "ns of one unit of calc", 0, 1e9),
    },
    "chakra": {
        "file": Key(
            "text",
            None,
            "Chakra execution traces, one for each rank, relative to this file, as "
            '"trace.{rank}.et"; needs protobuf',
        ),
        "ops_per_s": Key(
            "number", 0, "speed of computations that give num_ops and no duration", 0, 1e21
        ),
    },
    "steps": {
        "operations": Key(
            "tables",
            (),
            "the operations of a training step, a list of tables "
            "with the keys of [[workload]], operations of steps",
        ),
        "repeats": _int(1, "number of steps", 1, 1 << 20),
        "launch_ns": _ns(0, "time of a host to launch an operation; 0: hosts launch at once"),
        "sync": Key(
            "bool",
            True,
            "at the end of a step a host waits for its GPU, as with "
            "loss.item(); false: it launches ahead",
        ),
        "slow_ranks": Key("list", (), "ranks whose computations take longer, as [3, 7]"),
        "slow_factor": Key("number", 1.5, "factor by which they take longer", 0.01, 1_000),
        "noise": Key(
            "number",
            0,
            "standard deviation of the logarithm of each computation's time: 0.03 is about 3 %",
            0,
            1,
        ),
    },
    "trace": {
        "file": Key("text", None, "folder of a trace, relative to this file (docs/TRACING.md)"),
        "job": Key("text", None, "job in the trace; default: the only one"),
        "scale": Key(
            "number",
            1,
            "ranks of the run over ranks of the trace: a whole number or its reciprocal",
            1 / 65_536,
            65_536,
        ),
        "size_factor": Key("number", 1, "factor for the sizes of all operations", 0, 1e6),
        "compute_factor": Key("number", 1, "factor for the times between operations", 0, 1e6),
    },
}
# The keys of one operation of a step.
OPERATION: Table = {
    "name": Key("text", None, "name for `after` and in traces; default: operation and its number"),
    "compute_ns": _ns(None, "a computation of this time"),
    "collective": Key(
        "text", None, "a collective, send or receive, not with compute_ns", choices=OPERATIONS
    ),
    "size_bytes": _bytes(1_000_000, "size of the buffer, as in nccl-tests, or of the message", 1),
    "stream": Key(
        "text",
        None,
        "operations of a stream run in order; default: compute for "
        "computations, network for all others",
    ),
    "every": _int(1, "run only in every n-th step, as a checkpoint or an evaluation", 1, 1 << 20),
    "offset": _int(0, "with every: the first step with the operation", 0, 1 << 20),
    "ranks": Key("ranks", None, 'only at these ranks, as "0-3"; default: all'),
    "after": Key(
        "words",
        None,
        "operations of the same step that must have ended; default: for "
        "communication the computation before it",
    ),
    "group_ranks": _int(
        None, "size of its communicators, of consecutive ranks; default: one of all its ranks", 2
    ),
    "across": Key(
        "bool", False, "its communicators join the ranks at the same place of all such groups"
    ),
    "channels": _int(1, "channels of a ring", 1, 64),
    "slices": _int(8, "pieces that are pipelined along trees and chains", 1, 4_096),
    "root": _int(0, "root, as a rank of the communicator", 0),
    "shift": _int(
        1,
        "send: to the rank this much higher, or lower if negative; receive: from where it was sent",
        -HOSTS_MAX,
    ),
    "hop_ns": _ns(
        0,
        "time from a message's arrival until what waits for it: of kernels, or links inside a node",
    ),
}

EVENTS: Table = {
    "at_ns": _ns(0, "time of the change"),
    "link": Key(
        "words",
        None,
        'links: "leaf0-spine2" (both directions), "leaf0>spine2" (one), '
        "with * for any text; or a list",
    ),
    "pick": _int(None, "number of these links, chosen at random; default: all"),
    "up": Key("bool", None, "false: packets on the wire and later ones are lost"),
    "rate": _rate(None, "rate from at_ns on"),
    "loss": _share(None, "share of packets lost from at_ns on"),
    "until_ns": _ns(None, "time at which the change is undone", 1),
    "flap_ns": _ns(None, "period of flapping: half down, half up, from at_ns to until_ns", 2),
}

FAULTS: Table = {
    "kind": Key("text", None, "the fault", choices=FAULT_KINDS),
    "rank": _int(None, "rank of the first job of training steps", 0),
    "link": Key(
        "words",
        None,
        "link or links, named as in [[events]]; collision: the only ones "
        "that their switches use where they have a choice, from the start",
    ),
    "at_ns": _ns(0, "begin of a fault of the network or of a process"),
    "until_ns": _ns(None, "end of a fault of the network or of a process; default: never", 1),
    "at_step": _int(1, "first training step of a fault of calls or computations", 0, 1 << 20),
    "until_step": _int(None, "the step after the fault's last; default: never", 0, 1 << 20),
    "operation": _int(0, "absent_rank, wrong_call: which communication of the step, from 0", 0),
    "side": Key("text", "both", "slow_nic: direction", choices=("both", "send", "receive")),
    "rate_factor": Key("number", 0.25, "slow_nic: factor for the rate", 0.001, 1),
    "loss": _share(0.01, "lossy_link: share of packets lost"),
    "flap_ns": _ns(2_000_000, "flapping: period, half down, half up", 2),
    "compute_factor": Key("number", 2.0, "straggler: factor for its computations", 1, 1_000),
    "delay_ns": _ns(1_000_000, "late_calls: time by which the first call of each step is late"),
    "calls": Key(
        "text",
        None,
        'wrong_call: function that the rank calls, as "AllGather"; '
        "default: the right one, with another size",
    ),
    "size_bytes": _bytes(
        1_000_000, "wrong_call: size of that call; second_job: of its messages", 1
    ),
    "hosts": Key("ranks", None, 'second_job: its hosts, as "8-15"; each sends to another one'),
    "repeats": _int(100, "second_job: messages of each host", 1, 1 << 20),
}

PLANS: Table = {
    "file": Key(
        "text",
        None,
        "a plan of weft plan assign, relative to this file: the links that each path takes",
    ),
    "job": Key("text", None, "job of the plan; default: all jobs"),
    "at_ns": _ns(0, "time from which on paths take these links"),
}

SAMPLES: Table = {
    "every_ns": _ns(0, "time between samples; 0: no samples"),
    "links": Key("words", (), "links whose queues are sampled; named as in [[events]]"),
    "transfers": _int(8, "number of connections whose windows are sampled", 0, 4_096),
}

NODES: Table = {
    "name": Key("text", None, "name of the node"),
    "kind": Key("text", "switch", "kind of the node", choices=("host", "switch")),
    "count": _int(1, "number of such nodes: name0, name1, ..."),
}
LINKS: Table = {
    "from": Key("text", None, "a node"),
    "to": Key("text", None, "another"),
    **LINK,
}


def checked(table: Any, keys: Table, path: Path, what: str) -> dict[str, Any]:
    """A table's values in base units with defaults; raises BadKeyError for an unknown key."""
    if not isinstance(table, Mapping):
        raise BadKeyError(path, f"{table!r}: expected a table")
    for name in table:
        if name not in keys:
            text = f"{what} has no such key{nearest(str(name), list(keys))}"
            raise BadKeyError((*path, name), text)
    given = {name: keys[name].read((*path, name), value) for name, value in table.items()}
    return {name: key.default for name, key in keys.items()} | given


def all_tables() -> dict[str, Table]:
    """Every table of keys, by its heading in docs/SIMULATOR.md."""
    tables = {"At the top": TOP, "[network]": NETWORK, "[hosts]": HOSTS}
    tables |= {f"[[workload]], {name}": keys for name, keys in WORKLOAD.items()}
    tables |= {"[[workload]], operations of steps": OPERATION, "[[workload.mix]]": MIX}
    return tables | {
        "[[events]]": EVENTS,
        "[[faults]]": FAULTS,
        "[[plans]]": PLANS,
        "[samples]": SAMPLES,
        "[[nodes]]": NODES,
        "[[links]]": LINKS,
    }


def _default(key: Key) -> str:
    if key.default is None or key.kind in ("table", "tables"):
        return ""
    if key.kind == "bool":
        return str(key.default).lower()
    if isinstance(key.default, int | float):
        return f"{key.default:,}" if isinstance(key.default, int) else f"{key.default:g}"
    return str(key.default or "")


def markdown() -> str:
    """The tables of all keys in docs/SIMULATOR.md."""
    lines = []
    for heading, keys in all_tables().items():
        rows = []
        for name, key in keys.items():
            takes = " or ".join(f"`{one}`" for one in key.choices) or key.kind
            rows.append((f"`{name}`", takes, _default(key), key.meaning))
        table = markdown_table(("key", "takes", "default", "meaning"), rows)
        lines += [f"### {heading}", "", table, ""]
    return "\n".join(lines)
