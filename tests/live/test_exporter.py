"""Tests metrics of invented pages: labels, the bound on series, processes that start and end."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from tests.live.support import NOW, SECOND, engine, flow, page, peer, reading
from transport.live import exporter, names
from transport.live.exporter import Exporter
from transport.live.reading import Facts, Reading
from transport.telemetry import Page, PageError

Values = dict[str, float]
EXPORTER_SAMPLES = 9


class Host:
    """Pages that an exporter reads, and the lines that it logs."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.pages: Sequence[Page] = ()
        self.facts = Facts()
        self.lines: list[str] = []
        self.fails = False
        monkeypatch.setattr(exporter, "read", self._read)

    def _read(self, where: Path | None, pids: Sequence[int]) -> Reading:
        if self.fails:
            raise PageError("cannot list the directory of pages")
        return reading(*self.pages, facts=self.facts)

    def scrape(self, of: Exporter, *pages: Page) -> Values:
        """The samples by name{label="value",...}."""
        self.pages = pages
        of.log = self.lines.append
        found = {}
        for values in of.scrape().of.values():
            for (name, labels), value in values.items():
                found[name + "{" + ",".join(f"{k}={v}" for k, v in labels) + "}"] = value
        return found


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Host:
    return Host(monkeypatch)


def busy(pid: int = 4711, peers: int = 2, paths: int = 3) -> Page:
    """A page with paths to peers, each of which sent 5 bytes, and flows that sent 100 bytes."""
    return page(
        pid=pid,
        engines=(engine(calls=9),),
        peers=tuple(
            peer(i, paths, f"10.0.0.{i}", path_counters={"bytes_sent": 5, "rtt_ns": 1000 * (i + 1)})
            for i in range(peers)
        ),
        flows=tuple(flow(i, peer=i, connection=i, bytes_sent=100) for i in range(peers)),
    )


def test_exporter__labels_and_units(host: Host) -> None:
    host.facts = Facts("3", "python", {"weft-engine-0": 2 * SECOND})
    found = host.scrape(Exporter(once=True), busy())
    at = "pid=4711,endpoint=0,rank=3"
    assert found[f"weft_process_info{{{at},command=python}}"] == 1
    assert found[f"weft_engine_calls_total{{{at},engine=0}}"] == 9
    assert found[f"weft_path_rtt_seconds{{{at},engine=0,peer=10.0.0.1,path=2}}"] == 2e-6
    assert found[f"weft_path_sent_bytes_total{{{at},engine=0,peer=10.0.0.1,path=2}}"] == 5
    assert found[f"weft_flow_sent_bytes_total{{{at},engine=0,peer=10.0.0.0}}"] == 100
    assert found[f"weft_peer_paths{{{at},engine=0,peer=10.0.0.0}}"] == 3
    assert found["weft_thread_cpu_seconds_total{pid=4711,rank=3,thread=weft-engine-0}"] == 2
    assert found[f"weft_process_connections{{{at},reason=idle}}"] == 2
    batch = [v for k, v in found.items() if k.startswith("weft_engine_batch_datagrams_bucket")]
    assert batch == [0, 3, *[4] * 10]
    known = {sample for family in names.families() for sample in family.sample_names}
    assert {key.split("{")[0] for key in found} <= known


def test_exporter__a_process_without_rank_has_no_label_of_it(host: Host) -> None:
    assert not any("rank=" in key for key in host.scrape(Exporter(once=True), busy()))


def test_exporter__without_paths_they_are_added_up(host: Host) -> None:
    found = host.scrape(Exporter(once=True, paths=False), busy())
    at = "pid=4711,endpoint=0,engine=0,peer=10.0.0.1,path=all"
    assert found[f"weft_path_sent_bytes_total{{{at}}}"] == 15
    assert found[f"weft_path_rtt_seconds{{{at}}}"] == 2e-6
    assert not any("path=0" in key for key in found)
    assert "weft_exporter_aggregated{what=path}" not in found
    assert host.lines == []


def test_exporter__too_many_series_lose_labels_one_after_the_other(host: Host) -> None:
    made = busy(peers=6, paths=8)
    whole = int(host.scrape(Exporter(once=True), made)["weft_exporter_series{}"])
    aggregated, left_out = [], []
    for series_max in (whole, whole - 1, whole // 2 - 20, whole // 4, 40):
        found = host.scrape(Exporter(once=True, series_max=series_max), made)
        assert len(found) <= series_max + EXPORTER_SAMPLES
        assert found["weft_exporter_series{}"] <= series_max
        aggregated.append(sum(v for k, v in found.items() if k.startswith("weft_exporter_aggr")))
        left_out.append(found["weft_exporter_processes_left_out{}"])
        sent = [v for k, v in found.items() if k.startswith("weft_path_sent_bytes")]
        assert sum(sent) == (6 * 8 * 5 if series_max > 40 else 0)
    assert aggregated == [0, 1, 2, 2, 3]
    assert left_out == [0, 0, 0, 0, 1]
    assert len(host.lines) == 4
    assert re.search(rf"more than {whole - 1} series; labels that are `all`: path$", host.lines[0])
    assert re.search(r"labels that are `all`: path, peer, engine; .* left out: 1$", host.lines[3])


def test_exporter__labels_come_back_with_fewer_series(host: Host) -> None:
    exports = Exporter(series_max=150)
    for made, lines in ((busy(peers=6, paths=8), 1), (busy(), 2), (busy(), 2)):
        host.scrape(exports, made)
        assert len(host.lines) == lines
    assert host.lines[1] == "all labels have their own values again"


def test_exporter__counters_of_peers_count_from_its_first_scrape(host: Host) -> None:
    exports = Exporter()
    key = "weft_flow_sent_bytes_total{pid=4711,endpoint=0,engine=0,peer=10.0.0.0}"
    assert host.scrape(exports, busy())[key] == 0
    later = replace(busy(), flows=(flow(0, bytes_sent=170),))
    assert host.scrape(exports, later)[key] == 70
    assert host.scrape(exports, replace(busy(), flows=()))[key] == 70
    # All counts of a process that starts later are exported; a process that has ended disappears.
    second = key.replace("4711", "4712")
    assert host.scrape(exports, busy(), busy(pid=4712))[second] == 100
    gone = replace(busy(pid=4712), process_state="gone")
    assert not any("4712" in key for key in host.scrape(exports, busy(), gone))
    # A new page with the file name of an old one is counted from zero.
    again = replace(busy(), created_ns=NOW, flows=(flow(0, bytes_sent=3),))
    assert host.scrape(exports, again)[key] == 3


def test_exporter__the_sum_over_peers_keeps_what_ended_ones_sent(host: Host) -> None:
    exports = Exporter(series_max=60)
    key = "weft_path_sent_bytes_total{pid=4711,endpoint=0,engine=0,peer=all,path=all}"
    host.scrape(exports)
    made = busy(peers=6, paths=8)
    assert host.scrape(exports, made)[key] == 240
    fewer = replace(made, peers=made.peers[:5], flows=made.flows[:5])
    assert host.scrape(exports, fewer)[key] == 240


def test_exporter__waits(host: Host) -> None:
    waits = replace(busy(), flows=(flow(receives=1, progress_ns=NOW - 5 * SECOND),))
    found = host.scrape(Exporter(), waits)
    at = "{pid=4711,endpoint=0,reason=receive}"
    assert found["weft_process_connections" + at] == 1
    assert found["weft_process_waiting_seconds" + at] == 5
    stuck = replace(waits, engines=(engine(sleeping=0, turn_ns=NOW - 2 * SECOND),))
    found = host.scrape(Exporter(), stuck)
    assert found["weft_process_waiting_seconds{pid=4711,endpoint=0,reason=engine}"] == 2


def test_exporter__processes_of_other_containers_are_told_apart(host: Host) -> None:
    other = Path("/pages/weft-0-77-1-5-0.page")
    made = replace(busy(pid=1), process_state="unknown", path=other)
    found = host.scrape(Exporter(), busy(pid=1), made)
    assert {key.split(",")[0].split("=")[1] for key in found if "pid=" in key} == {"1", "1@77"}


def test_exporter__a_directory_that_cannot_be_listed_is_said_once(host: Host) -> None:
    exports = Exporter()
    host.fails = True
    for _ in range(2):
        assert host.scrape(exports)["weft_exporter_failed{}"] == 1
    host.fails = False
    assert host.scrape(exports, busy())["weft_exporter_failed{}"] == 0
    again = "the directory of pages can be listed again"
    assert host.lines == ["cannot list the directory of pages", again]
