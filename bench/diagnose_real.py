"""Real faults in a lab of namespaces: processes stopped and killed, links cut, lossy and slow.

Four ranks on four hosts compute and sum an array around a ring over weft, with a trace. After some
seconds a fault begins; some seconds later, while the job runs, it is diagnosed. The table has each
verdict.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import click

from bench.diagnose import of_finding
from bench.lib.common import ROOT, Config, document, emit, interruptible, json_option
from bench.lib.lab_routes import probed
from transport.diagnose import Settings, diagnose, settled_ns
from transport.lab import Lab, LabModel, Link
from transport.trace import open_store

HOSTS, SPINES, PATHS, BASE = 4, 4, 8, 20_000
ELEMENTS = 400_000
COMPLAIN_S = 4.0  # extra time for a cut NIC: receivers report a silent peer only after 6.3 s
STOPPED_S = 1.5  # time from SIGSTOP to SIGCONT in the fault in which a process resumes
COLUMNS = ("fault", "place", "verdict", "said", "right", "windows")
Processes = Sequence["subprocess.Popen[str]"]


@dataclass(frozen=True)
class Case:
    """A fault: what it does, the class that it must get, and its rank; -1: none or a link."""

    name: str
    verdict: str
    rank: int
    begin: Callable[[Lab, Processes], object]
    place: str = ""
    more_s: float = 0.0  # how much longer than other faults this one lasts before its diagnosis

    @property
    def where(self) -> str:
        return self.place or (f"rank {self.rank}" if self.rank >= 0 else "")


def _nothing(lab: Lab, ranks: Processes) -> None:
    return


def _signal(rank: int, number: int) -> Callable[[Lab, Processes], None]:
    return lambda _, ranks: os.kill(ranks[rank].pid, number)


def _stop_for(rank: int, seconds: float) -> Callable[[Lab, Processes], None]:
    def begin(_: Lab, ranks: Processes) -> None:
        os.kill(ranks[rank].pid, signal.SIGSTOP)
        time.sleep(seconds)
        os.kill(ranks[rank].pid, signal.SIGCONT)

    return begin


def _cut(link: str) -> Callable[[Lab, Processes], None]:
    return lambda lab, _: lab.cut(link)


def _changed(link: str, **keys: float) -> Callable[[Lab, Processes], object]:
    return lambda lab, _: lab.set(link, **keys)


def cases() -> list[Case]:
    made = [Case("healthy", "healthy", -1, _nothing) for _ in range(2)]
    for rank in range(HOSTS):
        nic = f"host{rank}-leaf{rank // 2}"
        slow, lossy = _changed(nic, rate_bytes_per_s=12_500_000), _changed(nic, loss=0.03)
        made += [
            Case("stopped", "non_communication_hang", rank, _signal(rank, signal.SIGSTOP)),
            Case("went on", "non_communication_hang", rank, _stop_for(rank, STOPPED_S)),
            Case("killed", "crash", rank, _signal(rank, signal.SIGKILL)),
            Case("straggler", "non_communication_slow", rank, _signal(rank, signal.SIGUSR1)),
            Case("absent", "non_communication_hang", rank, _signal(rank, signal.SIGUSR2)),
            Case("NIC cut", "communication_hang", rank, _cut(nic), more_s=COMPLAIN_S),
            Case("NIC slow", "communication_slow", rank, slow),
            Case("NIC lossy", "network_loss", rank, lossy),
        ]
    for leaf, spine in ((0, 0), (0, 3), (1, 1), (1, 2)):
        link = f"leaf{leaf}-spine{spine}"
        made += [
            Case("link cut", "network_loss", -1, _cut(link), link),
            Case("link lossy", "network_loss", -1, _changed(link, loss=0.05), link),
        ]
    return made


def start(lab: Lab, folder: Path, stack: ExitStack) -> list[subprocess.Popen[str]]:
    """Starts the ranks, each in its host, and waits until all are connected."""
    addresses = [lab.address(f"host{rank}") for rank in range(HOSTS)]
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("WEFT_", "NCCL_"))}
    ranks = []
    for rank in range(HOSTS):
        command = [sys.executable, "-m", "bench.lib.diagnosis_rank", str(rank), str(ELEMENTS)]
        env = clean | {
            "WEFT_LOCAL": "off",
            "WEFT_TRACE": str(folder),
            "RANK": str(rank),
            "WORLD_SIZE": str(HOSTS),
            "WEFT_ENGINES": "1",
            "WEFT_PATHS": str(PATHS),
            "WEFT_PORT_BASE": str(BASE),
        }
        one = lab.popen(
            f"host{rank}",
            [*command, *addresses],
            env=env,
            cwd=ROOT,
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        stack.callback(one.wait)
        stack.callback(one.kill)
        ranks.append(one)
    for word in ("listening", "running"):
        for one in ranks:
            assert one.stdin is not None
            assert one.stdout is not None
            if one.stdout.readline().strip() != word:
                raise click.ClickException(f"a rank failed before it was {word}")
        for one in ranks:
            assert one.stdin is not None
            one.stdin.write("go\n")
            one.stdin.flush()
    return ranks


def measure(lab: Lab, case: Case, healthy_s: float, faulty_s: float) -> Config:
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        routes = probed(lab, [f"host{rank}" for rank in range(HOSTS)], BASE, PATHS)
        ranks = start(lab, folder, stack)
        time.sleep(healthy_s)
        case.begin(lab, ranks)
        time.sleep(faulty_s + case.more_s)
        now_ns = settled_ns(folder)
        with open_store(folder, until_ns=now_ns) as store:  # while the job runs, as users would
            found = diagnose(store, Settings(routes=routes, now_ns=now_ns))
    certain = [one for one in found.findings if one.certain]
    said = of_finding(certain[0]) if certain else ("healthy", "", -1)
    # Between two leaves, the links of a spine have the same paths and cannot be told apart.
    places = {said[2], *(certain[0].place.candidates if certain else ())}
    right = said[0] == case.verdict and bool(places & {case.rank, case.place or case.rank})
    right = right or said[0] == case.verdict == "healthy"
    return {
        "fault": case.name,
        "place": case.where,
        "verdict": case.verdict,
        "said": " ".join(map(str, said)) if certain else "healthy",
        "right": int(right),
        "or": ", ".join(map(str, places - {said[2]})),
        "windows": found.iterations,
        "evidence": certain[0].evidence if certain else "",
    }


@click.command("diagnose_real")
@click.option("--only", help="Only faults with this name.")
@click.option(
    "--healthy", "healthy_s", default=4.0, show_default=True, help="Seconds before the fault."
)
@click.option(
    "--faulty", "faulty_s", default=5.0, show_default=True, help="Seconds with the fault."
)
@json_option
def command(only: str | None, healthy_s: float, faulty_s: float, json_path: str | None) -> None:
    """Diagnoses real faults of a job in a lab (root)."""
    fast = Link(rate_bytes_per_s=62_500_000)
    model = LabModel(hosts=HOSTS, hosts_per_leaf=2, spines=SPINES, host_links=fast, uplinks=fast)
    rows: list[Config] = []
    with interruptible() as cut:
        for case in cases():
            if only in (None, case.name):
                with Lab(model, name=f"diagnose{os.getpid()}") as lab:
                    rows.append(measure(lab, case, healthy_s, faulty_s))
                    click.echo(f"{case.name} {case.where}: {rows[-1]['said']}", err=True)
    emit(document("diagnose_real", rows), json_path, COLUMNS, [], cut)
