"""Measures live diagnosis: the collector's cost by ranks, and that of a host's agent by records."""

from __future__ import annotations

import resource
import tempfile
import time
from pathlib import Path

import click

from bench.lib.common import Config, document, emit, interruptible, json_option
from bench.lib.diagnosis_cost import loss_of_ranks
from bench.lib.diagnosis_hosts import Shape, host_file
from bench.lib.diagnosis_jobs import Job
from transport.diagnose.live.agent import Agent
from transport.diagnose.live.collector import Collector
from transport.diagnose.live.follow import Follower
from transport.diagnose.live.metrics import Verdicts
from transport.diagnose.live.share import Share, write
from transport.diagnose.live.summary import Summary
from transport.sim.run import run
from transport.sim.scenario import from_tables
from transport.sim.trace import write_trace
from transport.trace import open_store
from transport.trace.store import new_store

COLUMNS = (
    *("what", "ranks", "intervals", "records", "files_bytes", "cpu_ms", "wall_ms"),
    *("cpu_us_per_record", "memory_bytes", "series", "findings"),
    *("records_per_s", "ratio", "upper", "cores"),
)
FOREVER_NS = 1 << 61
SLOW_RANK = 5


def memory_bytes() -> int:
    """The peak of this process's memory."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def judge(ranks: int, intervals: int, iterations: int) -> Config:
    """One collector reads the summaries of all hosts and judges them, in each interval."""
    shape = Shape(ranks, iterations)
    collector = Collector()
    cpu_ns, wall_ns, size, found = [], [], 0, 0
    with tempfile.TemporaryDirectory() as name:
        share = Share(Path(name), 3600.0)
        for interval in range(1, intervals + 1):
            size = sum(
                write(Path(name), host_file(shape, host, interval, SLOW_RANK))
                for host in range(shape.hosts)
            )
            began_ns, began_cpu_ns = time.perf_counter_ns(), time.process_time_ns()
            hosts, lines = share.read()
            assert len(hosts) == shape.hosts, lines
            collector.step(hosts)
            wall_ns.append(time.perf_counter_ns() - began_ns)
            cpu_ns.append(time.process_time_ns() - began_cpu_ns)
            found = collector.found
    return {
        "what": "judge",
        "ranks": ranks,
        "intervals": intervals,
        "files_bytes": size,
        "cpu_ms": sorted(cpu_ns)[len(cpu_ns) // 2] / 1e6,
        "wall_ms": sorted(wall_ns)[len(wall_ns) // 2] / 1e6,
        "memory_bytes": memory_bytes(),
        "series": series(collector),
        "findings": found,
    }


def series(collector: Collector) -> int | None:
    """How many Prometheus time series the verdicts make; None: prometheus_client is missing."""
    try:
        return sum(len(family.samples) for family in Verdicts(collector).collect())
    except ImportError:
        return None


def agent(steps: int, idle: int) -> Config:
    """The agent of a host with 32 ranks reads all traces of a simulated job in its first interval.

    cpu_ms: CPU time of a later interval, in which no trace has grown.
    """
    tables = Job("tensor and data", 32, 1).tables(steps)
    with tempfile.TemporaryDirectory() as name:
        write_trace(run(from_tables(tables, file="job"), trace_ns=500_000), Path(name) / "trace")
        summary = Summary(windows=30, window_ns=FOREVER_NS)
        one = Agent(Follower(Path(name) / "trace", FOREVER_NS), summary)
        with new_store():
            pass  # imports DuckDB, so that the import is not timed
        began_ns = time.process_time_ns()
        said = one.step()
        took_ns = time.process_time_ns() - began_ns
        with open_store(Path(name) / "trace") as store:
            ((records,),) = store.rows("SELECT sum(records) FROM processes")
        size = write(Path(name), said)
        summary.pending.clear()
        began_ns, wall_ns = time.process_time_ns(), time.perf_counter_ns()
        for _ in range(idle):
            one.step()
        idle_ns = (time.process_time_ns() - began_ns) / idle
        wall_ns = (time.perf_counter_ns() - wall_ns) // idle
    return {
        "what": "agent",
        "ranks": 32,
        "intervals": idle,
        "records": int(records),
        "files_bytes": size,
        "cpu_ms": idle_ns / 1e6,
        "wall_ms": wall_ns / 1e6,
        "cpu_us_per_record": (took_ns - idle_ns) / max(records, 1) / 1e3,
        "memory_bytes": memory_bytes(),
    }


@click.command("diagnose_live")
@click.option(
    "--ranks",
    "sizes",
    multiple=True,
    default=(64, 256, 1024),
    show_default=True,
    type=click.IntRange(16, 16_384),
    help="Ranks of the judged jobs.",
)
@click.option("--intervals", default=5, show_default=True, type=click.IntRange(1, 1_000))
@click.option(
    "--iterations",
    default=30,
    show_default=True,
    type=click.IntRange(4, 1_000),
    help="Iterations that each host's file has.",
)
@click.option(
    "--steps",
    default=20,
    show_default=True,
    type=click.IntRange(2, 1_000),
    help="Steps of the job that the agent reads.",
)
@click.option(
    "--pairs",
    default=0,
    type=click.IntRange(0, 1_000),
    help="Also measure the ranks' message rate without and with diagnosis, this many times.",
)
@click.option(
    "--seconds", default=4.0, show_default=True, help="Seconds of each measurement of --pairs."
)
@click.option(
    "--message-bytes", default=1 << 20, show_default=True, help="Size of the ranks' messages."
)
@json_option
def command(
    sizes: tuple[int, ...],
    intervals: int,
    iterations: int,
    steps: int,
    pairs: int,
    seconds: float,
    message_bytes: int,
    json_path: str | None,
) -> None:
    """Measures what an interval costs the collector of all hosts, and the agent of one host."""
    rows: list[Config] = []
    with interruptible() as cut:
        rows.append(agent(steps, intervals))
        rows.extend(judge(ranks, intervals, iterations) for ranks in sizes)
        if pairs:
            rows.append(loss_of_ranks(pairs, seconds, message_bytes))
    notes = [
        "memory_bytes: peak of this process so far; cpu_ms of the judge: median of the intervals"
    ]
    if pairs:
        notes.append(
            "ratio: message rate of the ranks while diagnosis is stopped / while it follows them"
        )
    emit(document("diagnose_live", rows), json_path, COLUMNS, notes, cut)
