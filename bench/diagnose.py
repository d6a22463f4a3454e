"""Scores diagnosis on simulated jobs: faults of all classes at random places, and healthy runs.

The same traces are judged by C4D's rule, by "twice the median", and by weft without and with its
data of paths. A verdict counts as right if its class and its place are right.
"""

from __future__ import annotations

import json
import random
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from math import sqrt
from pathlib import Path
from typing import Any

import click
import numpy as np

from bench.lib import c4d
from bench.lib.common import Config, document, emit, interruptible, json_option
from bench.lib.diagnosis_faults import draw
from bench.lib.diagnosis_jobs import SHAPES, STEP_BEFORE, STEPS_AFTER, Job, with_phases
from transport.diagnose import Finding, Settings, diagnose
from transport.diagnose.facts import facts_of
from transport.plan import routes
from transport.sim.program import BEGIN
from transport.sim.run import run
from transport.sim.scenario import Scenario, from_tables, parse
from transport.sim.trace import write_trace
from transport.trace import open_store

RULES = ("C4D's rule", "twice the median", "weft without paths", "weft")
PATHS_NS = 500_000
COLUMNS = ("rule", "right", "class", "cases", "share", "low_95", "high_95")
MISSES_SHOWN = 20


@cache
def step_begins_ns(shape: str, ranks: int, guests: int, spines: int) -> tuple[int, ...]:
    """When each step of a healthy job begins."""
    steps = STEP_BEFORE + STEPS_AFTER + 1
    found = run(from_tables(Job(shape, ranks, 1, guests).tables(steps, spines), file="healthy"))
    program, local = found.scenario.work.jobs[0].program, found.scenario.work.local
    assert program is not None
    assert found.local is not None
    begins = local["kind"] == BEGIN
    step = np.array([one.step for one in program.operations])[local["operation"][begins]]
    at_ns = found.local["ready_ns"][begins]
    return tuple(int(np.median(at_ns[step == one])) for one in range(steps))


def begin_ns(job: Job, spines: int) -> int:
    """A moment within the first step that a fault may begin in."""
    chance = random.Random(f"begin {job.seed}").random()
    begins = step_begins_ns(job.shape, job.ranks, job.guests, spines)
    first, second = begins[STEP_BEFORE - 1 : STEP_BEFORE + 1]
    return round(first + chance * (second - first))


def verdicts(folder: Path) -> dict[str, tuple[str, str, str | int]]:
    """Diagnosis rule -> its verdict on a trace: class of fault, kind of place, its name or rank."""
    said: dict[str, tuple[str, str, str | int]] = {}
    with open_store(folder) as store:
        facts = facts_of(store)
        for rule in RULES[:2]:
            one = c4d.judge(facts, twice=rule == RULES[1])
            said[rule] = (one.verdict, one.place, one.rank)
        known = routes.read(folder / routes.FILE)
        for rule, settings in zip(
            RULES[2:], (Settings(use_paths=False), Settings(routes=known)), strict=True
        ):
            findings = [one for one in diagnose(store, settings).findings if one.certain]
            said[rule] = of_finding(findings[0]) if findings else c4d.HEALTHY
    return said


def of_finding(one: Finding) -> tuple[str, str, str | int]:
    is_rank = one.place.kind in ("rank", "nic") and len(one.place.ranks) == 1
    return one.kind, one.place.kind, one.place.ranks[0] if is_rank else one.place.name


def one_fault(seed: int, ranks: int) -> Config:
    """Simulates a job with a fault drawn from the seed; adds the verdict of each diagnosis rule."""
    drawn = draw(seed, ranks, begin_ns)
    tables = drawn.job.tables(STEP_BEFORE + STEPS_AFTER, drawn.spines)
    tables["faults"] = list(drawn.tables)
    if drawn.hangs:
        begins = step_begins_ns(drawn.job.shape, ranks, drawn.job.guests, drawn.spines)
        tables["limit_ns"] = begins[-1]
    row: Config = {
        "seed": seed,
        "fault": drawn.fault,
        "shape": drawn.job.shape,
        "ranks": drawn.job.ranks,
        "verdict": drawn.verdict,
        "places": [list(one) for one in drawn.places],
    }
    return _asked(row, from_tables(tables, file=f"fault{seed}"))


def one_case(number: int, file: Path) -> Config:
    """A case of a file: a scenario with a fault, and the class and places that rules must name."""
    case = json.loads(file.read_text())[number]
    row: Config = {
        "seed": number,
        "fault": case["fault"],
        "shape": "",
        "verdict": case["class"],
        "places": case["places"],
    }
    return _asked(row, parse(case["scenario"], file=f"case{number}"))


def _asked(row: Config, scenario: Scenario) -> Config:
    """Adds to the row the verdict of each rule on the scenario's trace."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "trace"
        write_trace(run(scenario, trace_ns=PATHS_NS), folder)
        said = verdicts(folder)
    for rule, (verdict, kind, place) in said.items():
        row[rule] = {
            "verdict": verdict,
            "place": f"{kind} {place}",
            "class_right": verdict == row["verdict"],
            "right": verdict == row["verdict"] and [kind, place] in row["places"],
        }
    return row


def one_healthy(seed: int, ranks: int, steps: int, shape: str | None = None) -> Config:
    """A healthy job with checkpoints, evaluations, uneven microbatches: any finding is wrong."""
    chance = random.Random(f"healthy {seed}")
    drawn = chance.choice(tuple(SHAPES))
    job = Job(shape or drawn, ranks, chance.randrange(1 << 31))
    tables = with_phases(job.tables(steps))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "trace"
        write_trace(run(from_tables(tables, file=f"healthy{seed}"), trace_ns=PATHS_NS), folder)
        said = verdicts(folder)
    row: Config = {"seed": seed, "shape": job.shape, "ranks": ranks, "steps": steps}
    return row | {rule: {"verdict": one[0], "place": str(one[1:])} for rule, one in said.items()}


def _many(
    work: Callable[..., Config], cases: Sequence[tuple[Any, ...]], jobs: int
) -> Iterator[Config]:
    if jobs == 1:
        yield from (work(*case) for case in cases)
        return
    with ProcessPoolExecutor(jobs) as pool:
        try:
            yield from pool.map(work, *zip(*cases, strict=True))
        except KeyboardInterrupt:
            pool.shutdown(cancel_futures=True)
            raise


def wilson(right: int, cases: int) -> tuple[float, float]:
    """The 95 % confidence interval of a share (Wilson 1927)."""
    if cases == 0:
        return 0.0, 1.0
    z, share = 1.96, right / cases
    middle = (share + z * z / (2 * cases)) / (1 + z * z / cases)
    half = z * sqrt(share * (1 - share) / cases + z * z / (4 * cases * cases))
    half /= 1 + z * z / cases
    return max(middle - half, 0.0), min(middle + half, 1.0)


def scores(rows: Sequence[Config]) -> list[Config]:
    made = []
    for rule in RULES:
        right = sum(row[rule]["right"] for row in rows)
        low, high = wilson(right, len(rows))
        made.append(
            {
                "rule": rule,
                "right": right,
                "class": sum(row[rule]["class_right"] for row in rows),
                "cases": len(rows),
                "share": right / max(len(rows), 1),
                "low_95": low,
                "high_95": high,
                "confusion": confusion(rows, rule),
            }
        )
    return made


def confusion(rows: Sequence[Config], rule: str) -> dict[str, dict[str, int]]:
    """The confusion matrix of a rule: true class of fault -> class that it names -> cases."""
    made: dict[str, dict[str, int]] = {}
    for row in rows:
        counts = made.setdefault(row["verdict"], {})
        said = row[rule]["verdict"]
        counts[said] = counts.get(said, 0) + 1
    return made


@click.command("diagnose")
@click.option("--faults", default=28, show_default=True, type=click.IntRange(0), help="Faults.")
@click.option("--first", default=0, show_default=True, help="Seed of the first fault.")
@click.option(
    "--cases",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="Take the first --faults cases of this file, as bench/reference/diagnosis_cases.json.",
)
@click.option("--ranks", default=128, show_default=True, type=click.IntRange(128, 4096))
@click.option("--healthy", default=0, show_default=True, help="Healthy jobs.")
@click.option(
    "--shape", type=click.Choice(tuple(SHAPES)), help="Shape of healthy jobs; by default random."
)
@click.option("--steps", default=50, show_default=True, help="Steps of a healthy job.")
@click.option(
    "-j", "--jobs", default=1, show_default=True, type=click.IntRange(1), help="Cases run at once."
)
@json_option
def command(
    faults: int,
    first: int,
    cases: Path | None,
    ranks: int,
    healthy: int,
    shape: str | None,
    steps: int,
    jobs: int,
    json_path: str | None,
) -> None:
    """Scores diagnosis on simulated faults and healthy jobs."""
    rows: list[Config] = []
    calm: list[Config] = []
    if cases is not None and first + faults > (most := len(json.loads(cases.read_text()))):
        raise click.UsageError(f"{cases} has {most} cases: --first + --faults must be at most that")
    with interruptible() as cut:
        work, more = (one_fault, ranks) if cases is None else (one_case, cases)
        rows.extend(_many(work, [(first + at, more) for at in range(faults)], jobs))
        healthies = [(first + at, ranks, steps, shape) for at in range(healthy)]
        calm.extend(_many(one_healthy, healthies, jobs))
    found = document("diagnose", scores(rows), cases=rows, healthy=calm)
    emit(found, json_path, COLUMNS, list(notes(rows, calm)), cut)


def notes(rows: Sequence[Config], calm: Sequence[Config]) -> Iterator[str]:
    missed = [row for row in rows if not row["weft"]["right"]]
    for row in missed[:MISSES_SHOWN]:
        said = row["weft"]
        yield (
            f"missed: seed {row['seed']}, {row['fault']} in {row['shape']} at {row['places']}: "
            f"{said['verdict']} {said['place']}"
        )
    iterations = sum(row["steps"] for row in calm)
    for rule in RULES if calm else ():
        alarms = sum(row[rule]["verdict"] != "healthy" for row in calm)
        yield f"{rule}: {alarms} of {len(calm)} healthy jobs ({iterations} iterations) had an alarm"
