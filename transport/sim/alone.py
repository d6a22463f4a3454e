"""Runs each group of a mixed scenario alone, to measure the harm that the others do to it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from transport.sim.result import Result
from transport.sim.run import Simulation


def splits_a_job(result: Result) -> str | None:
    """The name of a job whose transfers wait for each other and are of several groups.

    None: there is no such job, so each group can run alone.
    """
    assert result.group_of is not None
    work = result.scenario.work
    for number, job in enumerate(work.jobs):
        if len(job.dependencies) == 0:
            continue
        if len(np.unique(result.group_of[work.transfers["job"] == number])) > 1:
            return work.names[number]
    return None


def to_the_end(simulation: Simulation) -> Result:
    while simulation.step():
        pass
    return simulation.result()


def with_alone(
    result: Result, run: Callable[[Simulation], Result] = to_the_end, *, threads: int = 1
) -> Result:
    """The result with the measures of each group alone, so that `coexistence` has the harm.

    run: runs a simulation to its end. The result is returned as it is if it has one group only, if
    groups cannot run alone, or if it is partial; and as partial if `run` is interrupted.
    """
    if not result.is_mixed or result.partial or splits_a_job(result) is not None:
        return result
    found = []
    for number in range(len(result.groups)):
        simulation = Simulation(result.scenario, result.given, threads=threads, alone=number)
        alone = run(simulation)
        if alone.partial:
            return replace(result, partial=True)
        found.append(alone.measures(number))
    return replace(result, alone=tuple(found))
