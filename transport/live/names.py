"""The metrics of `weft metrics`: their names, kinds and help texts.

A counter of the native table becomes weft_SCOPE_NAME, with times in seconds, and `_total` at the
end if it only grows. States of the telemetry page and facts of the exporter are listed here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from transport.ground.text import markdown_table
from transport.telemetry import CounterRow, table

NS_PER_S = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Family:
    """One metric. kind: counter, gauge or histogram.

    per_unit: the values in telemetry pages are divided by it. merge: how values of several rows
    with the same labels become one: "sum" or "maximum".
    """

    name: str
    kind: str
    help: str
    per_unit: int = 1
    merge: str = "sum"

    @property
    def sample_names(self) -> tuple[str, ...]:
        """The names of the metric's samples."""
        if self.kind == "histogram":
            return tuple(self.name + end for end in ("_bucket", "_count", "_sum"))
        return (self.name + "_total",) if self.kind == "counter" else (self.name,)


def _state(name: str, text: str, kind: str = "gauge", merge: str = "sum") -> Family:
    return Family("weft_" + name, kind, text, NS_PER_S if name.endswith("seconds") else 1, merge)


STATES = {
    family.name: family
    for family in (
        _state("process_info", "1 for each endpoint of a process; the label command is its name"),
        Family(
            "weft_process_start_time_seconds", "gauge", "when the endpoint was opened, since 1970"
        ),
        _state("process_stopped", "1 while the process is stopped by a signal or a debugger"),
        _state("process_connections", "connections by what they wait for, the label reason"),
        _state(
            "process_waiting_seconds",
            "longest time that a connection or engine has waited, by the label reason",
            merge="maximum",
        ),
        _state("thread_cpu_seconds", "CPU time of the threads with this name", "counter"),
        _state("engine_sleeping", "1 while the thread sleeps until there is work to do"),
        _state("engine_open_flows", "flows of connections that the engine has"),
        _state(
            "engine_since_round_seconds",
            "time since the engine's thread began a round; large while it sleeps",
            merge="maximum",
        ),
        _state("peer_dead", "peers that were found dead or given up"),
        _state("peer_waited_for", "peers that a flow waits for"),
        _state("peer_silent_seconds", "time since the peer was last heard", merge="maximum"),
        _state("peer_paths", "paths to the peer"),
        _state("peer_paths_down", "paths to the peer that are not usable"),
    )
}
EXPORTER = {
    family.name: family
    for family in (
        _state("exporter_series", "samples about processes in this scrape"),
        _state("exporter_series_max", "limit of weft_exporter_series: --max-series"),
        _state(
            "exporter_aggregated",
            "1 while the label that `what` names is `all` in all series, because they are too many",
        ),
        _state("exporter_processes_left_out", "endpoints without samples: too many series"),
        _state("exporter_unreadable_pages", "telemetry pages that could not be read"),
        _state("exporter_ignored_pages", "telemetry pages that other users made or can change"),
        _state("exporter_failed", "1 if the directory of pages could not be listed"),
    )
}


def family_of(row: CounterRow) -> Family:
    """The metric of a counter."""
    name, per_unit = row.name, 1
    if row.unit == "ns":
        name = name.replace("_ns_max", "_max_ns").removesuffix("_ns") + "_seconds"
        per_unit = NS_PER_S
    elif row.unit == "bytes" and name.startswith("bytes_"):
        name = name.removeprefix("bytes_") + "_bytes"
    kind = {"sum": "counter", "histogram": "histogram"}.get(row.kind, "gauge")
    merge = "maximum" if row.kind == "maximum" else "sum"
    return Family(f"weft_{row.scope}_{name}", kind, row.sentence, per_unit, merge)


def counters() -> dict[tuple[str, str], Family]:
    """(scope, name of the counter) -> its metric."""
    return {(row.scope, row.name): family_of(row) for row in table()}


def families() -> list[Family]:
    """Every metric that `weft metrics` can export."""
    return [*counters().values(), *STATES.values(), *EXPORTER.values()]


def markdown(rows: Sequence[Family]) -> str:
    """A table of metrics, for docs/LIVE.md."""
    ends = {"counter": "_total"}
    cells = [(f"`{one.name}{ends.get(one.kind, '')}`", one.kind, one.help) for one in rows]
    return markdown_table(("metric", "kind", "meaning"), cells) + "\n"
