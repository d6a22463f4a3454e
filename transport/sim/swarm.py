"""Judges a run of a drawn scenario: which invariant broke, in which words.

A finding is told by its kind alone when a smaller scenario is looked for: P-2, P-4, policy, crash.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from transport.errors import WeftError
from transport.sim.draw import draw
from transport.sim.errors import ScenarioError
from transport.sim.result import Result
from transport.sim.run import Simulation
from transport.sim.scenario import Scenario, from_tables

TWICE_EVERY = 8  # of so many seeds one runs three times: on one thread, on two, and again on one
HOPS_MAX = 20_000_000  # a hundred times what a run takes: it turns in circles
SHRINK_HOPS_MAX = 3_000_000
STEP_HOPS = 500_000
KEPT_MAX = 300

# Runs that broke something: to take them apart may break more, and that would be told instead.
_kept: list[Simulation] = []


@dataclass(frozen=True)
class Finding:
    """What a run broke."""

    kind: str  # P-1 to P-8, wire, window, policy, invalid, crash, hang
    text: str
    threads: int = 1  # that show it
    ended_ns: int = 0  # not 0: the run had no end, and was left there

    def line(self) -> str:
        return self.text if self.text.startswith(self.kind) else f"{self.kind}: {self.text}"


@dataclass(frozen=True)
class Looked:
    """One seed, looked at."""

    finding: Finding | None
    hops: int = 0
    runs: int = 0


def kind_of(violation: str) -> str:
    """P-4 of "P-4: a copy took the path that lost it"."""
    match = re.match(r"([A-Za-z0-9-]+):", violation)
    return match[1] if match else "violation"


def judged(result: Result, threads: int) -> Finding | None:
    """What a run broke; None when all is well."""
    if result.violation:
        return Finding(kind_of(result.violation), result.violation, threads)
    if result.totals["violations"]:
        return Finding("violation", f"{result.totals['violations']} violations", threads)
    if result.totals["policies_failed"]:
        return Finding("policy", result.policy_failure or "a policy failed", threads)
    if not result.finished:
        done, all_of_them = int(result.done.sum()), len(result.transfers)
        ended = int(result.totals["ended_ns"])
        said = f"P-2: {all_of_them - done} of {all_of_them} transfers were not done at {ended:,} ns"
        return Finding("P-2", said, threads)
    return None


def _run(scenario: Scenario, threads: int, hops_max: int) -> tuple[Result, Finding | None]:
    simulation = Simulation(scenario, threads=threads, check=True)
    endless = False
    while not endless and simulation.step(STEP_HOPS):
        endless = simulation.totals["packet_hops"] > hops_max
    result = simulation.result(partial=endless)
    finding = judged(result, threads)
    if endless and finding is not None and finding.kind == "P-2":
        ended = int(result.totals["ended_ns"])
        said = f"P-2: no end after {hops_max:,} packet-hops, at {ended:,} ns"
        finding = Finding("P-2", said, threads, ended)
    if finding is not None and len(_kept) < KEPT_MAX:
        _kept.append(simulation)
    return result, finding


def look(
    tables: Mapping[str, Any], *, twice: bool, file: str = "swarm", hops_max: int = HOPS_MAX
) -> Looked:
    """Runs a scenario, and what came of it; `twice`: P-8 is looked at as well."""
    try:
        first, finding = _run(from_tables(dict(tables), file=file), 1, hops_max)
    except (ScenarioError, WeftError) as error:
        return Looked(Finding("invalid", str(error)), 0, 0)
    hops = int(first.totals["packet_hops"])
    if finding is not None or not twice:
        return Looked(finding, hops, 1)
    print_one = first.totals["fingerprint"]
    for threads in (2, 1):
        again, finding = _run(from_tables(dict(tables), file=file), threads, hops_max)
        hops += int(again.totals["packet_hops"])
        if finding is not None:
            return Looked(finding, hops, 2)
        if again.totals["fingerprint"] != print_one:
            how = "on 2 threads" if threads == 2 else "again"
            told = f"{again.totals['fingerprint']:016x} {how}, {print_one:016x} at first"
            return Looked(Finding("P-8", f"P-8: the fingerprint is {told}", threads), hops, 2)
    return Looked(None, hops, 3)


def look_at_seed(seed: int) -> Looked:
    """Draws a seed's scenario and runs it."""
    try:
        tables = draw(seed)
    except ScenarioError as error:
        return Looked(Finding("invalid", str(error)))
    return look(tables, twice=seed % TWICE_EVERY == 0, file=f"seed {seed}")


def replay_command(file: str, seed: int, finding: Finding) -> str:
    """What shows a finding again, of its scenario's file."""
    threads = f" --threads {finding.threads}" if finding.threads > 1 else ""
    return f"weft sim {file} --check --seed {seed}{threads}"


def header(build: str, seed: int, finding: Finding, command: str) -> str:
    """The lines over a scenario that shows a finding."""
    lines = [f"Found by weft swarm with {build}, seed {seed}.", *finding.line().splitlines(),
             f"Replay: {command}"]  # fmt: skip
    return "".join(f"# {line}\n" for line in lines)
