"""Tests the judge on traces that grow: its first verdict is right, and healthy jobs get no
finding.

The clocks are those of simulated jobs, whose iterations take some milliseconds.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from tests.diagnose import support
from tests.diagnose.grown import agent, grow, in_order
from tests.diagnose.support import traced
from tests.diagnose.test_faults import HANGS, SLOW
from tests.diagnose.test_live_summary import NAMES, faulty
from transport.diagnose.live import merge, pauses
from transport.diagnose.live.collector import Collector
from transport.diagnose.live.incidents import Event
from transport.diagnose.live.pauses import Pauses
from transport.diagnose.live.share import Share, write
from transport.diagnose.settings import Settings
from transport.plan import routes

STEPS = 14
DELAY_NS = 500_000


@pytest.fixture(autouse=True)
def _short_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """Delays and pauses in proportion to the short iterations, and more steps of each job."""
    monkeypatch.setattr(support, "STEPS", 11)
    monkeypatch.setattr(merge, "LATE_NS", DELAY_NS)
    monkeypatch.setattr(pauses, "PAUSE_NS_MIN", DELAY_NS)


def events_of(source: Path, folder: Path) -> list[Event]:
    """The events that the judge reports while the traces grow."""
    folder.mkdir()
    one = agent(folder)
    known = routes.read(source / routes.FILE)
    collector = Collector(Settings(routes=known), pauses=Pauses(untaught_ns=0))
    pieces = in_order(source, STEPS)
    told: list[Event] = []
    for step in range(STEPS):
        grow(folder, pieces, step)
        said = one.step()
        lasts = [process["last_ns"] for process in said.processes]
        said = dataclasses.replace(said, read_ns=int(np.max(lasts)))
        told += [dataclasses.replace(event) for event in collector.step([said])]
    return told


def test_stream__a_healthy_job_has_no_alarm(tmp_path: Path) -> None:
    told = events_of(traced(tmp_path / "trace"), tmp_path / "grown")
    assert [one.incident.finding for one in told if one.what == "finding"] == []


@pytest.mark.parametrize("name", NAMES)
def test_stream__the_first_finding_is_right(tmp_path: Path, name: str) -> None:
    verdict, _, place = (SLOW | HANGS)[name][1]
    told = events_of(faulty(tmp_path / "trace", name), tmp_path / "grown")
    found = [one.incident.finding for one in told if one.what == "finding"]
    assert [(one.kind, one.place.name) for one in found][:1] == [(verdict, place)]


@pytest.mark.parametrize("name", ["straggler", "lossy link"])
def test_hosts__that_meet_in_a_share_are_judged_as_one_job(tmp_path: Path, name: str) -> None:
    """Each of 32 hosts has an agent of its own."""
    verdict, _, place = (SLOW | HANGS)[name][1]
    source, share = faulty(tmp_path / "trace", name), tmp_path / "share"
    share.mkdir()
    for rank in range(support.RANKS):
        one = agent(source)
        one.follower.host = one.host = f"host{rank}"
        said = one.step()
        assert [process["rank"] for process in said.processes] == [rank]
        write(share, said)
    hosts, lines = Share(share, stale_s=3600.0).read()
    assert (len(hosts), lines) == (support.RANKS, [])
    collector = Collector(Settings(routes=routes.read(source / routes.FILE)))
    assert collector.step(hosts) == []  # one interval may be chance
    assert collector.latest is not None
    assert [(one.kind, one.place.name) for one in collector.latest.findings] == [(verdict, place)]
