"""Tests what is said of jobs whose processes were killed, by real processes and by written traces
that name them."""

import json
import signal
import socket
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.diagnose.support import ring, traced
from tests.diagnose.test_command import run
from tests.stopping import stopped
from tests.trace.writer import Process, communicator, operation
from transport.diagnose import alive, diagnosis, report
from transport.diagnose.facts import facts_of
from transport.diagnose.finding import Finding, Place
from transport.diagnose.killed import Killed, killed
from transport.trace import open_store

STEP_NS = 10_000_000
RANKS = 3


def ended_pid() -> tuple[int, int]:
    """The id of a process of this host that has ended, and when it was started, in ticks."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as one:
        text = (alive.PROC / str(one.pid) / "stat").read_text()
        return one.pid, int(text.rpartition(")")[2].split()[19])


def job(
    folder: Path, *, host: str = "", steps: tuple[int, ...] = (100,) * RANKS, closed: str = ""
) -> Path:
    """Traces of ranks on a host whose processes have ended; closed: ranks whose trace has an end.

    steps: how many operations each rank has recorded.
    """
    pid, ticks = ended_pid()
    for rank, count in enumerate(steps):
        variables = {"RANK": str(rank), "WORLD_SIZE": str(len(steps)), "start_ticks": str(ticks)}
        one = Process(folder, host or socket.gethostname(), pid, f"{rank + 1:016x}", variables)
        one.ended = str(rank) in closed
        comm = communicator(one, 7, rank, len(steps))
        for at in range(count):
            times = (at * STEP_NS, at * STEP_NS + 1000)
            operation(one, comm, "AllReduce", *times, count=4, sequence=at)
        one.write()
    return folder


def said_of(folder: Path) -> Killed | None:
    with open_store(folder) as store:
        return killed(store, facts_of(store), diagnosis.numbers_of(store))


@pytest.mark.parametrize(
    ("job_of", "said", "gone"),
    [
        ({}, "the job was killed or crashed: no rank's trace has an end", True),
        ({"closed": "02"}, "rank 1 was killed or crashed: its trace has no end", True),
        ({"closed": "1"}, "ranks 0, 2 were killed or crashed: their traces have no end", True),
        ({"host": "elsewhere"}, "no rank's trace has an end: the job was killed or", False),
    ],
)
def test_killed__traces_without_an_end_are_not_healthy(
    tmp_path: Path, job_of: dict[str, str], said: str, gone: bool
) -> None:
    found = said_of(job(tmp_path, **job_of))  # type: ignore[arg-type]
    assert found is not None
    assert (found.lack.what.startswith(said), found.gone) == (True, gone)
    assert found.first is None  # all stopped at once


@pytest.mark.parametrize("job_of", [{"closed": "012"}, {"host": "elsewhere", "closed": "1"}])
def test_killed__says_nothing_of_ranks_that_ended(tmp_path: Path, job_of: dict[str, str]) -> None:
    assert said_of(job(tmp_path, **job_of)) is None  # type: ignore[arg-type]


def test_killed__says_nothing_of_a_simulation(tmp_path: Path) -> None:
    assert said_of(traced(tmp_path)) is None


@pytest.mark.parametrize(("less", "named"), [(30, True), (5, False)])
def test_killed__the_rank_whose_records_stop_first_is_suspected(
    tmp_path: Path, less: int, named: bool
) -> None:
    """If they stop so early before all others that unwritten records do not explain it."""
    found = said_of(job(tmp_path, steps=(100, 100 - less, 99)))
    assert found is not None
    first = found.first
    assert (first is not None) == named
    if first is not None:
        assert (first.kind, first.place.name, first.certain) == ("crash", "rank 1", False)
        assert "process:  pid" in "\n".join(report.lines_of(first, "DIR"))


def test_killed__explains_suspicions_of_the_network_at_the_end_alone(tmp_path: Path) -> None:
    found = said_of(job(tmp_path))
    assert found is not None

    def explained(kind: str, from_ns: int, certain: bool = False) -> bool:
        place = Place("network", "the network")
        return found.explains(Finding(kind, place, from_ns, from_ns, 0.5, certain, "", "", ""))

    assert explained("network_loss", found.since_ns)
    assert not explained("network_loss", found.since_ns, certain=True)
    assert not explained("network_loss", found.since_ns - 10 * 10**9)
    assert not explained("non_communication_slow", found.since_ns)


def test_diagnose__a_killed_job_is_never_healthy(tmp_path: Path) -> None:
    """Real ranks that get SIGKILL while all are stopped, so that none reports another's death."""
    with ring(tmp_path) as ranks, ExitStack() as all_stopped:
        for one in ranks:
            all_stopped.enter_context(stopped(one.pid))
        for one in ranks:
            one.send_signal(signal.SIGKILL)
    found = json.loads(run("diagnose", tmp_path, "--json", "-").output)
    assert found["answer"] not in ("healthy", "slower but unexplained")
    lack = found["judged"]["lacks"][0]["what"]
    assert lack.startswith("the job was killed or crashed: no rank's trace has an end")
