"""The values of all metrics at one moment, with labels; a bound on their number."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from transport.live.names import STATES, Family, counters
from transport.live.rates import ProcessRates
from transport.live.reading import Facts, number_of
from transport.live.rows import age_ns, number, paths_down
from transport.live.totals import ENDED, Totals, keyed
from transport.live.waiting import REASONS
from transport.telemetry import Page, Row

ALL = "all"  # value of a label if samples of all its values are added up
THREADS_MAX = 32  # maximum number of thread names for which a process gets samples
# Buckets for calls that send up to 1,023 datagrams; larger calls share one more bucket.
BUCKETS = 11
Labels = tuple[tuple[str, str], ...]
WAITS = tuple(reason for reason in REASONS if reason != "gone")


@dataclass(frozen=True, slots=True)
class Detail:
    """The labels that have their real values; the value of all other labels is `all`."""

    paths: bool = True
    peers: bool = True
    engines: bool = True

    @property
    def aggregated(self) -> dict[str, bool]:
        """Label -> whether its value is `all`."""
        return {"path": not self.paths, "peer": not self.peers, "engine": not self.engines}


# The next level is used while there are too many series: one more label becomes `all`.
LEVELS = (
    Detail(),
    Detail(paths=False),
    Detail(paths=False, peers=False),
    Detail(paths=False, peers=False, engines=False),
)


@dataclass
class Samples:
    """Values by metric: family -> (name of the sample, labels) -> value."""

    of: dict[Family, dict[tuple[str, Labels], float]] = field(default_factory=dict)

    def __len__(self) -> int:
        return sum(map(len, self.of.values()))

    def add(self, family: Family, labels: Labels, value: float, end: str = "") -> None:
        """Adds a value, in the unit of the telemetry page, to the sample with these labels.

        end: suffix of the sample's name; "": _total for a counter, else none.
        """
        name = family.name + (end or ("_total" if family.kind == "counter" else ""))
        values = self.of.setdefault(family, {})
        key, scaled = (name, labels), value / family.per_unit
        if key not in values:
            values[key] = scaled
        elif family.merge == "maximum":
            values[key] = max(values[key], scaled)
        else:
            values[key] += scaled

    def update(self, more: Samples) -> None:
        """Adds all samples of another process."""
        for family, values in more.of.items():
            self.of.setdefault(family, {}).update(values)


class Exported:
    """Makes the Prometheus samples of one telemetry page."""

    def __init__(self, page: Page, facts: Facts, detail: Detail) -> None:
        self._page = page
        self._facts = facts
        self._detail = detail
        self._families = counters()
        self._samples = Samples()
        self._process: Labels = (("pid", pid_of(page)), ("endpoint", str(number_of(page))))
        if facts.rank:
            self._process += (("rank", facts.rank),)

    def make(self, waits: ProcessRates, totals: Totals) -> Samples:
        """All samples of the page. waits: what the endpoint and its connections wait for."""
        self._of_process(waits)
        for engine in self._page.engines:
            self._of_engine(engine)
        self._of_rows(totals)
        return self._samples

    def _state(self, name: str, labels: Labels, value: float) -> None:
        self._samples.add(STATES["weft_" + name], labels, value)

    def _of_process(self, waits: ProcessRates) -> None:
        page, labels = self._page, self._process
        self._state("process_info", (*labels, ("command", self._facts.command)), 1)
        self._state("process_start_time_seconds", labels, page.created_realtime_ns * 1e-9)
        self._state("process_stopped", labels, page.process_state == "stopped")
        for reason in WAITS:
            mine = [one.wait for one in waits.connections if one.wait.reason == reason]
            longest = max([wait.ns for wait in (*mine, waits.wait) if wait.reason == reason] or [0])
            self._state("process_connections", (*labels, ("reason", reason)), len(mine))
            self._state("process_waiting_seconds", (*labels, ("reason", reason)), longest)
        for name, used_ns in sorted(self._facts.cpu_ns.items())[:THREADS_MAX]:
            of_thread = tuple(label for label in labels if label[0] != "endpoint")
            self._state("thread_cpu_seconds", (*of_thread, ("thread", name)), used_ns)
        self._counters("process", page.process.counters, labels, None)

    def _of_engine(self, engine: Row) -> None:
        labels = self._at(engine.index)
        self._state("engine_sleeping", labels, number(engine, "sleeping"))
        self._state("engine_open_flows", labels, number(engine, "open_flows"))
        since_ns = age_ns(self._page, engine, "turn_ns")
        if since_ns is not None:
            self._state("engine_since_round_seconds", labels, since_ns)
        self._counters("engine", engine.counters, labels, None)
        for name, counts in engine.histograms.items():
            family = self._families.get(("engine", name))
            if family is not None:
                self._histogram(family, labels, counts, engine.counters.get("datagrams_sent", 0))

    def _histogram(
        self, family: Family, labels: Labels, counts: tuple[int, ...], total: int
    ) -> None:
        """Adds a histogram of datagrams per call, whose sum is the number of datagrams."""
        for bucket in range(BUCKETS):
            bound = (("le", f"{float((1 << bucket) - 1)}"),)
            self._samples.add(family, labels + bound, sum(counts[: bucket + 1]), "_bucket")
        self._samples.add(family, (*labels, ("le", "+Inf")), sum(counts), "_bucket")
        self._samples.add(family, labels, sum(counts), "_count")
        self._samples.add(family, labels, total, "_sum")

    def _of_rows(self, totals: Totals) -> None:
        for (scope, engine, address, path), row in keyed(self._page):
            labels = self._at(engine, address, path if scope == "path" else None)
            self._counters(scope, row.counters, labels, {"gauge"})
        for peer in self._page.peers:
            labels = self._at(number(peer, "engine"), str(peer.state.get("address", "")))
            self._state("peer_dead", labels, number(peer, "dead"))
            self._state("peer_waited_for", labels, number(peer, "waited_for"))
            self._state("peer_paths", labels, len(peer.paths))
            self._state("peer_paths_down", labels, paths_down(peer))
            silent_ns = age_ns(self._page, peer, "heard_ns")
            if silent_ns is not None:
                self._state("peer_silent_seconds", labels, silent_ns)
        for (scope, engine, address, path), sums in totals.sums.items():
            # If each peer has its own label, the samples of a peer end when the peer is gone.
            if address != ENDED or not self._detail.peers:
                labels = self._at(engine, address, path if scope == "path" else None)
                self._counters(scope, sums, labels, {"counter"})

    def _counters(
        self, scope: str, values: Mapping[str, int], labels: Labels, kinds: set[str] | None
    ) -> None:
        for name, value in values.items():
            family = self._families.get((scope, name))  # None: a counter of another weft version
            if family is not None and (kinds is None or family.kind in kinds):
                self._samples.add(family, labels, value)

    def _at(self, engine: int, address: str | None = None, path: int | None = None) -> Labels:
        detail = self._detail
        labels = (*self._process, ("engine", str(engine) if detail.engines else ALL))
        if address is not None:
            labels += (("peer", address if detail.peers else ALL),)
        if path is not None:
            labels += (("path", str(path) if detail.paths else ALL),)
        return labels


def pid_of(page: Page) -> str:
    """The pid; followed by the inode of the PID namespace if the process is in another one.

    In that case the uid of the page's owner follows, if it is not this process's: that the owner
    has this pid cannot be checked, so the samples must not be added to those of other users.
    """
    if page.process_state != "unknown":
        return str(page.pid)
    owner = "" if page.user == os.geteuid() else f"/{page.user}"
    return f"{page.pid}@{page.path.name.split('-')[2]}{owner}"


def bounded(parts: Iterable[Samples], series_max: int) -> tuple[Samples, int]:
    """The samples of as many endpoints as the bound allows; how many endpoints were left out."""
    samples, left_out = Samples(), 0
    for part in parts:
        if left_out or len(samples) + len(part) > series_max:
            left_out += 1
        else:
            samples.update(part)
    return samples, left_out
