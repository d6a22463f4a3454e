"""Tests summaries of hosts: they say the same as the whole traces, read piece by piece."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bench.lib.diagnosis_jobs import Job as Shape
from tests.diagnose.grown import OPERATIONS, agent, followed, job_of
from tests.diagnose.support import traced
from tests.diagnose.test_faults import HANGS, SLOW
from transport.diagnose.diagnosis import diagnose, judged
from transport.diagnose.facts import Facts, facts_of
from transport.diagnose.live import summary
from transport.diagnose.settings import Settings
from transport.plan import routes
from transport.sim.run import run
from transport.sim.scenario import from_tables
from transport.sim.trace import write_trace
from transport.trace.store import open_store

NAMES = (
    *("slow NIC", "lossy link", "straggler"),
    *("absent rank", "stopped process", "crash", "wrong size"),
)


def faulty(folder: Path, name: str) -> Path:
    fault = (SLOW | HANGS)[name][0]
    return traced(folder, fault, limit_ns=10_000_000) if name in HANGS else traced(folder, fault)


def relabel(facts: Facts) -> None:
    """Numbers the instances of operations in the order in which the calls name them."""
    known: dict[int, int] = {}
    for one in facts.calls["instance"].tolist():
        known.setdefault(one, len(known))
    for table in (facts.calls, facts.edges):
        table["instance"] = np.array([known.get(one, -1) for one in table["instance"].tolist()])


def same_rows(found: dict[str, np.ndarray], wanted: dict[str, np.ndarray], *names: str) -> None:
    rows = [
        sorted(zip(*(one[name].tolist() for name in names), strict=True)) for one in (found, wanted)
    ]
    assert rows[0] == rows[1]


def check(found: Facts, wanted: Facts) -> None:
    """Checks that both have the same calls, edges, losses, samples, sent segments and failures."""
    assert [(one.rank, one.host, one.pid, one.ended) for one in found.processes] == [
        (one.rank, one.host, one.pid, one.ended) for one in wanted.processes
    ]
    assert (found.members, found.end_ns) == (wanted.members, wanted.end_ns)
    relabel(found)
    relabel(wanted)
    columns = (
        *("process", "comm_id", "rank", "ranks", "function", "kind", "sequence", "count"),
        *("datatype", "root", "begin_ns", "arrival_ns", "end_ns", "instance"),
    )
    same_rows(found.calls, wanted.calls, *columns)
    edges = ("source", "target", "messages", "end_ns", "latency_ns", "instance")
    busy = ("busy_ns",) if "busy_ns" in wanted.edges else ()
    same_rows(found.edges, wanted.edges, *edges, *busy)
    ends = ("source", "target", "path", "time_ns")
    same_rows(found.losses, wanted.losses, *ends, "segments")
    same_rows(found.downs, wanted.downs, *ends, "what")
    totals = []
    for one in (found.sent, wanted.sent):
        key = one["source"] << 32 | one["target"] << 8 | one["path"]
        totals.append(np.bincount(np.unique(key, return_inverse=True)[1], one["sent"]))
    assert np.allclose(totals[0], totals[1])


@pytest.mark.parametrize("steps", [1, 7])
def test_summary__has_the_facts_of_the_trace(tmp_path: Path, steps: int) -> None:
    source = faulty(tmp_path / "trace", "slow NIC")
    said = followed(source, tmp_path / "grown", steps, agent(tmp_path / "grown"))
    with open_store(source) as store:
        check(job_of(said, tmp_path / "share").facts, facts_of(store))


@pytest.mark.parametrize("steps", [1, 5])
def test_summary__pairs_sends_and_receives(tmp_path: Path, steps: int) -> None:
    tables = Shape("pipeline", 32, 1).tables(4)
    write_trace(run(from_tables(tables, file="job"), trace_ns=500_000), tmp_path / "trace")
    said = followed(tmp_path / "trace", tmp_path / "grown", steps, agent(tmp_path / "grown"))
    with open_store(tmp_path / "trace") as store:
        check(job_of(said, tmp_path / "share").facts, facts_of(store))


@pytest.mark.parametrize("steps", [1, 5])
def test_summary__has_the_messages_of_programs_without_nccl(tmp_path: Path, steps: int) -> None:
    source, grown = traced(tmp_path / "trace"), tmp_path / "grown"
    said = followed(source, grown, steps, agent(grown), without=OPERATIONS)
    assert not len(said.tables["calls"]["process"])
    with open_store(grown) as store:
        check(job_of(said, tmp_path / "share").facts, facts_of(store))


def test_summary__has_the_last_messages_of_each_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(summary, "CALLS_MIN", 100)
    monkeypatch.setattr(summary, "CALLS_HOST_MAX", 0)
    source, grown = traced(tmp_path / "trace"), tmp_path / "grown"
    said = followed(source, grown, 5, agent(grown), without=OPERATIONS)
    kept, process = said.tables["messages"]["end_ns"], said.tables["messages"]["process"]
    # Messages that ended in the last 2.5 ms may not be final yet.
    newest = kept >= kept.max() - 2_500_000
    assert np.bincount(process[~newest], minlength=32).max() <= 100
    assert np.bincount(process).min() >= 100


def test_summary__a_hang_stays_while_it_lasts(tmp_path: Path) -> None:
    source = faulty(tmp_path / "trace", "absent rank")
    one = agent(source)
    # Less than the time that path samples continue after the last call.
    one.summary.window_ns = 2_000_000
    job = job_of(one.step(), tmp_path / "share")
    assert job.facts.end_ns - job.facts.calls["begin_ns"].max() > 2 * one.summary.window_ns
    found = judged(job.facts, job.dead, Settings(), job.notes)
    assert [(one.kind, one.place.name, one.certain) for one in found.findings] == [
        ("non_communication_hang", "rank 21", True)
    ]


@pytest.mark.parametrize("name", [*[*NAMES, "process that went on"], "process that went on"])
def test_summary__gives_the_verdict_of_the_trace(tmp_path: Path, name: str) -> None:
    source = faulty(tmp_path / "trace", name)
    said = followed(source, tmp_path / "grown", 5, agent(tmp_path / "grown"))
    job = job_of(said, tmp_path / "share")
    settings = Settings(routes=routes.read(source / routes.FILE))
    with open_store(source) as store:
        wanted = diagnose(store, settings)
    found = judged(job.facts, job.dead, settings, job.notes)
    assert [(one.kind, one.place.name) for one in found.findings if one.certain][:1] == [
        (one.kind, one.place.name) for one in wanted.findings if one.certain
    ][:1]


def test_summary__its_size_is_bounded(tmp_path: Path) -> None:
    source = traced(tmp_path / "trace")
    one = agent(source, windows=2)
    said = one.step()
    assert len(np.unique(said.tables["calls"]["sequence"])) <= 4


@pytest.mark.parametrize(
    ("processes", "ranks", "calls"),
    [
        (8, 8, 8_000),
        (2, 2, 32_000),
        (8, 32, 4_000),
        (8, 1_024, 2_000),
        (32, 0, 2_000),
        (1, 0, 64_000),
    ],
)
def test_summary__has_more_calls_of_few_processes(processes: int, ranks: int, calls: int) -> None:
    assert summary.most_calls(processes, ranks) == calls


@pytest.mark.parametrize("name", ["calls", "messages"])
def test_summary__has_all_windows_of_short_iterations(tmp_path: Path, name: str) -> None:
    """Two ranks with 10,000 calls/s: the summary has the eight windows that are judged."""
    source, grown = traced(tmp_path / "trace"), tmp_path / "grown"
    made = agent(grown, windows=30)
    followed(source, grown, 1, made, without=OPERATIONS if name == "messages" else ())
    one = made.summary
    count, every_ns, last_ns = 30_000, 100_000, 5_000_000_000
    table = one.history[name]
    times = np.tile(last_ns - np.arange(count) * every_ns, 2)
    more = {"process": np.repeat([0, 1], count)}
    more |= {key: times for key in ("begin_ns", "arrival_ns", "end_ns") if key in table}
    one.history[name] = {key: column[np.zeros(2 * count, int)] for key, column in table.items()}
    one.history[name] |= more
    one.calls_max, one.kept_ns, one.latest_ns = summary.most_calls(2, 2), summary.KEPT_NS, last_ns
    one._bound()
    one.now = dict(one.history)
    one._cut()
    kept = np.bincount(one.now[name]["process"], minlength=2)
    assert kept.min() >= summary.KEPT_NS // every_ns
    assert kept.max() <= one.calls_max
