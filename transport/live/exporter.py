"""Serves the metrics of running processes to Prometheus."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from transport.live.names import EXPORTER, Family
from transport.live.rates import rates
from transport.live.reading import Reading, read
from transport.live.samples import ALL, LEVELS, Exported, Samples, bounded
from transport.live.totals import Totals
from transport.telemetry import Page, PageError

if TYPE_CHECKING:
    from prometheus_client import Metric

SERIES_MAX = 20_000
# Subject of a problem -> the line that is logged when the problem has ended.
WELL = {
    "directory": "the directory of pages can be listed again",
    "bound": "all labels have their own values again",
    "ignored": "no telemetry page is ignored any more",
}
IGNORED = (
    "telemetry pages that other users made or can change are ignored; "
    "weft_exporter_ignored_pages counts them"
)
# If there are too many series, labels get the value `all`. Such a label gets its own values back if
# the number of series is then at most this share of series_max.
RELAXED = 0.8


@dataclass(eq=False)
class Exporter:
    """Reads the telemetry pages at each scrape. It is a collector of Prometheus' client library.

    where: the directory of pages; None: telemetry.directory(). paths: whether paths have labels.
    once: True: there is one scrape, and counters have their full values; else, counters of peers,
    paths and flows count from the first scrape. log: called with a line when a problem begins or
    ends.
    """

    where: Path | None = None
    pids: Collection[int] = ()
    paths: bool = True
    series_max: int = SERIES_MAX
    once: bool = False
    log: Callable[[str], None] = lambda _: None
    _totals: dict[Path, tuple[int, Totals]] = field(default_factory=dict)
    _level: int = -1
    _said: dict[str, str] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _scraped: bool = False

    def collect(self) -> Iterator[Metric]:
        """All metrics at this moment."""
        with self._lock:
            samples = self.scrape()
        for family, values in samples.of.items():
            yield _metric(family, values)

    def scrape(self) -> Samples:
        """All samples at this moment: at most `series_max` of processes, and 9 of the exporter."""
        try:
            reading, failed = read(self.where, self.pids), 0
            self._say("directory", "")
        except PageError as error:
            reading, failed = Reading(0, (), {}, ()), 1
            self._say("directory", str(error))
        # The log line does not say how many telemetry pages are ignored, or which: whoever makes
        # them could change that at each scrape, and fill the log.
        self._say("ignored", IGNORED if reading.ignored else "")
        pages = [page for page in reading.pages if page.process_state != "gone"]
        self._count(pages)
        samples, left_out = self._fitting(reading, pages)
        series = len(samples)
        self._say_level(left_out)
        for label, aggregated in LEVELS[self._level].aggregated.items():
            if label != "path" or self.paths:
                samples.add(EXPORTER["weft_exporter_aggregated"], (("what", label),), aggregated)
        for name, value in (
            ("series", series),
            ("series_max", self.series_max),
            ("processes_left_out", left_out),
            ("unreadable_pages", len(reading.problems) - bool(reading.ignored)),
            ("ignored_pages", reading.ignored),
            ("failed", failed),
        ):
            samples.add(EXPORTER["weft_exporter_" + name], (), value)
        return samples

    def _count(self, pages: list[Page]) -> None:
        """Updates the totals of all telemetry pages; forgets those of processes that have ended."""
        kept: dict[Path, tuple[int, Totals]] = {}
        for page in pages:
            created_ns, totals = self._totals.get(page.path, (page.created_ns, Totals()))
            is_new = page.path not in self._totals
            if created_ns != page.created_ns:
                totals, is_new = Totals(), False
            totals.update(page, from_zero=is_new and not self._scraped and not self.once)
            kept[page.path] = (page.created_ns, totals)
        self._totals = kept
        self._scraped = True

    def _fitting(self, reading: Reading, pages: list[Page]) -> tuple[Samples, int]:
        """The samples, with as many labels as fit into series_max; number of endpoints left out."""
        least = 0 if self.paths else 1
        level = max(self._level, least)
        if level > least and len(self._made(reading, pages, level - 1)) <= self._relaxed_max():
            level -= 1
        while True:
            parts = self._parts(reading, pages, level)
            if sum(map(len, parts)) <= self.series_max or level == len(LEVELS) - 1:
                break
            level += 1
        self._level = level
        return bounded(parts, self.series_max)

    def _relaxed_max(self) -> int:
        return int(RELAXED * self.series_max)

    def _made(self, reading: Reading, pages: list[Page], level: int) -> Samples:
        made = Samples()
        for part in self._parts(reading, pages, level):
            made.update(part)
        return made

    def _parts(self, reading: Reading, pages: list[Page], level: int) -> list[Samples]:
        waits = rates(None, Reading(reading.read_ns, tuple(pages), reading.facts, ()))
        return [
            Exported(page, reading.facts[page.path], LEVELS[level]).make(
                of_page, self._totals[page.path][1]
            )
            for page, of_page in zip(pages, waits, strict=True)
        ]

    def _say_level(self, left_out: int) -> None:
        aggregated = LEVELS[self._level].aggregated
        names = [name for name, is_all in aggregated.items() if is_all]
        if not self.paths:
            names.remove("path")
        text = ""
        if names or left_out:
            which = ", ".join(names) or "none"
            text = f"more than {self.series_max} series; labels that are `{ALL}`: {which}"
        if left_out:
            text += f"; endpoints left out: {left_out}"
        self._say("bound", text)

    def _say(self, subject: str, text: str) -> None:
        """Logs what is wrong with a subject if that has changed; text "": its problem has ended."""
        if text != self._said.get(subject, ""):
            self._said[subject] = text
            self.log(text or WELL[subject])


def _metric(family: Family, values: dict[tuple[str, tuple[tuple[str, str], ...]], float]) -> Metric:
    from prometheus_client import Metric

    metric = Metric(family.name, family.help, family.kind)
    for (name, labels), value in values.items():
        metric.add_sample(name, dict(labels), value)
    return metric
