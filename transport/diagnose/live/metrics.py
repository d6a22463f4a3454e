"""Exports verdicts as a bounded number of Prometheus series."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from transport.diagnose.finding import CLASSES
from transport.diagnose.live.collector import Collector
from transport.ground.text import markdown_table

if TYPE_CHECKING:
    from prometheus_client import Metric

FINDINGS_MAX = 20  # at most this many findings and suspicions have series of their own
PLACE_MAX = 200  # maximum number of characters of a label
# Name of a metric -> its meaning (docs/LIVE.md).
METRICS = {
    "weft_diagnosis_finding": "1 for each fault that is seen now, by class and place",
    "weft_diagnosis_finding_confidence": "how sure its verdict is, 0 to 1",
    "weft_diagnosis_suspicion": "1 for each fault that is suspected now, by class and place",
    "weft_diagnosis_findings": "number of faults that are seen now, by class",
    "weft_diagnosis_suspicions": "number of suspicions now",
    "weft_diagnosis_incidents": "faults that were found since the start",
    "weft_diagnosis_ranks": "processes that were judged in the last interval",
    "weft_diagnosis_iterations": "iterations of the job in the window",
    "weft_diagnosis_iteration_seconds": "usual time of an iteration",
    "weft_diagnosis_longest_pause_seconds": "longest pause that the job has made without a fault",
    "weft_diagnosis_seconds": "CPU time of the judge since the start",
}


class Verdicts:
    """Yields the metrics of a collector to prometheus_client."""

    def __init__(self, collector: Collector) -> None:
        self._collector = collector

    def collect(self) -> Iterator[Metric]:
        """At most 2 samples for each of FINDINGS_MAX incidents, one for each class, and 7 more."""
        from prometheus_client import Metric

        made = {name: Metric(name, text, "gauge") for name, text in METRICS.items()}
        for name in ("weft_diagnosis_incidents", "weft_diagnosis_seconds"):
            made[name] = Metric(name, METRICS[name], "counter")

        def add(name: str, value: float, **labels: str) -> None:
            total = "_total" if made[name].type == "counter" else ""
            made[name].add_sample(name + total, labels, value)

        now = sorted(self._collector.incidents.values(), key=lambda one: not one.certain)
        told: set[tuple[str, str]] = set()
        for one in now[:FINDINGS_MAX]:
            labels = {"class": one.finding.kind, "place": one.finding.place.name[:PLACE_MAX]}
            if (labels["class"], labels["place"]) in told:
                continue  # two samples with the same labels would make Prometheus refuse all
            told.add((labels["class"], labels["place"]))
            kind = "finding" if one.certain else "suspicion"
            add(f"weft_diagnosis_{kind}", 1, **labels)
            if one.certain:
                confidence = float(one.finding.confidence)
                add("weft_diagnosis_finding_confidence", confidence, **labels)
        for kind in CLASSES:
            if kind != "healthy":
                count = sum(one.certain and one.finding.kind == kind for one in now)
                add("weft_diagnosis_findings", count, **{"class": kind})
        add("weft_diagnosis_suspicions", sum(not one.certain for one in now))
        add("weft_diagnosis_incidents", self._collector.found)
        latest = self._collector.latest
        add("weft_diagnosis_ranks", 0 if latest is None else latest.ranks)
        add("weft_diagnosis_iterations", 0 if latest is None else latest.iterations)
        iteration_ns = 0 if latest is None else latest.iteration_ns
        add("weft_diagnosis_iteration_seconds", iteration_ns / 1e9)
        add("weft_diagnosis_longest_pause_seconds", self._collector.pauses.longest_ns / 1e9)
        add("weft_diagnosis_seconds", self._collector.spent_ns / 1e9)
        yield from made.values()


def markdown() -> str:
    """The table of metrics in docs/LIVE.md."""
    rows = []
    for name, text in METRICS.items():
        is_counter = name in ("weft_diagnosis_incidents", "weft_diagnosis_seconds")
        kind, end = ("counter", "_total") if is_counter else ("gauge", "")
        rows.append((f"`{name}{end}`", kind, text))
    return markdown_table(("metric", "kind", "meaning"), rows) + "\n"
