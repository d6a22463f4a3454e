"""Rates of processes, engines, peers, paths and connections, from two readings of their pages.

A row is the same in both readings if its index and generation are equal. A new row counts from
zero, and so does a counter that is smaller than before. The rates lack what a row counted after the
first reading if the row was freed before the second one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from transport.live import waiting
from transport.live.reading import Facts, Reading, number_of
from transport.live.rows import age_ns, grown, number, paths_down
from transport.live.silence import Evidence
from transport.live.waiting import Wait
from transport.telemetry import Page, PeerRow, Row


@dataclass(frozen=True, slots=True)
class Traffic:
    """The traffic of flows or paths per second (None: no earlier reading), and their state.

    Of flows, sent bytes are counted once acknowledged, received bytes once placed into a receive;
    of paths, sent bytes include resends. loss_share: segments declared lost per segment sent; None
    if none were sent. rtt_ns is the largest smoothed round-trip time of the paths, 0 before the
    first sample.
    """

    sent_bytes_s: float | None = None
    received_bytes_s: float | None = None
    segments_sent_s: float | None = None
    segments_received_s: float | None = None
    resends_s: float | None = None
    loss_share: float | None = None
    rtt_ns: int = 0
    window_bytes: int = 0
    inflight_bytes: int = 0


@dataclass(frozen=True, slots=True)
class PathRates:
    """One path to a peer. downs: how often it has become unusable."""

    number: int
    traffic: Traffic
    usable: bool
    downs: int
    probes_s: float | None


@dataclass(frozen=True, slots=True)
class PeerRates:
    """One peer of an engine. heard_ns: time since its last packet arrived; None: none arrived."""

    index: int
    engine: int
    address: str
    flows: int
    dead: bool
    heard_ns: int | None
    traffic: Traffic
    wait: Wait
    paths_down: int
    paths: tuple[PathRates, ...]


@dataclass(frozen=True, slots=True)
class EngineRates:
    """One engine thread.

    cpu_share: share of one CPU that its thread used; None: not known.
    turn_ns: time since its last loop iteration began; None: none has begun.
    """

    index: int
    traffic: Traffic
    datagrams_sent_s: float | None
    datagrams_received_s: float | None
    rounds_s: float | None
    cpu_share: float | None
    asleep: bool
    turn_ns: int | None
    open_flows: int


@dataclass(frozen=True, slots=True)
class ConnectionRates:
    """One connection: the flows with its id, on all engines."""

    id: int
    flows: int
    engines: tuple[int, ...]
    peers: tuple[str, ...]
    sends: int
    receives: int
    unsent_bytes: int
    traffic: Traffic
    wait: Wait


@dataclass(frozen=True, slots=True)
class ProcessRates:
    """One endpoint of a process: one page. `endpoint` is its number within the process.

    cpu_share: share of one CPU that weft's threads of all endpoints of the process used.
    process: tells processes with the same pid apart (Page.process_identity).
    """

    process: str
    pid: int
    endpoint: int
    rank: str
    command: str
    state: str
    traffic: Traffic
    wait: Wait
    paths_down: int
    cpu_share: float | None
    engines: tuple[EngineRates, ...]
    peers: tuple[PeerRates, ...]
    connections: tuple[ConnectionRates, ...]


def rates(before: Reading | None, now: Reading) -> tuple[ProcessRates, ...]:
    """The rates of every telemetry page of the reading `now`, in its order."""
    old = {page.path: page for page in before.pages} if before is not None else {}
    pages_of: dict[str, list[Page]] = {}
    intervals = {}
    for page in now.pages:
        pages_of.setdefault(page.process_identity, []).append(page)
        earlier = old.get(page.path)
        if earlier is not None and earlier.created_ns != page.created_ns:
            earlier = None
        intervals[page.path] = _Interval.of(before, earlier, page)
    shares = {}
    for process, pages in pages_of.items():
        # The facts of each of its telemetry pages have the CPU time of the whole process: use the
        # first page that was there at the earlier reading.
        of_pages = (_cpu_shares(before, now, page, intervals[page.path]) for page in pages)
        shares[process] = next(filter(None, of_pages), {})
    found = []
    evidence = Evidence(now.pages)
    for page in now.pages:
        facts = now.facts.get(page.path, Facts())
        process = page.process_identity
        alone = len(pages_of[process]) == 1
        waits = _waits(page, evidence)
        found.append(_process(page, intervals[page.path], facts, shares[process], alone, waits))
    return tuple(found)


@dataclass(frozen=True, slots=True)
class _Interval:
    """Time between two readings of a telemetry page; its earlier rows by (scope, row index)."""

    seconds: float | None  # None: rates are not known
    rows: Mapping[tuple[str, int], Row]

    @classmethod
    def of(cls, before: Reading | None, earlier: Page | None, page: Page) -> _Interval:
        if before is None:
            return cls(None, {})
        if earlier is None:  # the process, or its endpoint, is new
            since_ns, rows = max(before.read_ns, page.created_ns), {}
        else:
            since_ns, rows = earlier.read_ns, _rows_of(earlier)
        passed_ns = page.read_ns - since_ns
        return cls(passed_ns / 1e9 if passed_ns > 0 else None, rows)

    def grown(self, scope: str, row: Row, name: str) -> int:
        """The growth of a counter of a row since the earlier reading."""
        value = row.counters.get(name, 0)
        earlier = self.rows.get((scope, row.index))
        if earlier is None or earlier.generation != row.generation:
            return max(0, value)
        return grown(earlier.counters.get(name, 0), value)

    def rate(self, scope: str, rows: Iterable[Row], name: str) -> float | None:
        """The growth of a counter per second, summed over the rows; None: not known."""
        if self.seconds is None:
            return None
        return sum(self.grown(scope, row, name) for row in rows) / self.seconds


def _rows_of(page: Page) -> dict[tuple[str, int], Row]:
    rows: dict[tuple[str, int], Row] = {("process", page.process.index): page.process}
    rows.update((("engine", row.index), row) for row in page.engines)
    rows.update((("flow", row.index), row) for row in page.flows)
    for peer in page.peers:
        rows["peer", peer.index] = peer
        rows.update((("path", row.index), row) for row in peer.paths)
    return rows


def _waits(page: Page, evidence: Evidence) -> dict[int, Wait]:
    """Index of a flow -> what it waits for."""
    peers = {peer.index: peer for peer in page.peers}
    engines = {engine.index: engine for engine in page.engines}
    found = {}
    for flow in page.flows:
        engine = engines.get(number(flow, "engine"))
        peer = peers.get(number(flow, "peer", -1))
        found[flow.index] = waiting.of_flow(page, flow, peer, engine, evidence)
    return found


def _process(
    page: Page,
    interval: _Interval,
    facts: Facts,
    cpu: Mapping[str, float],
    alone: bool,
    waits: Mapping[int, Wait],
) -> ProcessRates:
    """The rates of a telemetry page. alone: the process has no other page. waits: of its flows."""
    peers = {peer.index: peer for peer in page.peers}
    shown = tuple(_peer(page, peer, interval, waits) for peer in page.peers)
    connections = _connections(page, interval, peers, waits)
    held = [waiting.of_engine(page, engine) for engine in page.engines]
    return ProcessRates(
        process=page.process_identity,
        pid=page.pid,
        endpoint=number_of(page),
        rank=facts.rank,
        command=facts.command,
        state=page.process_state,
        traffic=_traffic(interval, page.flows, page.peers),
        wait=waiting.of_process(page, held, [one.wait for one in connections]),
        paths_down=sum(peer.paths_down for peer in shown),
        cpu_share=sum(cpu.values()) if cpu else None,
        # Threads of several endpoints have the same names: their CPU time cannot be told apart.
        engines=tuple(_engine(page, one, interval, cpu if alone else {}) for one in page.engines),
        peers=shown,
        connections=connections,
    )


def _traffic(interval: _Interval, flows: Iterable[Row], peers: Iterable[PeerRow]) -> Traffic:
    flows = tuple(flows)
    sent_s = interval.rate("flow", flows, "segments_sent")
    lost_s = interval.rate("flow", flows, "segments_lost")
    return Traffic(
        sent_bytes_s=interval.rate("flow", flows, "bytes_sent"),
        received_bytes_s=interval.rate("flow", flows, "bytes_received"),
        segments_sent_s=sent_s,
        segments_received_s=interval.rate("flow", flows, "segments_received"),
        resends_s=interval.rate("flow", flows, "segments_resent"),
        loss_share=lost_s / sent_s if sent_s and lost_s is not None else None,
        rtt_ns=max((p.counters.get("rtt_ns", 0) for peer in peers for p in peer.paths), default=0),
        window_bytes=sum(flow.counters.get("window_bytes", 0) for flow in flows),
        inflight_bytes=sum(flow.counters.get("inflight_bytes", 0) for flow in flows),
    )


def _engine(page: Page, engine: Row, interval: _Interval, cpu: Mapping[str, float]) -> EngineRates:
    flows = [flow for flow in page.flows if number(flow, "engine") == engine.index]
    peers = [peer for peer in page.peers if number(peer, "engine") == engine.index]
    return EngineRates(
        index=engine.index,
        traffic=_traffic(interval, flows, peers),
        datagrams_sent_s=interval.rate("engine", [engine], "datagrams_sent"),
        datagrams_received_s=interval.rate("engine", [engine], "datagrams_received"),
        rounds_s=interval.rate("engine", [engine], "loops"),
        cpu_share=cpu.get(f"weft-engine-{engine.index}"[:15]),
        asleep=bool(engine.state.get("sleeping")),
        turn_ns=age_ns(page, engine, "turn_ns"),
        open_flows=number(engine, "open_flows"),
    )


def _peer(page: Page, peer: PeerRow, interval: _Interval, waits: Mapping[int, Wait]) -> PeerRates:
    flows = [flow for flow in page.flows if number(flow, "peer", -1) == peer.index]
    return PeerRates(
        index=peer.index,
        engine=number(peer, "engine"),
        address=str(peer.state.get("address", "")),
        flows=peer.counters.get("flows", 0),
        dead=bool(peer.state.get("dead")),
        heard_ns=age_ns(page, peer, "heard_ns"),
        traffic=_traffic(interval, flows, [peer]),
        wait=waiting.worst(waits[flow.index] for flow in flows),
        paths_down=paths_down(peer),
        paths=tuple(_path(at, path, interval) for at, path in enumerate(peer.paths)),
    )


def _path(at: int, path: Row, interval: _Interval) -> PathRates:
    sent_s = interval.rate("path", [path], "segments_sent")
    lost_s = interval.rate("path", [path], "segments_lost")
    traffic = Traffic(
        sent_bytes_s=interval.rate("path", [path], "bytes_sent"),
        segments_sent_s=sent_s,
        loss_share=lost_s / sent_s if sent_s and lost_s is not None else None,
        rtt_ns=path.counters.get("rtt_ns", 0),
    )
    usable = bool(path.counters.get("usable", 1))
    probes_s = interval.rate("path", [path], "probes_sent")
    return PathRates(at, traffic, usable, path.counters.get("downs", 0), probes_s)


def _connections(
    page: Page, interval: _Interval, peers: Mapping[int, PeerRow], waits: Mapping[int, Wait]
) -> tuple[ConnectionRates, ...]:
    of_id: dict[int, list[Row]] = {}
    for flow in page.flows:
        of_id.setdefault(number(flow, "connection"), []).append(flow)
    found = []
    for name, flows in of_id.items():
        theirs = {number(flow, "peer", -1): None for flow in flows}
        mine = [peers[index] for index in theirs if index in peers]
        found.append(
            ConnectionRates(
                id=name,
                flows=len(flows),
                engines=tuple(sorted({number(flow, "engine") for flow in flows})),
                peers=tuple(sorted({str(peer.state.get("address", "")) for peer in mine})),
                sends=max(number(flow, "sends") for flow in flows),
                receives=sum(number(flow, "receives") for flow in flows),
                unsent_bytes=sum(number(flow, "unsent_bytes") for flow in flows),
                traffic=_traffic(interval, flows, mine),
                wait=waiting.worst(waits[flow.index] for flow in flows),
            )
        )
    return tuple(found)


def _cpu_shares(
    before: Reading | None, now: Reading, page: Page, interval: _Interval
) -> dict[str, float]:
    """Name of a thread -> share of one CPU that it used between the readings."""
    facts = now.facts.get(page.path, Facts())
    earlier = before.facts.get(page.path) if before is not None else None
    if earlier is None or not interval.seconds:
        return {}
    return {
        name: grown(earlier.cpu_ns[name], used_ns) / 1e9 / interval.seconds
        for name, used_ns in facts.cpu_ns.items()
        if name in earlier.cpu_ns
    }
