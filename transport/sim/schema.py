"""The keys that a scenario may have: their kind, their bounds, their meaning.

docs/SIMULATOR.md has these tables.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from transport.lab.model import nearest
from transport.sim import units
from transport.sim.errors import BadKeyError

HOSTS_MAX = 65_536
BYTES_MAX = 1 << 40
NS_MAX = 10**15  # eleven days
RATE_MAX = 1 << 43  # bytes/s, 70 Tb/s
SAMPLES_MAX = 10_000_000

Path = tuple[str | int, ...]


@dataclass(frozen=True)
class Key:
    """One key: what it takes, what it is when it is not given, and its meaning.

    Kinds: int, bytes, ns, rate, share, number, bool, text, words (text or a list), table, tables
    (an array of them), sizes and ranks (both text or a list).
    A default of None: something else stands for it, as the meaning says.
    """

    kind: str
    default: Any
    meaning: str
    low: float = 0
    high: float = HOSTS_MAX
    choices: tuple[str, ...] = ()

    def read(self, path: Path, value: Any) -> Any:
        """The value in its unit, or BadKeyError."""
        try:
            return self._checked(value)
        except ValueError as error:
            raise BadKeyError(path, str(error)) from None

    def _checked(self, value: Any) -> Any:
        if self.kind in _UNITS:
            whole = _UNITS[self.kind](value)
            if not self.low <= whole <= self.high:
                raise ValueError(f"{value!r}: expected from {self.low:,} to {self.high:,}")
            return whole
        if self.kind in ("int", "share", "number"):
            kinds = (int,) if self.kind == "int" else (int, float)
            fits = isinstance(value, kinds) and not isinstance(value, bool)
            if not fits or not self.low <= value <= self.high or not math.isfinite(value):
                what = "a whole number" if self.kind == "int" else "a number"
                raise ValueError(f"{value!r}: expected {what} from {self.low:,} to {self.high:,}")
            return value
        if not isinstance(value, _TYPES[self.kind]):
            raise ValueError(f"{value!r}: expected {_EXPECTED[self.kind]}")
        if self.choices and value not in self.choices:
            raise ValueError(f"{value!r}: there are {', '.join(self.choices)}")
        return value


_UNITS = {"bytes": units.bytes_of, "ns": units.ns_of, "rate": units.rate}
_TYPES: dict[str, type | tuple[type, ...]] = {
    "bool": bool,
    "text": str,
    "words": (str, list),
    "table": Mapping,
    "sizes": (str, list),
    "ranks": (str, list),
    "tables": (list, tuple),
}
_EXPECTED = {
    "bool": "true or false",
    "text": "text in quotes",
    "words": "text, or a list of texts",
    "table": "a table",
    "tables": "an array of tables: write its name in two pairs of brackets",
    "sizes": "a name in quotes, or a list of [bytes, cumulative share]",
    "ranks": 'hosts as text such as "0-31" or "0-62/2,70", or a list of numbers',
}

Table = dict[str, Key]


def _bytes(default: Any, meaning: str, low: int = 0, high: int = BYTES_MAX) -> Key:
    return Key("bytes", default, meaning, low, high)


def _ns(default: Any, meaning: str, low: int = 0) -> Key:
    return Key("ns", default, meaning, low, NS_MAX)


def _int(default: Any, meaning: str, low: int = 1, high: int = HOSTS_MAX) -> Key:
    return Key("int", default, meaning, low, high)


def _share(default: Any, meaning: str) -> Key:
    return Key("share", default, meaning, 0, 1)


def _rate(default: Any, meaning: str) -> Key:
    return Key("rate", default, meaning, 1_000, RATE_MAX)


TOPOLOGIES = ("fat_tree", "rail", "multi_plane", "dumbbell", "lab", "file")
PATTERNS = (
    *("permutation", "incast", "outcast", "all_to_all", "all_reduce_ring", "all_reduce_tree"),
    *("reduce_scatter", "all_gather", "moe", "poisson", "goal"),
)

TOP: Table = {
    "name": Key("text", None, "in reports; the file's name when it is not given"),
    "about": Key("text", "", "one sentence, for `weft sim --list`"),
    "seed": _int(1, "of everything that is drawn", 0, (1 << 63) - 1),
    "limit_ns": _ns(1_000_000_000, "virtual time after which a run ends, done or not", 1),
    "network": Key("table", {}, "the hosts, the switches and the links"),
    "hosts": Key("table", {}, "what runs on every host"),
    "policies": Key("table", {}, 'by family, as everywhere: window = "swift:decrease_max=0.3"'),
    "workload": Key("tables", (), "one [[workload]] for each job"),
    "events": Key("tables", (), "one [[events]] for each change of links"),
    "samples": Key("table", {}, "what is written down over time"),
    "nodes": Key("tables", (), 'one [[nodes]] for each node, with topology = "file"'),
    "links": Key("tables", (), 'one [[links]] for each link, with topology = "file"'),
}

# What a link is like, in each direction.
LINK: Table = {
    "rate": _rate(12_500_000_000, "of a link to a host"),
    "delay_ns": _ns(1_000, "of a link and of the switch that it leads to", 1),
    "queue_bytes": _bytes(
        None,
        "data that waits at most, what is being sent included; 10 us at "
        "the link's rate when it is not given",
        256,
    ),
    "mark_from_bytes": _bytes(
        None,
        "no ECN mark while no more than that waits; a fifth of "
        "queue_bytes when it is not given, 0 with mark_full_bytes = 0",
    ),
    "mark_full_bytes": _bytes(
        None,
        "every packet is marked from there on; four fifths of "
        "queue_bytes when it is not given; 0: no marks",
    ),
    "loss": _share(0.0, "share of packets lost on the wire"),
    "bit_error_rate": _share(0.0, "a packet with a wrong bit is lost"),
}

NETWORK: Table = {
    "topology": Key("text", "fat_tree", "the shape", choices=TOPOLOGIES),
    "hosts": _int(None, "how many; not with topology lab or file"),
    "tiers": _int(2, "of switches in a fat tree: 2 (leaf, spine) or 3 (leaf, spine, core)", 2, 3),
    "radix": _int(None, "ports of a switch; the least power of two that does when neither this "
                  "nor hosts_per_leaf is given", 2),
    "hosts_per_leaf": _int(None, "half the radix when it is not given"),
    "spines": _int(None, "over each leaf; in 3 tiers of each pod; as many as oversubscription "
                   "asks for when it is not given"),
    "pods": _int(None, "with 3 tiers; as many as the radix asks for when it is not given"),
    "cores": _int(None, "with 3 tiers; a multiple of spines; as many as carry what the spines do "
                  "when it is not given"),
    "oversubscription": Key("number", 1, "rate into a leaf over rate out of it", 0.01, 1_000),
    "rails": _int(8, "with topology rail: NICs of a server; host h is NIC h % rails of server "
                  "h // rails", 1, 1024),
    "planes": _int(4, "with topology multi_plane: ports of a host; path p leaves by port "
                   "p % planes, and each plane is a fat tree of 2 tiers", 1, 64),
    **LINK,
    "uplink_rate": _rate(None, "between switches; as rate, or what oversubscription and spines "
                         "come to; with topology dumbbell of the link in the middle"),
    "uplink_delay_ns": _ns(None, "between switches; as delay_ns when it is not given", 1),
    "uplink_queue_bytes": _bytes(None, "between switches; as queue_bytes when it is not given, "
                                 "or 10 us at their rate", 256),
    "lab": Key("text", None, "with topology lab: a file as docs/LAB.md has it, beside this one"),
    "host_queues": Key("bool", False, "with topology lab: a host hands packets to the queue of its "
                       "device at once, as on the wire, and that loses what does not fit; false: "
                       "they wait in the host"),
    "ecmp": Key("text", "hashed", "hashed: as routers do, by hosts, path and switch; even: no two "
                "paths share a way until all are taken", choices=("hashed", "even")),
    "trim": Key("bool", False, "a full queue takes a packet's payload and lets its header go on"),
    "priority": Key("bool", True, "acknowledgments and trimmed headers go before data"),
    "header_queue_bytes_max": _bytes(1 << 20, "of what goes first", 256),
    "pause_bytes": _bytes(0, "PFC: one ingress is stopped from there on; 0: none"),
    "resume_bytes": _bytes(0, "PFC: and goes on from there down"),
}  # fmt: skip

HOSTS: Table = {
    "delay_ns": _ns(0, "from the wire to the transport"),
    "jitter_ns": _ns(0, "up to so much more, in order"),
    "paths": _int(64, "of every connection", 1, 256),
    "segment_bytes": _bytes(4160, "of a packet, weft's header of 64 included", 128, 65_535),
    "wire_overhead_bytes": _bytes(0, "of other headers, on every packet", 0, 1_000),
    "burst_bytes_max": _bytes(65_536, "sent on one path by one decision", 128, 1 << 20),
    "ahead": _int(4, "messages of a connection posted at a time", 1, 256),
    "receives_ready": Key("bool", True, "false: receives are advertised over the network"),
    "rtt_ns": _ns(None, "known of every path at the start; that of an empty network between the "
                  "farthest that send to each other when it is not given; 0: probes measure it"),
    "ack_bytes": _bytes(16_384, "received between acknowledgments", 1),
    "ack_delay_ns": _ns(10_000, "an acknowledgment waits at most", 0),
    "window_bytes_max": _bytes(16 << 20, "no window is larger", 1_024),
    "rto_ns_min": _ns(100_000, "least retransmit timeout", 1_000),
    "rto_ns_max": _ns(10_000_000, "largest", 1_000),
    "peer_silence_ns": _ns(20_000_000_000, "a peer silent for so long is dead", 1),
    "speculative_bytes": _bytes(None, "with a credit policy: what a flow may send before its "
                                "first grant; its window when it is not given"),
    "link_rate": _rate(None, "what hosts are told of their ports; the sum of their rates when "
                       "it is not given"),
}  # fmt: skip

_EVERY: Table = {
    "pattern": Key("text", "permutation", "who sends what to whom", choices=PATTERNS),
    "name": Key("text", None, "in reports; the pattern when it is not given"),
    "hosts": Key("ranks", None, 'that take part, in order: "0-31", "0-62/2,70" or a list; all '
                 "when it is not given"),
    "shuffle": Key("bool", False, "ranks are dealt to these hosts at random"),
    "start_ns": _ns(0, "not before"),
    "jitter_ns": _ns(0, "each transfer that waits for none starts up to so much later, at random"),
}  # fmt: skip
_SIZE: Table = {"size_bytes": _bytes(1_000_000, "of each message", 0)}
_BUFFER: Table = {"size_bytes": _bytes(1_000_000, "of the buffer, as nccl-tests counts it", 1)}
_REPEATS: Table = {
    "repeats": _int(1, "one after the other", 1, 1 << 20),
    "gap_ns": _ns(0, "between them, as of computing"),
}
WORKLOAD: dict[str, Table] = {
    "every pattern": _EVERY,
    "permutation": _SIZE | {"repeats": _int(1, "messages of each host, in order", 1, 1 << 20)},
    "incast": _SIZE | {
        "to": _int(0, "rank that receives", 0),
        "senders": _int(None, "how many, drawn from the others; all when it is not given"),
        "repeats": _int(1, "messages of each sender, in order", 1, 1 << 20),
    },
    "outcast": _SIZE | {
        "from": _int(0, "rank that sends", 0),
        "receivers": _int(None, "how many, drawn from the others; all when it is not given"),
        "repeats": _int(1, "messages to each receiver, in order", 1, 1 << 20),
    },
    "all_to_all": _BUFFER | _REPEATS | {
        "window": _int(4, "messages of a rank in flight: it sends to the rank after it first, "
                       "then to the one after that"),
    },
    "all_reduce_ring": _BUFFER | _REPEATS | {
        "channels": _int(1, "rings at once, each with its part of the buffer; odd ones turn the "
                         "other way", 1, 64),
    },
    "all_reduce_tree": _BUFFER | _REPEATS | {
        "slices": _int(8, "pieces that follow each other up and down a binary tree", 1, 4_096),
    },
    "reduce_scatter": _BUFFER | _REPEATS,
    "all_gather": _BUFFER | _REPEATS,
    "moe": {
        "tokens": _int(4_096, "of each rank", 1, 1 << 24),
        "token_bytes": _bytes(7_168, "of a token on its way to an expert", 1, 1 << 24),
        "combine_token_bytes": _bytes(None, "on its way back; twice token_bytes when it is not "
                                      "given (8-bit there, 16-bit back)", 1, 1 << 24),
        "top_k": _int(8, "experts of a token", 1, 1_024),
        "experts": _int(None, "in all, dealt evenly to the ranks; one a rank when not given"),
        "skew": Key("number", 0.0, "Zipf exponent of the experts' popularity; 0: all alike", 0, 8),
        "compute_ns": _ns(0, "of an expert, before tokens go back"),
        "wait": Key("text", "all", "a rank's combine waits for all tokens that come to it, or for "
                    "each rank's alone", choices=("all", "each")),
    } | _REPEATS,
    "poisson": {
        "sizes": Key("sizes", "websearch", "websearch, hadoop, or a list of [bytes, cumulative "
                     "share], straight in between"),
        "load": Key("number", 0.5, "of each host's rate", 0.000_1, 2),
        "duration_ns": _ns(10_000_000, "arrivals last so long", 1),
    },
    "goal": {
        "file": Key("text", None, "a schedule in GOAL's text form, beside this file"),
        "ns_per_calc": Key("number", 1.0, "of a unit of calc", 0, 1e9),
    },
}  # fmt: skip

EVENTS: Table = {
    "at_ns": _ns(0, "when"),
    "link": Key("words", None, 'which: "leaf0-spine2" (both ways), "leaf0>spine2" (one), with * '
                "for any letters; or a list"),
    "pick": _int(None, "so many of these links, drawn by the seed; all when it is not given"),
    "up": Key("bool", None, "false: what is on the wire and what comes is lost"),
    "rate": _rate(None, "from then on"),
    "loss": _share(None, "from then on"),
    "until_ns": _ns(None, "everything is as before from then on", 1),
    "flap_ns": _ns(None, "down for half of it and up for half of it, from at_ns until until_ns",
                   2),
}  # fmt: skip

SAMPLES: Table = {
    "every_ns": _ns(0, "between samples; 0: none"),
    "links": Key("words", (), "whose queues are sampled; named as in [[events]]"),
    "transfers": _int(8, "connections whose windows are sampled: those of the first transfers, "
                      "spread evenly", 0, 4_096),
}  # fmt: skip

NODES: Table = {
    "name": Key("text", None, "of the node"),
    "kind": Key("text", "switch", "what it is", choices=("host", "switch")),
    "count": _int(1, "so many, numbered from 0: name0, name1, ..."),
}
LINKS: Table = {
    "from": Key("text", None, "a node"),
    "to": Key("text", None, "another"),
    **LINK,
}


def checked(table: Any, keys: Table, path: Path, what: str) -> dict[str, Any]:
    """A table's values in their units; BadKeyError for a key that is not one of `what`."""
    if not isinstance(table, Mapping):
        raise BadKeyError(path, f"{table!r}: expected a table")
    for name in table:
        if name not in keys:
            text = f"no key of {what}{nearest(str(name), list(keys))}"
            raise BadKeyError((*path, name), text)
    given = {name: keys[name].read((*path, name), value) for name, value in table.items()}
    return {name: key.default for name, key in keys.items()} | given


def all_tables() -> dict[str, Table]:
    """Every table of a scenario under the heading that docs/SIMULATOR.md gives it."""
    tables = {"At the top": TOP, "[network]": NETWORK, "[hosts]": HOSTS}
    tables |= {f"[[workload]], {name}": keys for name, keys in WORKLOAD.items()}
    return tables | {
        "[[events]]": EVENTS,
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
    """All keys, for docs/SIMULATOR.md."""
    lines = []
    for heading, keys in all_tables().items():
        lines += [f"### {heading}", "", "| key | takes | default | meaning |", "|---|---|---|---|"]
        for name, key in keys.items():
            meaning = key.meaning.replace("|", "\\|")
            takes = " or ".join(f"`{one}`" for one in key.choices) or key.kind
            lines.append(f"| `{name}` | {takes} | {_default(key)} | {meaning} |")
        lines.append("")
    return "\n".join(lines)
