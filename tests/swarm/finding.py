"""Runs a generated scenario and reports which invariant it broke.

Minimising compares findings by their kind alone, such as P-2, P-4, policy or crash.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tests.swarm.draw import draw
from transport.errors import WeftError
from transport.sim.errors import ScenarioError
from transport.sim.result import Result
from transport.sim.run import Simulation
from transport.sim.scenario import Scenario, from_tables

TWICE_EVERY = 8  # every eighth seed runs three times to check P-8: on 1, 2 and 1 threads
HOPS_MAX = 20_000_000  # packet-hops after which a run counts as endless; most have 1 % of this
SHRINK_HOPS_MAX = 3_000_000
STEP_HOPS = 500_000
KEPT_MAX = 300

# Failed runs. They are never destroyed, because destroying one may crash and hide the finding.
_kept: list[Simulation] = []


@dataclass(frozen=True)
class Finding:
    """The failure of a run."""

    # The broken invariant (P-1 to P-8), wire, window, policy, ideal, invalid, crash or hang.
    kind: str
    text: str
    threads: int = 1  # number of threads of the run that failed
    ended_ns: int = 0  # if not 0: the run did not end and was stopped at this virtual time

    def line(self) -> str:
        return self.text if self.text.startswith(self.kind) else f"{self.kind}: {self.text}"


@dataclass(frozen=True)
class Looked:
    """The result of running one seed."""

    finding: Finding | None
    hops: int = 0
    runs: int = 0


def kind_of(violation: str) -> str:
    """The kind of a violation: its text up to the first colon, such as "P-4"."""
    match = re.match(r"([A-Za-z0-9-]+):", violation)
    return match[1] if match else "violation"


def judged(result: Result, threads: int) -> Finding | None:
    """The finding of a run, that is, its failure; None if nothing failed."""
    if result.violation:
        return Finding(kind_of(result.violation), result.violation, threads)
    if result.totals["violations"]:
        return Finding("violation", f"{result.totals['violations']} violations", threads)
    if result.totals["policies_failed"]:
        return Finding("policy", result.policy_failure or "a policy failed", threads)
    if not result.finished:
        done, all_of_them = int(result.done.sum()), len(result.transfers)
        ended = int(result.totals["ended_ns"])
        said = f"P-2: {all_of_them - done} of {all_of_them} transfers not finished at {ended:,} ns"
        return Finding("P-2", said, threads)
    if result.slowdown.size and result.slowdown.min() < 1:
        at = int(result.slowdown.argmin())
        times = f"{result.fct_ns[at]:,} ns, ideal {result.ideal_ns[result.done][at]:,} ns"
        return Finding("ideal", f"transfer {at} is faster than its ideal time: {times}", threads)
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
        said = f"P-2: still running after {hops_max:,} packet-hops, at {ended:,} ns"
        finding = Finding("P-2", said, threads, ended)
    if finding is not None and len(_kept) < KEPT_MAX:
        _kept.append(simulation)
    return result, finding


def look(
    tables: Mapping[str, Any], *, twice: bool, file: str = "swarm", hops_max: int = HOPS_MAX
) -> Looked:
    """Runs a scenario and returns the result; `twice`: runs it again to check P-8 (determinism)."""
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
            told = f"{again.totals['fingerprint']:016x} {how}, {print_one:016x} the first time"
            return Looked(Finding("P-8", f"P-8: the fingerprint is {told}", threads), hops, 2)
    return Looked(None, hops, 3)


def look_at_seed(seed: int) -> Looked:
    """Generates a seed's scenario and runs it."""
    try:
        tables = draw(seed)
    except ScenarioError as error:
        return Looked(Finding("invalid", str(error)))
    return look(tables, twice=seed % TWICE_EVERY == 0, file=f"seed {seed}")


def replay_command(file: str, seed: int, finding: Finding) -> str:
    """The command that reproduces a finding from its scenario file."""
    threads = f" --threads {finding.threads}" if finding.threads > 1 else ""
    return f"weft sim {file} --check --seed {seed}{threads}"


def header(build: str, seed: int, finding: Finding, command: str) -> str:
    """The comment lines at the top of the scenario file of a finding."""
    lines = [
        f"Found by tests.swarm with {build}, seed {seed}.",
        *finding.line().splitlines(),
        f"Replay: {command}",
    ]
    return "".join(f"# {line}\n" for line in lines)
