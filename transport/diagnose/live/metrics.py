"""Exports verdicts as a bounded number of Prometheus series."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from transport.diagnose.finding import CLASSES
from transport.diagnose.live.collector import Collector
from transport.diagnose.live.incidents import Incident, State
from transport.ground.text import markdown_table

if TYPE_CHECKING:
    from prometheus_client import Metric

FINDINGS_MAX = 20  # at most this many findings and suspicions have series of their own
PLACE_MAX = 200  # maximum number of characters of a label
# Name of a metric -> its meaning (docs/LIVE.md).
METRICS = {
    "weft_diagnosis_finding": "1 for each incident that is open, by class and place",
    "weft_diagnosis_finding_confidence": "how sure it is that the fault is at this place, 0 to 1; "
    "places that explain it equally well share it",
    "weft_diagnosis_finding_quiet": "1 if it was not seen lately, else 0",
    "weft_diagnosis_finding_lost_seconds": "what the job lost by it in the windows that last "
    "showed it; absent if that is not known",
    "weft_diagnosis_suspicion": "1 for each fault that is suspected now, by class and place",
    "weft_diagnosis_findings": "number of incidents that are open, by class",
    "weft_diagnosis_suspicions": "number of suspicions now",
    "weft_diagnosis_suspicions_unrepeated": "suspicions that only one interval showed",
    "weft_diagnosis_incidents": "faults that were found since the start",
    "weft_diagnosis_ranks": "processes that were judged in the last interval",
    "weft_diagnosis_ranks_missing": "ranks of the job without a trace, as far as that is known",
    "weft_diagnosis_iterations": "iterations of the job in the window",
    "weft_diagnosis_iteration_seconds": "usual time of an iteration",
    "weft_diagnosis_longest_pause_seconds": "longest pause that the job has made without a fault",
    "weft_diagnosis_seconds": "CPU time of the judge since the start",
}
COUNTERS = (
    "weft_diagnosis_incidents",
    "weft_diagnosis_suspicions_unrepeated",
    "weft_diagnosis_seconds",
)
Sample = tuple[str, dict[str, str], float]


def samples(collector: Collector) -> Iterator[Sample]:
    """Name, labels and value: at most 4 for each of FINDINGS_MAX incidents, one for each class, and
    9 more."""
    now = sorted(collector.incidents.values(), key=lambda one: not one.certain)
    yield from _of_incidents(now)
    for kind in CLASSES:
        if kind != "healthy":
            count = sum(one.certain and one.finding.kind == kind for one in now)
            yield "weft_diagnosis_findings", {"class": kind}, count
    latest = collector.latest
    for name, value in (
        ("suspicions", sum(not one.certain for one in now)),
        ("suspicions_unrepeated", collector.unrepeated),
        ("incidents", collector.found),
        ("ranks", 0 if latest is None else latest.ranks),
        ("ranks_missing", 0 if latest is None else latest.missing),
        ("iterations", 0 if latest is None else latest.iterations),
        ("iteration_seconds", 0 if latest is None else latest.iteration_ns / 1e9),
        ("longest_pause_seconds", collector.pauses.longest_ns / 1e9),
        ("seconds", collector.spent_ns / 1e9),
    ):
        yield f"weft_diagnosis_{name}", {}, value


def _of_incidents(now: Sequence[Incident]) -> Iterator[Sample]:
    told: set[tuple[str, str]] = set()
    for one in now[:FINDINGS_MAX]:
        finding = one.finding
        labels = {"class": finding.kind, "place": finding.place.name[:PLACE_MAX]}
        if (labels["class"], labels["place"]) in told:
            continue  # two samples with the same labels would make Prometheus refuse all
        told.add((labels["class"], labels["place"]))
        if not one.certain:
            yield "weft_diagnosis_suspicion", labels, 1
            continue
        yield "weft_diagnosis_finding", labels, 1
        yield "weft_diagnosis_finding_confidence", labels, float(finding.confidence)
        yield "weft_diagnosis_finding_quiet", labels, one.state is State.QUIET
        if finding.lost_ns is not None:
            yield "weft_diagnosis_finding_lost_seconds", labels, finding.lost_ns / 1e9


class Verdicts:
    """Yields the metrics of a collector to prometheus_client."""

    def __init__(self, collector: Collector) -> None:
        self._collector = collector

    def collect(self) -> Iterator[Metric]:
        from prometheus_client import Metric

        made = {
            name: Metric(name, text, "counter" if name in COUNTERS else "gauge")
            for name, text in METRICS.items()
        }
        for name, labels, value in samples(self._collector):
            made[name].add_sample(name + ("_total" if name in COUNTERS else ""), labels, value)
        yield from made.values()


def markdown() -> str:
    """The table of metrics in docs/LIVE.md."""
    rows = []
    for name, text in METRICS.items():
        kind, end = ("counter", "_total") if name in COUNTERS else ("gauge", "")
        rows.append((f"`{name}{end}`", kind, text))
    return markdown_table(("metric", "kind", "meaning"), rows) + "\n"
