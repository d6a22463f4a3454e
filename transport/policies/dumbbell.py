"""A dumbbell network in the simulator: flows over shared bottlenecks, to see how policies behave.

Senders are at one switch, receivers at another; between the switches each path has a link of its
own, the bottleneck. The network interface of each host is NIC_FACTOR times as fast as all paths
together, so that queues form at the paths. The plan, which includes the seed, determines the run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from transport import native
from transport.errors import InvalidArgumentError

Array = np.ndarray[Any, Any]

NIC_FACTOR = 2
RATE_MAX = 10**13  # bytes per second; the fabric's limit
UNLIMITED_BYTES = 1 << 34  # queue of a link that drops nothing
MESSAGES_MAX = 2_000_000  # of all flows together
STEP_HOPS = 1_000_000
# The last time window that a run handles may end this long after its limit: kWindowPsMax in
# native/sim/fabric/fabric_setup.cc, and 1 ns.
BEYOND_NS = 20_001
# The engine's defaults. Those of the fabric are shorter, and would hide what policies do with them.
ACK_BYTES, ACK_DELAY_NS = 256 << 10, 30_000
RTO_NS_MIN, RTO_NS_MAX = 1_000_000, 1_000_000_000
SEGMENT_BYTES, BURST_BYTES_MAX = 4_160, 65_536
SENDERS, RECEIVERS = 0, 1  # number of the switch at the senders, and of that at the receivers


@dataclass(frozen=True, kw_only=True)
class Link:
    """A bottleneck, towards the receivers; or the link from a switch to a receiver.

    queue_bytes_max: 0: no limit. ECN marks by the queue length: none below mark_from_bytes, all at
    or above mark_full_bytes, in between a proportional share; both 0: no marks. loss: probability
    of each packet. reorder: share of packets that arrive late by up to reorder_ns_max.
    """

    bytes_per_s: int
    delay_ns: int
    queue_bytes_max: int = 0
    mark_from_bytes: int = 0
    mark_full_bytes: int = 0
    loss: float = 0.0
    reorder: float = 0.0
    reorder_ns_max: int = 0


@dataclass(kw_only=True)
class Flow:
    """Messages of one size from one host to another.

    messages: their number; 0: as many as fit in the run's time limit. policy_set: the policies that
    Plan.choose_text gave this number.
    """

    from_host: int
    to_host: int
    start_ns: int = 0
    message_bytes: int = 1 << 20
    messages: int = 0
    policy_set: int = 0


@dataclass(frozen=True, kw_only=True)
class Change:
    """A change of a path at a time. A negative value leaves that property unchanged.

    up: 0: the path drops everything in both directions; 1: it works again.
    """

    at_ns: int
    path: int
    up: int = -1
    loss: float = -1.0


@dataclass(kw_only=True)
class Plan:
    """A run. A host either sends or receives. Times are relative to the beginning.

    ahead: number of messages that each flow has posted at a time. ack_loss: loss probability
    towards the senders. receiver_port: the link to each receiver; None: as fast as its NIC.
    link_bytes_per_s: rate of the hosts' ports as policies see it; 0: unknown. measure_from_ns:
    goodput and fairness are measured from this time on. trace_ns: sampling interval; 0: no trace.
    recording_bytes_max: size limit of a recording of all decisions; 0: none.
    """

    paths: Sequence[Link]
    flows: list[Flow]
    limit_ns: int
    seed: int = 1
    segment_bytes: int = SEGMENT_BYTES
    burst_bytes_max: int = BURST_BYTES_MAX
    ahead: int = 4
    ack_loss: float = 0.0
    receiver_port: Link | None = None
    changes: Sequence[Change] = ()
    window_bytes_max: int = 16 << 20
    rto_ns_min: int = RTO_NS_MIN
    rto_ns_max: int = RTO_NS_MAX
    link_bytes_per_s: int = 0
    measure_from_ns: int = 0
    trace_ns: int = 0
    recording_bytes_max: int = 0
    fabric: native.FabricPlan = field(default_factory=native.FabricPlan)

    def choose(self, family: str, name: str, directories: list[str], params: bytes = b"") -> None:
        """Sets a policy by its name or path. ValueError if there is none."""
        self.fabric.choose(family, name, directories, params)

    def choose_text(
        self, family: str, text: str, directories: list[str], policy_set: int = 0
    ) -> str:
        """Sets a policy by text with parameters, as in a knob; returns its name.

        policy_set: 0: of all flows; another number: a copy of set 0 for the flows that name it.
        """
        return self.fabric.choose_text(family, text, directories, policy_set)


@dataclass(frozen=True)
class FlowReport:
    """goodput_bytes_per_s: payload delivered since measure_from_ns. finished_ns: -1: never.

    message times run from posting the send to the arrival of the last byte. copies_max: how often
    the most resent segment was resent. counters: those of a flow in COUNTERS.md, by name; the sums
    of both ends. message_ns: the times of the messages posted since measure_from_ns.
    """

    delivered_bytes: int
    goodput_bytes_per_s: float
    messages: int
    finished_ns: int
    message_ns_p50: int
    message_ns_p99: int
    copies_max: int
    counters: dict[str, int]
    message_ns: Array = field(default_factory=lambda: np.zeros(0, np.int64), compare=False)


@dataclass(frozen=True)
class PathReport:
    """Packets towards the receivers. lost: on the wire or to an outage; dropped: by a queue."""

    packets: int
    bytes: int
    lost: int
    dropped: int
    marked: int
    queue_bytes_p99: int


@dataclass(frozen=True)
class Trace:
    """Samples over time; row i was taken at at_ns[i].

    queue_bytes and path_bytes have a column for each path, the other arrays one for each flow.
    """

    at_ns: Array
    window_bytes: Array
    inflight_bytes: Array
    pacing_bytes_per_s: Array
    delivered_bytes: Array
    queue_bytes: Array
    path_bytes: Array


@dataclass(frozen=True)
class Report:
    """The results of a run. violation: the first broken invariant; empty: none.

    jain: Jain's fairness index of the flows' goodput. ports: queues of the links to receivers, as
    upper bounds of a histogram's buckets. policy_failure: the first hook that failed.
    """

    violation: str
    fingerprint: int
    ended_ns: int
    jain: float
    goodput_bytes_per_s: float
    message_ns_p50: int
    message_ns_p99: int
    policies_failed: int
    policy_failure: str
    flows: list[FlowReport]
    paths: list[PathReport]
    ports: list[PathReport]
    trace: Trace
    recording: bytes


def run(plan: Plan) -> Report:
    """Runs a plan to its end. InvalidArgumentError if it is invalid."""
    return _Run(plan).report()


class _Run:
    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.hosts = 1 + max((max(one.from_host, one.to_host) for one in plan.flows), default=0)
        self.senders = {one.from_host for one in plan.flows}
        self._network()
        self._work()
        self._settings()
        wrong = plan.fabric.complaint()
        if wrong:
            raise InvalidArgumentError(f"the plan needs {wrong}")
        self.fabric = native.Fabric(plan.fabric)
        while self.fabric.run(STEP_HOPS):
            pass

    def _network(self) -> None:
        """Gives the fabric its ports, sorted by node: hosts, senders' switch, receivers' switch."""
        plan, hosts = self.plan, self.hosts
        paths, receivers = plan.paths, sorted(set(range(hosts)) - self.senders)
        total = sum(one.bytes_per_s for one in paths)
        nic = Link(bytes_per_s=min(NIC_FACTOR * total, RATE_MAX), delay_ns=self._access_ns())
        back = [
            Link(bytes_per_s=nic.bytes_per_s, delay_ns=self._core_ns(one), loss=plan.ack_loss)
            for one in paths
        ]
        at = {
            host: hosts + (SENDERS if host in self.senders else RECEIVERS) for host in range(hosts)
        }
        rows = [self._port(host, at[host], nic) for host in range(hosts)]
        rows += [self._port(hosts + SENDERS, host, nic) for host in sorted(self.senders)]
        self.forward = len(rows)
        for one in paths:
            rows.append(self._port(hosts + SENDERS, hosts + RECEIVERS, one, self._core_ns(one)))
        self.to_receivers = len(rows)
        for host in receivers:
            rows.append(self._port(hosts + RECEIVERS, host, plan.receiver_port or nic))
        self.back = len(rows)
        rows += [self._port(hosts + RECEIVERS, hosts + SENDERS, one) for one in back]
        count = len(paths)
        forward, backward = range(self.forward, self.forward + count), range(self.back, len(rows))
        sends = np.isin(np.arange(hosts), sorted(self.senders))
        # Each switch reaches the hosts at the other one over all paths.
        route = np.stack([np.where(sends, -1, 0), np.where(sends, 1, -1)]).astype(np.int32)
        plan.fabric.set_network(
            hosts=hosts,
            switches=2,
            ports=_records(rows, native.PORT_PLAN),
            group_of=np.arange(hosts, dtype=np.uint32),
            route=route.ravel(),
            set_begin=np.array([0, count, 2 * count], np.uint32),
            set_ports=np.array([*forward, *backward], np.uint32),
            route_at_ns=np.zeros(0, np.int64),
        )
        changes = []
        for change in sorted(plan.changes, key=lambda one: one.at_ns):
            if not 0 <= change.path < count:
                raise InvalidArgumentError(
                    f"a change names path {change.path}: there are {count} paths, numbered from 0"
                )
            there = {"at_ns": change.at_ns, "up": change.up, "bytes_per_s": -1}
            changes.append(there | {"port": self.forward + change.path, "loss": change.loss})
            if change.up >= 0:
                changes.append(there | {"port": self.back + change.path, "loss": -1.0})
        plan.fabric.set_changes(_records(changes, native.PORT_CHANGE))

    def _access_ns(self) -> int:
        """The delay of a host's link: a quarter of the shortest path's delay.

        It is part of each path's delay. The smallest link delay is the fabric's look-ahead: with a
        longer one it simulates more at a time.
        """
        return max(min((one.delay_ns for one in self.plan.paths), default=0) // 4, 1)

    def _core_ns(self, path: Link) -> int:
        both = 1 if self.plan.receiver_port else 2
        return max(path.delay_ns - both * self._access_ns(), 1)

    def _port(
        self, source: int, target: int, link: Link, delay_ns: int | None = None
    ) -> dict[str, Any]:
        row = {"from": source, "to": target} | link.__dict__
        row["delay_ns"] = max(link.delay_ns if delay_ns is None else delay_ns, 1)
        # A queue holds at least the packet that is being sent.
        held = link.queue_bytes_max or UNLIMITED_BYTES
        row["queue_bytes_max"] = max(held, self.plan.segment_bytes)
        return row

    def _work(self) -> None:
        """Gives the fabric the transfers of all flows; those of flow i begin at self.first[i]."""
        plan = self.plan
        counts = [one.messages or self._endless(one) for one in plan.flows]
        if sum(counts) > MESSAGES_MAX:
            raise InvalidArgumentError(
                f"{sum(counts):,} messages may be sent, and a run has {MESSAGES_MAX:,} at most: "
                "give larger messages, fewer flows or a shorter duration"
            )
        self.first = np.cumsum([0, *counts])
        rows = np.zeros(sum(counts), native.TRANSFER_PLAN)
        for number, (flow, begin) in enumerate(zip(plan.flows, self.first, strict=False)):
            mine = rows[begin : self.first[number + 1]]
            mine["from"], mine["to"], mine["stream"] = flow.from_host, flow.to_host, number
            mine["bytes"], mine["start_ns"] = flow.message_bytes, flow.start_ns
        plan.fabric.set_work(rows, np.zeros(0, native.DEPENDENCY_PLAN))
        sets = [one.policy_set for one in plan.flows]
        if any(sets):
            plan.fabric.set_policy_sets(np.repeat(np.array(sets, np.uint16), counts))

    def _endless(self, flow: Flow) -> int:
        """More messages than all paths can carry until the time limit."""
        rate = sum(one.bytes_per_s for one in self.plan.paths)
        if self.plan.receiver_port is not None:
            rate = min(rate, self.plan.receiver_port.bytes_per_s)
        capacity = rate * max(self.plan.limit_ns - flow.start_ns, 0) // 10**9
        return capacity // max(flow.message_bytes, 64) + self.plan.ahead + 1

    def _settings(self) -> None:
        plan, made = self.plan, self.plan.fabric
        made.seed, made.limit_ns, made.paths = plan.seed, plan.limit_ns, len(plan.paths)
        made.segment_bytes, made.window_bytes_max = plan.segment_bytes, plan.window_bytes_max
        made.burst_bytes_max = plan.burst_bytes_max
        made.rto_ns_min, made.rto_ns_max = plan.rto_ns_min, plan.rto_ns_max
        # A simulated flow has no handshake, which would have measured this round trip.
        made.rtt_expected_ns = 2 * min((one.delay_ns for one in plan.paths), default=0)
        made.ahead, made.link_bytes_per_s = plan.ahead, plan.link_bytes_per_s
        made.ack_bytes, made.ack_delay_ns = ACK_BYTES, ACK_DELAY_NS
        made.ecmp, made.check, made.receives_ready = "even", True, False
        made.sample_ns = plan.trace_ns or plan.measure_from_ns or plan.limit_ns
        made.sample_streams = self.first[:-1].tolist()
        made.sample_ports = [self.forward + path for path in range(len(plan.paths))]
        made.recording_bytes_max = plan.recording_bytes_max

    def report(self) -> Report:
        plan, fabric, totals = self.plan, self.fabric, self.fabric.totals
        ended_ns = totals.ended_ns if totals.finished or fabric.violation else plan.limit_ns
        flows, times = self._flows(ended_ns)
        goodput = np.array([one.goodput_bytes_per_s for one in flows])
        squares = float((goodput**2).sum()) * len(flows)
        ports = [PathReport(*row) for row in fabric.ports()[list(PORT_COLUMNS)].tolist()]
        everything = np.concatenate(times) if times else np.zeros(0, np.int64)
        return Report(
            violation=f"{fabric.violation} (seed {plan.seed})" if fabric.violation else "",
            fingerprint=totals.fingerprint,
            ended_ns=ended_ns,
            jain=float(goodput.sum()) ** 2 / squares if squares else 0.0,
            goodput_bytes_per_s=float(goodput.sum()),
            message_ns_p50=_percentile(everything, 50),
            message_ns_p99=_percentile(everything, 99),
            policies_failed=totals.policies_failed,
            policy_failure=fabric.policy_failure,
            flows=flows,
            paths=ports[self.forward : self.forward + len(plan.paths)],
            ports=ports[self.to_receivers : self.back] if plan.receiver_port else [],
            trace=self._trace(),
            recording=fabric.recording,
        )

    def _flows(self, ended_ns: int) -> tuple[list[FlowReport], list[Array]]:
        """The report of each flow, and the times that its messages took."""
        plan, samples, transfers = self.plan, self.fabric.samples(), self.fabric.transfers()
        order = sorted(range(len(plan.flows)), key=self._ends_of)
        streams, copies = self.fabric.streams(), self.fabric.copies_max()
        flows: list[FlowReport] = []
        times: list[Array] = []
        for number, flow in enumerate(plan.flows):
            row = order.index(number)
            mine = transfers[self.first[number] : self.first[number + 1]]
            done = mine[mine["received_ns"] >= 0]
            took = done["received_ns"] - done["posted_ns"]
            whole = len(done) == flow.messages != 0
            finished_ns = int(done["received_ns"].max()) if whole else -1
            delivered = int(streams["bytes_received"][row])
            at = int(np.searchsorted(samples["at_ns"], plan.measure_from_ns))
            measured = plan.measure_from_ns and at < len(samples["at_ns"])
            before = int(samples["received_bytes"][at, number]) if measured else 0
            begin_ns = max(flow.start_ns, int(samples["at_ns"][at]) if measured else 0)
            span_ns = (finished_ns if whole else ended_ns) - begin_ns
            counters = {name: int(streams[name][row]) for name in streams.dtype.names[2:]}
            flows.append(
                FlowReport(
                    delivered,
                    (delivered - before) * 1e9 / span_ns if span_ns > 0 else 0.0,
                    len(done),
                    finished_ns,
                    _percentile(took, 50),
                    _percentile(took, 99),
                    int(copies[row]),
                    counters,
                    took[done["posted_ns"] >= plan.measure_from_ns],
                )
            )
            times.append(took)
        return flows, times

    def _ends_of(self, number: int) -> tuple[int, int, int]:
        flow = self.plan.flows[number]
        return flow.from_host, flow.to_host, number

    def _trace(self) -> Trace:
        found = self.fabric.samples()
        kept = slice(None) if self.plan.trace_ns else slice(0, 0)
        names = ("window_bytes", "inflight_bytes", "pacing_bytes_per_s", "received_bytes")
        columns = (found[name][kept] for name in ("at_ns", *names, "queue_bytes", "port_bytes"))
        return Trace(*columns)


PORT_COLUMNS = ("packets", "bytes", "lost", "dropped", "marked", "queue_bytes_p99")


def _records(rows: list[dict[str, Any]], wanted: np.dtype[Any]) -> Array:
    """The rows as records; fields that they lack are 0."""
    made = np.zeros(len(rows), wanted)
    for at, row in enumerate(rows):
        for name, value in row.items():
            made[at][name] = value
    return made


def _percentile(values: Array, percent: float) -> int:
    return int(np.percentile(values, percent, method="nearest")) if len(values) else 0
