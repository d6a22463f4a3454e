"""Runs each pair of policies beside each other in a dumbbell, to see how they share it."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import BrokenExecutor, ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from multiprocessing import get_context
from typing import Any

from transport.errors import WeftError
from transport.ground.workers import follow_parent, interrupts_held
from transport.policies import coexist
from transport.policies.fairness import harms
from transport.policies.trial import Beside, Network, Outcome, Traffic, run

MEASURES = ("share", "jain", "harm_goodput", "harm_message_p50", "harm_message_p99")


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What all runs of a matrix have in common.

    policies: texts of one family. others: policies of other families, of all flows.
    """

    family: str
    policies: tuple[str, ...]
    others: Mapping[str, str] = field(default_factory=dict)
    network: Network = field(default_factory=Network)
    traffic: Traffic = field(default_factory=Traffic)


@dataclass(frozen=True)
class Case:
    """One run: the policies `one` and `other`, as indices, with half of the flows each.

    alone: only the flows of `one` begin. The flows of both begin in turn, `one` first.
    """

    one: int
    other: int
    seed: int
    alone: bool = False


def cases_of(setting: Setting, seeds: Sequence[int]) -> list[Case]:
    """Every pair and every policy alone, with every seed; the seeds take turns in who begins."""
    count = range(len(setting.policies))
    found = []
    for place, seed in enumerate(seeds):
        found += [Case(one, one, seed, alone=True) for one in count]
        pairs = itertools.combinations_with_replacement(count, 2)
        found += [Case(*(pair[::-1] if place % 2 else pair), seed) for pair in pairs]
    return found


def outcome_of(setting: Setting, case: Case) -> Outcome:
    """Runs a case."""
    one, other = setting.policies[case.one], setting.policies[case.other]
    traffic = setting.traffic
    return run(
        {**setting.others, setting.family: one},
        setting.network,
        traffic,
        seed=case.seed,
        samples=0,
        beside=Beside(policies={setting.family: other}, flows=traffic.flows),
        alone=0 if case.alone else None,
    )


def one_run(setting: Setting, case: Case) -> list[dict[str, Any]]:
    """The rows of a case: of each group its measures, its policy and that of the other flows.

    "problem" is what went wrong in the run; empty: nothing.
    """
    outcome = outcome_of(setting, case)
    report = outcome.report
    rows = [row | {"jain": report.jain} for row in coexist.report(outcome)]
    ends = (case.one, case.other), (case.other, case.one)
    of_run: dict[str, Any] = {"seed": case.seed, "alone": case.alone}
    of_run["problem"] = report.violation or report.policy_failure
    found = [
        row | {"row": mine, "column": its} | of_run
        for row, (mine, its) in zip(rows, ends, strict=True)
    ]
    return found[:1] if case.alone else found


def results(
    setting: Setting, cases: Sequence[Case], jobs: int
) -> Iterator[tuple[int, list[dict[str, Any]]]]:
    """Runs the cases in processes, or in this one if jobs is 1; yields index and rows of each."""
    if jobs == 1:
        for index, case in enumerate(cases):
            yield index, one_run(setting, case)
        return
    pool = ProcessPoolExecutor(
        min(jobs, len(cases)) or 1, get_context("spawn"), initializer=follow_parent
    )
    try:
        with interrupts_held():
            waiting = {
                pool.submit(one_run, setting, case): index for index, case in enumerate(cases)
            }
        for done in as_completed(waiting):
            yield waiting[done], done.result()
    except BrokenExecutor:
        raise WeftError(
            "a process of the runs was killed, perhaps because memory ran out: give fewer --jobs"
        ) from None
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def with_harm(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The rows of pairs, with the harm to their group, from the rows of the same seed alone."""
    alone = {(one["row"], one["seed"]): one for one in rows if one["alone"]}
    names = ("goodput_bytes_per_s", "message_ns_p50", "message_ns_p99")
    found = []
    for row in rows:
        if not row["alone"]:
            base = alone[row["row"], row["seed"]]
            found.append({**row, **harms({n: base[n] for n in names if n in base}, row)})
    return found


def tables(rows: Sequence[Mapping[str, Any]], count: int) -> dict[str, list[list[float | None]]]:
    """Of each of MEASURES the median over the seeds, of the row's policy beside the column's.

    rows: those of with_harm. None: no run has the measure.
    """
    found: dict[str, list[list[float | None]]] = {}
    for name in MEASURES:
        cells: dict[tuple[int, int], list[float]] = {}
        for row in rows:
            if row.get(name) is not None:
                cells.setdefault((row["row"], row["column"]), []).append(row[name])
        found[name] = [
            [_median(cells.get((one, other), ())) for other in range(count)] for one in range(count)
        ]
    return found


def _median(values: Sequence[float]) -> float | None:
    return statistics.median(values) if values else None
