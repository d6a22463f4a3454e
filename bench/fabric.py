"""Simulates published experiments and compares results, speed and memory with the papers' figures.

Rows have the median and the worst of several seeds. Each published figure comes from a run of the
paper's authors, and its row names the paper.
"""

from __future__ import annotations

import dataclasses
import os
import resource
import sys
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

import click
import numpy as np

from bench.lib.common import Config, Cut, document, emit, interruptible, json_option, rounds
from transport.sim import Simulation, load
from transport.sim.sweep import worker_environment

NSCC = "nscc:rtt_ns_min=0,hold_ns=0"
NSCC_ONE = f"{NSCC},segments_min=1"
RCCC = "rccc:speculative_ns=0,late_ns=0"
UET = "UET htsim 40ccb05"
UCCL = "UCCL, arXiv 2504.17307"


@dataclasses.dataclass(frozen=True)
class Case:
    """One published figure: the scenario, changes to it, and the measure to compare."""

    name: str
    scenario: str
    peer: float  # the published result that weft is compared with, in the unit of `measure`
    source: str
    wanted: float  # upper limit of weft's result, in the unit of `measure`
    measure: str = "slowest_us"
    policies: Mapping[str, str] = dataclasses.field(default_factory=dict)
    changes: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    match: bool = False  # True: weft has the paper's mechanism, so its result must equal `peer`

    @property
    def what(self) -> str:
        """Identifies the simulation; figures with the same simulation share its runs."""
        return repr((self.scenario, sorted(self.policies.items()), sorted(self.changes.items())))

    def run(self, seed: int) -> Config:
        scenario = load(self.scenario).changed({**self.changes, "seed": seed})
        simulation = Simulation(scenario, self.policies)
        before_s = time.process_time()
        while simulation.step(5_000_000):
            pass
        took_s = time.process_time() - before_s
        found = simulation.result()
        sent = found.streams["segments_sent"].sum() - found.streams["segments_resent"].sum()
        return {
            "what": self.what,
            "seed": seed,
            "slowest_us": float(found.fct_ns.max()) / 1e3 if found.fct_ns.size else None,
            "p50_us": float(np.median(found.fct_ns)) / 1e3 if found.fct_ns.size else None,
            "p99_us": float(np.percentile(found.fct_ns, 99)) / 1e3 if found.fct_ns.size else None,
            "resent_per_packet": float(found.streams["segments_resent"].sum() / max(sent, 1)),
            "finished": found.good,
            "fingerprint": found.fingerprint,
            "packet_hops": int(found.totals["packet_hops"]),
            "cpu_s": took_s,
        }


def spray(policy: str) -> Mapping[str, str]:
    return {"window": NSCC, "path": f"{policy}:burst_bytes=4096"}


def uet(
    name: str,
    scenario: str,
    peer: float,
    wanted: float,
    policies: Mapping[str, str],
    *,
    measure: str = "slowest_us",
    changes: Mapping[str, Any] | None = None,
    match: bool = False,
) -> Case:
    """A Case for a figure that was published for UET htsim, the simulator of Ultra Ethernet."""
    return Case(name, scenario, peer, UET, wanted, measure, policies, changes or {}, match)


def one_path(name: str, peer: float, wanted: float, measure: str) -> Case:
    """A Case for UET htsim's permutation of 1,024 hosts in which each flow has one path."""
    changes = {"hosts.paths": 1}
    return uet(
        f"1,024 hosts, one path{name}",
        "permutation_1024",
        peer,
        wanted,
        spray("mixed"),
        measure=measure,
        changes=changes,
        match=True,
    )


UNCAPPED = {"window": NSCC_ONE, "credit": RCCC}
CAPPED = {"hosts.speculative_bytes": 0}
COPIES = "resent_per_packet"
CASES = (
    one_path(": half", 335, 345, "p50_us"),
    one_path(": 99 %", 712, 733, "p99_us"),
    one_path("", 847, 872, "slowest_us"),
    uet("1,024 hosts, oblivious", "permutation_1024", 218.7, 225.2, spray("oblivious"), match=True),
    uet("1,024 hosts, REPS", "permutation_1024", 206.0, 206.0, spray("reps")),
    uet("1,024 hosts, bitmap", "permutation_1024", 200.5, 200.5, spray("bitmap")),
    uet("1,024 hosts, mixed", "permutation_1024", 195.8, 196.0, spray("mixed")),
    uet("128 hosts, 3 tiers, mixed", "permutation_128", 202.0, 208.0, spray("mixed"), match=True),
    uet("4 links at 25 %, oblivious", "degraded_links", 422, 422, spray("oblivious")),
    uet("4 links at 25 %, REPS", "degraded_links", 346, 346, spray("reps")),
    uet("4 links at 25 %, bitmap", "degraded_links", 231, 231, spray("bitmap")),
    uet("4 links at 25 %, mixed", "degraded_links", 229, 229, spray("mixed")),
    uet("1,023 to 1, RCCC", "incast_1023", 8_900, 8_900, UNCAPPED),
    uet("1,023 to 1, RCCC: copies", "incast_1023", 1.32, 1.35, UNCAPPED, measure=COPIES),
    uet("1,023 to 1, capped", "incast_1023", 8_900, 8_900, UNCAPPED, changes=CAPPED),
    uet(
        "1,023 to 1, capped: copies",
        "incast_1023",
        1.32,
        0.5,
        UNCAPPED,
        measure=COPIES,
        changes=CAPPED,
    ),
)
SLOW = (
    uet("1,023 to 1, NSCC", "incast_1023", 10_560, 10_560, {"window": NSCC_ONE, "credit": "none"}),
    Case("64 MB, 400 Gb/s, 4 KiB", "uccl_table", 1_450, UCCL, 1_420),
    Case(
        "64 MB, 400 Gb/s, 32 KiB decided at once",
        "uccl_table",
        1_710,
        UCCL,
        1_500,
        policies={"path": "mixed:burst_bytes=32768"},
    ),
)
COLUMNS = (
    *("case", "measure", "peer", "wanted", "best", "median", "worst", "worst_to_peer", "holds"),
    *("seeds", "cpu_s", "source"),
)


def rows_of(cases: tuple[Case, ...], runs: list[Config]) -> Iterator[Config]:
    for case in cases:
        all_of_it = [run for run in runs if run["what"] == case.what]
        mine = [run for run in all_of_it if run["finished"]]
        missing = len(all_of_it) - len(mine)
        if not mine:
            continue
        values = [run[case.measure] for run in mine]
        worst = max(values)
        # The published tail time is of one random run, so a value in the range of weft's runs
        # matches.
        close = abs(float(np.median(values)) / case.peer - 1.0) <= 0.03
        close = close or min(values) <= case.peer <= max(values)
        yield {
            "case": case.name,
            "measure": case.measure,
            "peer": case.peer,
            "wanted": "within 3 %, or in the range of the seeds" if case.match else case.wanted,
            "best": min(values),
            "median": float(np.median(values)),
            "worst": worst,
            "worst_to_peer": worst / case.peer,
            "holds": missing == 0 and (close if case.match else worst <= case.wanted),
            "unfinished": missing,
            "seeds": len(mine),
            "cpu_s": float(np.median([run["cpu_s"] for run in mine])),
            "source": case.source,
        }


def published(seeds: int, slow: bool, only: str) -> tuple[Config, Cut]:
    cases = tuple(c for c in (*CASES, *(SLOW if slow else ())) if only in c.name)
    if not cases:
        raise click.UsageError(f"--only {only}: no case's name contains this text")
    runs: list[Config] = []
    firsts: dict[str, Case] = {}
    for case in cases:
        firsts.setdefault(case.what, case)
    known = {case.name: case for case in firsts.values()}
    with interruptible() as cut:
        for seed, name in rounds(seeds, tuple(known)):
            runs.append(known[name].run(seed + 1))
    return document("fabric", list(rows_of(cases, runs)), study="published", runs=runs), cut


SIZES = (128, 256, 512, 1_024, 2_048, 4_096, 8_192, 16_384)
SIZE_COLUMNS = (
    *("hosts", "threads", "mbytes_a_host", "data_packets", "packet_hops", "cpu_s", "wall_s"),
    "hops_per_s",
    *("packets_per_s", "peer_packets_per_s", "ratio", "peak_mb", "cpu_s_per_mhop", "fingerprint"),
)
# Hosts -> data packets per second that UET htsim simulates, in a permutation on two tiers.
PEER_PACKETS_PER_S = {1_024: 66_900.0, 8_192: 32_000.0}


def size_run(hosts: int, size_bytes: int, threads: int, paths: int) -> Config:
    """Simulates a permutation on two tiers, in its own process to measure its peak memory."""
    side = 16 if hosts < 512 else 32 if hosts < 4_096 else 64 if hosts < 16_384 else 128
    changes: dict[str, Any] = {
        "network.hosts": hosts,
        "network.hosts_per_leaf": side,
        "network.spines": side,
        "workload.0.size_bytes": size_bytes,
        "hosts.paths": paths,
    }
    scenario = load("permutation_1024").changed(changes)
    simulation = Simulation(scenario, {}, threads=threads)
    empty_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    simulation.step(1)
    before_s, wall_s = time.process_time(), time.monotonic()
    while simulation.step(5_000_000):
        pass
    cpu_s, wall_s = time.process_time() - before_s, time.monotonic() - wall_s
    found = simulation.result()
    hops, packets = int(found.totals["packet_hops"]), int(found.totals["data_packets"])
    peer = PEER_PACKETS_PER_S.get(hosts)
    return {
        "hosts": hosts,
        "threads": threads,
        "paths": paths,
        "mbytes_a_host": size_bytes / 1e6,
        "data_packets": packets,
        "packet_hops": hops,
        "cpu_s": cpu_s,
        "wall_s": wall_s,
        "hops_per_s": hops / cpu_s,
        "packets_per_s": packets / cpu_s,
        "peer_packets_per_s": peer,
        "ratio": packets / cpu_s / peer if peer else None,
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "before_mb": empty_kb / 1024,
        "estimated_mb": simulation.estimated_bytes / 1e6,
        "cpu_s_per_mhop": cpu_s * 1e6 / hops,
        "slowest_us": float(found.fct_ns.max()) / 1e3,
        "finished": found.good,
        "fingerprint": found.fingerprint,
    }


def sizes(repeats: int, between: range, threads: tuple[int, ...], paths: int) -> tuple[Config, Cut]:
    """Rows of each number of hosts and of threads. between: the numbers of hosts that count."""
    rows: list[Config] = []
    wanted = {
        f"{hosts} {one}": (hosts, one) for hosts in SIZES if hosts in between for one in threads
    }
    with interruptible() as cut:
        for round_, name in rounds(repeats, tuple(wanted)):
            hosts, one = wanted[name]
            size = 2_000_000 if hosts <= 1_024 else 1_000_000 if hosts <= 8_192 else 500_000
            with worker_environment(), ProcessPoolExecutor(1, get_context("spawn")) as pool:
                found = pool.submit(size_run, hosts, size, one, paths).result()
            rows.append({"round": round_, **found})
    return document("fabric", rows, study="sizes"), cut


@click.command("fabric")
@click.option(
    "--study",
    type=click.Choice(("published", "sizes")),
    default="published",
    show_default=True,
    help="Published figures beside ours, or the cost of a run by number of hosts.",
)
@click.option("--seeds", type=click.IntRange(1, 1_000), default=10, show_default=True)
@click.option("--slow", is_flag=True, help="Also the cases that take minutes per seed.")
@click.option("--only", default="", help="Only cases whose name contains this.")
@click.option(
    "--repeats",
    type=click.IntRange(1, 100),
    default=3,
    show_default=True,
    help="With --study sizes: rounds.",
)
@click.option(
    "--largest",
    type=click.IntRange(128),
    default=16_384,
    show_default=True,
    help="With --study sizes: largest number of hosts.",
)
@click.option(
    "--smallest",
    type=click.IntRange(1),
    default=128,
    show_default=True,
    help="With --study sizes: smallest number of hosts.",
)
@click.option(
    "--paths",
    type=click.IntRange(1, 256),
    default=32,
    show_default=True,
    help="With --study sizes: paths of a host pair.",
)
@click.option(
    "--threads",
    type=click.IntRange(1, 64),
    multiple=True,
    default=(1,),
    show_default=True,
    help="With --study sizes: threads; repeat it to compare.",
)
@json_option
def command(
    study: str,
    seeds: int,
    slow: bool,
    only: str,
    repeats: int,
    largest: int,
    smallest: int,
    threads: tuple[int, ...],
    paths: int,
    json_path: str | None,
) -> None:
    """Compares the simulator with published figures, and measures its cost for many hosts."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    if study == "published":
        found, cut = published(seeds, slow, only)
        lost = [row["case"] for row in found["rows"] if not row["holds"]]
        notes = [f"lost: {', '.join(lost)}" if lost else "every figure holds, in the worst seed"]
        emit(found, json_path, COLUMNS, notes, cut)
        return
    found, cut = sizes(repeats, range(smallest, largest + 1), threads, paths)
    prints = {(row["hosts"], row["fingerprint"]) for row in found["rows"]}
    same = len(prints) == len({hosts for hosts, _ in prints})
    notes = [
        "the same fingerprint in every round" if same else "FINGERPRINTS DIFFER between rounds",
        "peak_mb is the whole process, Python and its libraries included",
    ]
    emit(found, json_path, SIZE_COLUMNS, notes, cut)
    sys.exit(0 if same else 1)


if __name__ == "__main__":
    command()
