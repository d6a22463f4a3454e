"""Generates a small random scenario from a seed.

Every fault is temporary or mild, so that all transfers must complete. A generated scenario goes
through the same checks as any other.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypeVar

from congestion.registry import SHIPPED
from transport.sim import schema
from transport.sim.network import Network
from transport.sim.scenario import Scenario, from_tables
from transport.sim.work import generator

Tables = dict[str, Any]
T = TypeVar("T")

PURPOSE = 9  # number of the random stream; no other part of a scenario uses it
SEGMENTS_MAX = 4_000  # approximate number of segments of all jobs; bounds the cost of a run
PROBED_MAX = 700  # limit of all connections' paths together, because each path is probed
LIMIT_NS = 600_000_000_000  # limit of virtual time; it may be long, as idle time costs nothing
SAMPLED_LIMIT_NS = 20_000_000_000
DOWN_NS_MAX = 50_000_000  # longest time that a link is down; far below peer_silence_ns
QUEUE_NS_MAX = 50_000_000  # longest time in which a full queue drains
SEGMENT_BYTES = (128, 192, 576, 1_024, 1_500, 2_048, *(4_160,) * 4, 8_972, 16_384, 65_535)
HEADER_BYTES = 64
GRAPH_HOSTS_MAX = 16
TRIMMED_MIN = 1_024
TREES = ("fat_tree", "rail", "multi_plane", "dumbbell")  # up-down routes: no PFC deadlock


class Chance:
    """The random choices of one seed."""

    def __init__(self, seed: int) -> None:
        self._drawn = generator(seed, PURPOSE)

    def yes(self, share: float) -> bool:
        return bool(self._drawn.random() < share)

    def whole(self, low: int, high: int) -> int:
        """A uniform integer, both ends included."""
        return int(self._drawn.integers(low, high + 1))

    def near(self, low: int, high: int) -> int:
        """A log-uniform integer: as often from 10 to 100 as from 100 to 1,000."""
        if high <= low:
            return low
        if low <= 0:
            return 0 if self.yes(0.2) else self.near(1, high)
        drawn = math.exp(self._drawn.uniform(math.log(low), math.log(high + 1)))
        return min(max(int(drawn), low), high)

    def real(self, low: float, high: float) -> float:
        return round(float(self._drawn.uniform(low, high)), 4)

    def one(self, choices: Sequence[T]) -> T:
        return choices[self.whole(0, len(choices) - 1)]

    def some(self, choices: Sequence[T], count: int) -> list[T]:
        """`count` distinct choices in random order."""
        return [choices[int(at)] for at in self._drawn.permutation(len(choices))[:count]]


def policies_by_family() -> dict[str, list[str]]:
    """The names of the shipped policies."""
    found: dict[str, list[str]] = {}
    for module in SHIPPED:
        _, folder, name = module.split(".")
        found.setdefault({"paths": "path"}.get(folder, folder), []).append(name)
    return found


FAMILIES = policies_by_family()
# (family, policy) -> parameter -> the range of its random value.
PARAMS: dict[tuple[str, str], dict[str, tuple[float, float]]] = {
    ("window", "fixed"): {"window_bytes": (1_000, 8_000_000)},
    ("window", "aimd"): {"start_segments": (1.0, 64.0), "decrease_factor": (0.2, 0.9)},
    ("window", "bbr"): {"start_segments": (2.0, 64.0), "held_ns": (10_000, 1_000_000)},
    ("window", "cubic"): {"start_segments": (1.0, 64.0), "decrease_factor": (0.2, 0.9)},
    ("window", "dctcp"): {"start_segments": (1.0, 64.0), "gain": (0.01, 0.5)},
    ("window", "nscc"): {"segments_min": (1.0, 8.0), "decrease_max": (0.2, 0.8)},
    ("window", "swift"): {
        "window_segments_min": (1, 64),
        "start_divisor": (1.0, 64.0),
        "decrease_max": (0.1, 0.9),
        "target_queue_ns": (2_000, 200_000),
    },
    ("window", "timely"): {"low_ns": (5_000.0, 50_000.0), "start_share": (0.05, 1.0)},
    ("loss", "rack"): {"reorder_floor_ns": (0, 50_000), "hold_ns": (0, 200_000)},
    ("loss", "selective"): {"threshold_segments": (1, 20)},
    ("loss", "sleek"): {"window_multiple": (0.5, 3.0), "segments_min": (1, 20)},
    ("credit", "fixed"): {"window_bytes": (1_000, 4_000_000)},
    ("credit", "grant"): {"window_bytes": (10_000, 4_000_000), "flow_segments_min": (1, 16)},
    ("credit", "eqds"): {"pull_segments": (1, 16), "speculative_ns": (1_000, 200_000)},
    ("credit", "rccc"): {"pull_segments": (1, 16), "speculative_ns": (1_000, 200_000)},
    ("path", "flowlet"): {"gap_ns": (1_000, 1_000_000)},
    ("path", "plb"): {"rounds_max": (1, 5), "marked_share": (0.1, 0.9)},
    ("path", "reps"): {"explore_picks": (1, 64), "freeze_ns": (10_000, 20_000_000)},
}


def draw(seed: int) -> Tables:
    """The scenario of a seed, as the tables of a scenario file."""
    chance = Chance(seed)
    segment = chance.one(SEGMENT_BYTES)
    overhead = chance.one((0, 0, 0, 44, 100))
    tables: Tables = {"seed": seed, "limit_ns": LIMIT_NS}
    rate = chance.near(1_000_000_000, 50_000_000_000)
    if chance.yes(0.1):
        rate = chance.near(12_500_000, 1_000_000_000)
    tables |= _network(chance, rate, segment + overhead)
    net = from_tables({**tables, "workload": [{}]}, file=f"seed {seed}").network
    jobs = _Jobs(chance, net.hosts, segment - HEADER_BYTES)
    tables["workload"] = jobs.tables
    delays = [int(one) for one in net.ports["delay_ns"]]
    waits = net.ports["queue_bytes_max"] * 1e9 / net.ports["bytes_per_s"]
    slowest = int(net.ports["bytes_per_s"].min())
    # A silent path recovers only if a probe is answered before the next probe is sent.
    probes_ns = 2 * PROBED_MAX * (HEADER_BYTES + overhead) * 10**9 // slowest
    trip_ns = 8 * max(delays) + 4 * int(waits.max()) + probes_ns + 2_000
    tables["hosts"] = _hosts(chance, segment, overhead, trip_ns)
    tables["hosts"]["paths"] = _paths(chance, jobs.pairs)
    tables["policies"] = _policies(chance)
    if "credit" in tables["policies"]:
        # A credit request is repeated until it is granted, at an interval that depends on the RTO.
        # The RTO is so long that all requests together leave bandwidth for data.
        said = len(jobs.tables) * jobs.pairs * (2 * HEADER_BYTES + overhead) * 10**9 // slowest
        own = tables["hosts"]
        own["rto_ns_min"] = max(own["rto_ns_min"], 2 * said)
        own["rto_ns_max"] = max(own["rto_ns_max"], 2 * said)
    _patience(tables["hosts"])
    busy_ns = trip_ns + int(jobs.bytes * 1e9 / slowest / 2)
    tables["events"] = _events(chance, net, min(busy_ns, 20_000_000), rate)
    if tables["events"] and chance.yes(0.6):
        tables["workload"].append(_late(tables, chance))
    if chance.yes(0.1) and rate >= 1_000_000_000:
        tables["limit_ns"] = SAMPLED_LIMIT_NS
        names = [net.port_name(one) for one in range(len(net.ports))]
        tables["samples"] = {
            "every_ns": chance.near(20_000, 1_000_000),
            "transfers": chance.whole(0, 8),
            "links": chance.some(names, chance.whole(0, 3)),
        }
    if chance.yes(0.2):
        _mix(tables, chance)
    return {key: value for key, value in tables.items() if value != []}


def scenario_of(seed: int) -> Scenario:
    """The scenario of a seed, checked. A ScenarioError is a defect of the generator."""
    return from_tables(draw(seed), file=f"seed {seed}").check()


# The network.


def _link(chance: Chance, rate: int, packet: int) -> Tables:
    """Random properties of a link, as keys for [network] or [[links]]."""
    made: Tables = {"rate": rate, "delay_ns": chance.near(50, 20_000)}
    if chance.yes(0.7):
        made["queue_bytes"] = _queue(chance, rate, packet)
    else:
        made["queue_bytes"] = max(rate // 100_000, 16_384, packet)
    queue = made["queue_bytes"]
    kind = chance.whole(0, 3)
    if kind == 0:
        made["mark_full_bytes"] = 0
    elif kind == 1:
        made["mark_full_bytes"] = chance.near(1, queue)
        made["mark_from_bytes"] = chance.whole(0, made["mark_full_bytes"])
    if chance.yes(0.15):
        made["loss"] = chance.real(0, 0.05)
    if chance.yes(0.08):
        # So low that at most a tenth of the packets get a bit error.
        made["bit_error_rate"] = chance.real(0, 1) * 0.1 / (8 * packet)
    return made


def _queue(chance: Chance, rate: int, packet: int) -> int:
    """A queue of one to some hundred packets that drains within QUEUE_NS_MAX."""
    held = rate * QUEUE_NS_MAX // 10**9
    return max(min(packet * chance.near(1, 400), held), packet, 256)


def _network(chance: Chance, rate: int, packet: int) -> Tables:
    kind = chance.one(
        ("fat_tree", "fat_tree", "fat_tree", "rail", "multi_plane", "dumbbell", "file")
    )
    own: Tables = {"topology": kind}
    made: Tables = {"network": own}
    if kind == "file":
        made |= _graph(chance, rate, packet)
    else:
        own |= _link(chance, rate, packet) | _shape(chance, kind)
        if kind == "dumbbell" or chance.yes(0.4):
            own["uplink_rate"] = max(int(rate * chance.real(0.2, 3.0)), 1_000_000)
            if chance.yes(0.5):
                own["uplink_delay_ns"] = chance.near(50, 50_000)
            if chance.yes(0.5):
                least = max(packet, own.get("mark_full_bytes", 0), own.get("mark_from_bytes", 0))
                own["uplink_queue_bytes"] = max(_queue(chance, own["uplink_rate"], packet), least)
    own["ecmp"] = chance.one(("hashed", "even", "adaptive", "drill"))
    if chance.yes(0.2):
        own["reroute_ns"] = chance.near(1, 1_000_000)
    # Trim only packets of TRIMMED_MIN bytes or more: in small packets, a third is header, so
    # trimmed headers could fill the links.
    own["trim"] = chance.yes(0.5) and packet >= TRIMMED_MIN
    own["priority"] = chance.yes(0.85)
    if chance.yes(0.15):
        own["header_queue_bytes_max"] = chance.near(2_048, 1 << 20)
    if chance.yes(0.15):
        # A queue gets this share of the buffer when it is alone, and must hold a packet.
        own["buffer_alpha"] = alpha = chance.one((0.25, 0.5, 1, 8))
        least = int(packet * (1 + alpha) / alpha) + 1
        own["buffer_bytes"] = least * chance.near(2, 200)
    if kind in TREES and chance.yes(0.2):
        own["pause_bytes"] = packet * chance.near(2, 100)
        own["resume_bytes"] = chance.whole(0, own["pause_bytes"] - 1)
    return made


def _shape(chance: Chance, kind: str) -> Tables:
    if kind == "rail":
        rails, servers = chance.whole(1, 4), chance.whole(2, 8)
        made: Tables = {"hosts": rails * servers, "rails": rails}
        return made | {"hosts_per_leaf": chance.whole(1, servers), "spines": chance.whole(1, 4)}
    hosts = chance.near(2, 40)
    if kind == "dumbbell":
        return {"hosts": hosts}
    if kind == "multi_plane":
        return {
            "hosts": min(hosts, 16),
            "planes": chance.whole(1, 4),
            "hosts_per_leaf": chance.whole(1, 4),
            "spines": chance.whole(1, 4),
        }
    made = {"hosts": hosts, "hosts_per_leaf": chance.whole(1, 8)}
    made["spines"] = chance.whole(1, 6)
    if chance.yes(0.35):
        made |= {"tiers": 3, "pods": chance.whole(2, 4)}
        made["cores"] = made["spines"] * chance.whole(1, 2)
    return made


def _graph(chance: Chance, rate: int, packet: int) -> Tables:
    """Switches linked as a tree plus some extra links, with hosts on one or two of them."""
    hosts, switches = chance.near(2, GRAPH_HOSTS_MAX), chance.near(1, 8)
    links = []

    def join(one: str, other: str) -> None:
        own = _link(chance, max(int(rate * chance.real(0.3, 2.0)), 1_000_000), packet)
        links.append({"from": one, "to": other, **own})

    for number in range(1, switches):
        join(f"s{number}", f"s{chance.whole(0, number - 1)}")
    for _ in range(chance.whole(0, switches)):
        one, other = chance.whole(0, switches - 1), chance.whole(0, switches - 1)
        if one != other:
            join(f"s{one}", f"s{other}")
    for host in range(hosts):
        for switch in chance.some(range(switches), min(chance.one((1, 1, 2)), switches)):
            join(f"h{host}", f"s{switch}")
    nodes = [{"name": f"h{number}", "kind": "host"} for number in range(hosts)]
    nodes += [{"name": f"s{number}"} for number in range(switches)]
    return {"nodes": nodes, "links": links}


# Traffic.


class _Jobs:
    """One to three jobs that share the budget of SEGMENTS_MAX."""

    def __init__(self, chance: Chance, hosts: int, payload: int) -> None:
        self.chance, self.hosts, self.payload = chance, hosts, payload
        self.tables: list[Tables] = []
        self.bytes, self.pairs = 0, 0
        count = chance.one((1, 1, 2, 3))
        for _ in range(count):
            self._one(chance.near(30, SEGMENTS_MAX) // count)

    def _size(self, segments: int, messages: int, least: int = 0) -> int:
        """The size of each of `messages` messages; small and odd sizes are frequent."""
        chance, payload = self.chance, self.payload
        most = max(segments // messages, 1) * payload
        kind = chance.whole(0, 5)
        size = chance.near(0, most)
        if kind == 0:
            size = chance.one((0, 0, 1, payload - 1, payload, payload + 1))
        elif kind == 1:
            size = max(most // payload // 2, 1) * payload + chance.whole(-1, 1)
        elif kind == 2:
            size = most
        self.bytes += size * messages
        return max(size, least)

    def _one(self, segments: int) -> None:
        chance = self.chance
        apart = ("chakra", "flows", "goal", "steps", "trace")  # need a file or a list of operations
        pattern = chance.one(tuple(one for one in schema.PATTERNS if one not in apart))
        own: Tables = {"pattern": pattern}
        most = {
            "all_to_all": 10,
            "moe": 8,
            "all_reduce_tree": 24,
            "all_reduce_double_tree": 24,
        }.get(pattern, 14)
        if pattern in ("permutation", "incast", "outcast", "poisson"):
            most = self.hosts
        ranks = self.hosts
        if self.hosts > most or chance.yes(0.3):
            ranks = chance.whole(2, min(most, self.hosts))
            own["hosts"] = chance.some(range(self.hosts), ranks)
        if chance.yes(0.2):
            own["shuffle"] = True
        if chance.yes(0.3):
            own["start_ns"] = chance.near(0, 200_000)
        if chance.yes(0.3):
            own["jitter_ns"] = chance.near(0, 100_000)
        if pattern in ("permutation", "incast", "outcast"):
            own |= self._plain(pattern, ranks, segments)
        elif pattern == "poisson":
            own |= self._poisson(ranks, segments)
        else:
            own |= self._collective(pattern, ranks, segments)
        self.tables.append(own)

    def _plain(self, pattern: str, ranks: int, segments: int) -> Tables:
        chance, own = self.chance, Tables()
        ends = ranks if pattern == "permutation" else ranks - 1
        if pattern != "permutation":
            own["to" if pattern == "incast" else "from"] = chance.whole(0, ranks - 1)
            if chance.yes(0.3):
                ends = chance.whole(1, ranks - 1)
                own["senders" if pattern == "incast" else "receivers"] = ends
        own["repeats"] = chance.one((1, 1, 1, 2, chance.near(1, 40)))
        own["size_bytes"] = self._size(segments, ends * own["repeats"])
        self.pairs += ends
        return own

    def _poisson(self, ranks: int, segments: int) -> Tables:
        """Poisson traffic of about as many messages as the budget allows."""
        chance = self.chance
        largest = max(self.payload * chance.near(1, 30), 2)
        messages = max(min(segments * self.payload * 2 // largest, 100), 1)
        # The rate of the hosts' links is not known here: assume the largest, 50 GB/s.
        mean = largest / 2
        duration = max(int(messages * mean / (ranks * 50e9 * 0.5) * 1e9), 1)
        self.pairs += min(messages, ranks * (ranks - 1) // 2)
        self.bytes += int(messages * mean)
        return {"sizes": [[1, 0.0], [largest, 1.0]], "load": 0.5, "duration_ns": duration}

    def _collective(self, pattern: str, ranks: int, segments: int) -> Tables:
        chance, own = self.chance, Tables()
        repeats = chance.one((1, 1, 2, 3))
        own["repeats"] = repeats
        if chance.yes(0.4):
            own["gap_ns"] = chance.near(0, 50_000)
        if pattern == "moe":
            own["token_bytes"] = chance.near(1, 4_096)
            own["combine_token_bytes"] = chance.near(1, 4_096)
            each = own["token_bytes"] + own["combine_token_bytes"]
            own["top_k"] = chance.whole(1, ranks)
            wanted = segments * self.payload // (each * ranks * repeats * own["top_k"])
            own["tokens"] = max(min(wanted, 500), 1)
            own["skew"] = chance.one((0.0, chance.real(0, 2)))
            own["compute_ns"] = chance.near(0, 20_000)
            own["wait"] = chance.one(("all", "each"))
            self.bytes += own["tokens"] * own["top_k"] * ranks * repeats * each
            self.pairs += ranks * (ranks - 1) // 2
            return own
        if pattern == "all_to_all":
            own["window"] = chance.whole(1, 8)
            own["size_bytes"] = self._size(segments * ranks, ranks * ranks * repeats, 1) * ranks
            self.pairs += ranks * (ranks - 1) // 2
            return own
        turns = {"all_reduce_ring": 2, "all_reduce_tree": 2}.get(pattern, 1)
        if pattern == "all_reduce_ring":
            own["channels"] = chance.one((1, 1, 2, 3))
        if pattern == "all_reduce_tree":
            own["slices"] = chance.near(1, 12)
        own["size_bytes"] = max(self._size(segments, ranks * turns * repeats), 1)
        self.pairs += ranks
        return own


def _late(tables: Tables, chance: Chance) -> Tables:
    """A job that starts long after all faults have ended, when silent paths are usable again."""
    healed = max(one.get("until_ns", one["at_ns"]) for one in tables["events"])
    start = healed + 30 * tables["hosts"]["rto_ns_max"] + chance.near(1, 10_000_000)
    return {"pattern": "permutation", "size_bytes": chance.near(0, 20_000), "start_ns": start}


# Hosts, policies, faults.


def _hosts(chance: Chance, segment: int, overhead: int, trip_ns: int) -> Tables:
    made: Tables = {"segment_bytes": segment}
    if overhead:
        made["wire_overhead_bytes"] = overhead
    made["rto_ns_min"] = chance.near(20_000, 1_000_000)
    made["rto_ns_max"] = max(made["rto_ns_min"], 4 * trip_ns, chance.near(1_000_000, 20_000_000))
    choices: list[tuple[str, float, Any]] = [
        ("delay_ns", 0.3, chance.near(0, 20_000)),
        ("jitter_ns", 0.3, chance.near(0, 20_000)),
        ("burst_bytes_max", 0.4, chance.near(128, 1 << 20)),
        ("ahead", 0.5, chance.near(1, 256)),
        ("receives_ready", 0.4, False),
        ("rtt_ns", 0.4, chance.near(1_000, 2 * trip_ns)),
        ("ack_bytes", 0.5, chance.near(1, 1_000_000)),
        ("ack_delay_ns", 0.5, chance.near(0, 500_000)),
        ("window_bytes_max", 0.3, chance.near(max(segment, 1_024), 1 << 26)),
        ("rto_ns_min", 0.1, chance.near(1_000, made["rto_ns_max"])),
        ("peer_silence_ns", 0.2, chance.near(2_000_000_000, 60_000_000_000)),
    ]
    if "speculative_bytes" in schema.HOSTS:
        choices.append(("speculative_bytes", 0.3, chance.near(0, 1_000_000)))
    for name, share, value in choices:
        if chance.yes(share):
            made[name] = value
    return made


def _patience(own: Tables) -> None:
    """Sets peer_silence_ns to at least eight times the largest RTO."""
    least = 8 * own["rto_ns_max"]
    if own.get("peer_silence_ns", schema.HOSTS["peer_silence_ns"].default) < least:
        own["peer_silence_ns"] = least


def _paths(chance: Chance, pairs: int) -> int:
    most = max(min(PROBED_MAX // max(pairs, 1), 256), 1)
    return min(chance.one((1, 2, 3, 4, 8, 16, 32, 64, 128, 256)), most)


def _policies(chance: Chance) -> Tables:
    made = Tables()
    for family in ("window", "path", "loss", "credit"):
        if family == "credit" and chance.yes(0.55):
            continue
        name = chance.one(FAMILIES[family])
        params = []
        for key, (low, high) in PARAMS.get((family, name), {}).items():
            if chance.yes(0.35):
                value = (
                    chance.real(low, high)
                    if isinstance(low, float)
                    else chance.near(int(low), int(high))
                )
                params.append(f"{key}={value}")
        if family == "path" and chance.yes(0.4):
            params.append(f"burst_bytes={chance.near(64, 300_000)}")
        made[family] = name + (":" + ",".join(params) if params else "")
    return made


def _mix(tables: Tables, chance: Chance) -> None:
    """Lets some workloads, or a share of their connections, use other policies."""
    other, own = _policies(chance), tables["hosts"]
    other.pop("credit", None)
    if "credit" in tables["policies"] and chance.yes(0.5):
        other["credit"] = "none"
    # A pair of hosts probes the paths of each path policy.
    if own["paths"] == 1:
        del other["path"]
    own["paths"] = max(own["paths"] // 2, 1)
    for job in tables["workload"]:
        how = chance.one(("policies", "mix", ""))
        if how == "policies":
            job["policies"] = dict(other)
        elif how == "mix":
            job["mix"] = [{"share": round(chance.real(0, 1), 2), "policies": dict(other)}]


def _events(chance: Chance, net: Network, busy_ns: int, rate: int) -> list[Tables]:
    made: list[Tables] = []
    for _ in range(chance.one((0, 0, 1, 1, 2, 3, 5))):
        own: Tables = {"at_ns": chance.whole(0, busy_ns), "link": _links(chance, net)}
        until = own["at_ns"] + chance.near(100, min(20 * busy_ns, DOWN_NS_MAX))
        kind = chance.whole(0, 4)
        if kind in (0, 1):
            own |= {"up": False, "until_ns": until}
        elif kind == 2:
            least = max((until - own["at_ns"]) // 50, 2)
            own |= {"flap_ns": chance.near(least, 2 * (until - own["at_ns"])), "until_ns": until}
        elif kind == 3:
            mild = chance.yes(0.3)
            own["loss"] = chance.real(0, 0.1) if mild else chance.one((chance.real(0, 1), 1.0))
            if not mild:
                own["until_ns"] = until
        else:
            own["rate"] = max(int(rate * chance.real(0.02, 2.0)), 1_000_000)
            if chance.yes(0.5):
                own["until_ns"] = until
        made.append(own)
    return made


def _links(chance: Chance, net: Network) -> str:
    """A random link name for an event: one direction of a link, a link, or all links of a node."""
    name = net.port_name(chance.whole(0, len(net.ports) - 1))
    one, other = name.split(">")
    return chance.one((name, f"{one}-{other}", f"{one}-{other}", f"{one}-*", f"*>{other}"))
