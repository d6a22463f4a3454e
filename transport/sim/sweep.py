"""Runs a sweep: its cases, the processes that run them, and a summary of the rows.

Runs are independent: they run in processes on this host or on the workers of a Dask cluster.
"""

from __future__ import annotations

import itertools
import os
import statistics
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import BrokenExecutor, ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from typing import Any

from transport import native
from transport.errors import InvalidArgumentError, WeftError
from transport.ground.extras import install
from transport.ground.workers import follow_parent, interrupts_held
from transport.policies.choice import choose
from transport.sim import by_size
from transport.sim.errors import ScenarioError, WorkerLostError
from transport.sim.result import Result, policy_columns
from transport.sim.run import Simulation
from transport.sim.scenario import Scenario
from transport.sim.settings import applied

CASES_MAX = 100_000
SIZES, TRANSFERS = "slowdown_by_size", "transfer_columns"  # keys of a row that are tables
# Variables that limit the threads of numerical libraries, by default one for each core per process.
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")
TUNABLES, HUGE_PAGES = "GLIBC_TUNABLES", "glibc.malloc.hugetlb=1"
INSTALL_DASK = install("sweep")


@dataclass(frozen=True)
class Case:
    """One run of a sweep: its settings, the policies given as options, and the seed."""

    settings: Mapping[str, Any]
    policies: Mapping[str, str]
    seed: int

    def simulation(
        self, scenario: Scenario, *, threads: int = 1, check: bool = False
    ) -> Simulation:
        """The simulation with all settings applied."""
        changed, policies = applied(scenario, self.policies, {**self.settings, "seed": self.seed})
        return Simulation(changed, policies, threads=threads, check=check)


def cases_of(
    scenario: Scenario,
    seeds: Sequence[int],
    settings: Mapping[str, Sequence[Any]],
    policies: Mapping[str, str],
) -> list[Case]:
    """All combinations of values and seeds; all are checked before any run.

    The keys of `settings` are those of `applied`.
    """
    if "seed" in settings:
        raise InvalidArgumentError("seed: give the seeds of a sweep with --seeds instead")
    names = list(settings)
    made = []
    wanted: dict[tuple[str, str], None] = {}
    for values in itertools.product(*(settings[name] for name in names)):
        given = dict(zip(names, values, strict=True))
        _, chosen = applied(scenario, policies, given)
        wanted |= dict.fromkeys(chosen.items())
        made += [Case(given, policies, seed) for seed in seeds]
        if len(made) > CASES_MAX:
            raise InvalidArgumentError(f"more than {CASES_MAX:,} runs: give fewer seeds or values")
    for family, text in wanted:
        # Compile the policy once before the processes start, and refuse unknown parameters.
        choose(native.FabricPlan(), family, text, {})
    return made


_stop: Any = None


def _begin(stop: Any) -> None:
    """Initialises a worker process; the event `stop` ends its runs."""
    global _stop
    _stop = stop
    follow_parent()


def one_run(
    scenario: Scenario, case: Case, threads: int, check: bool, transfers: bool = False
) -> dict[str, Any] | None:
    """Runs a case and returns its row; None if it was stopped.

    SIZES of the row is Result.slowdown_by_size, and TRANSFERS, if asked for, Result.columns().
    """
    row: dict[str, Any] = {**case.settings, "seed": case.seed}
    simulation = case.simulation(scenario, threads=threads, check=check)
    while simulation.step():
        if _stop is not None and _stop.is_set():
            return None
    result = simulation.result()
    row |= row_of(result)
    row[SIZES] = result.slowdown_by_size
    return row | ({TRANSFERS: result.columns()} if transfers else {})


def row_of(result: Result) -> dict[str, Any]:
    """A run as one row: Result.summary(), its policies, and whether it is good."""
    row = result.summary() | policy_columns(result)
    for number, job in enumerate(result.jobs):
        if "busbw_bytes_per_s" in job:
            row.setdefault("busbw_bytes_per_s", job["busbw_bytes_per_s"])
        if len(result.jobs) > 1:
            row[f"job{number}_completion_ns"] = job.get("completion_ns")
    for number, group in enumerate(result.coexistence.get("groups", ())):
        row[f"group{number}_policies"] = group["group"]
        for name in ("share", "fair_share", "jain", "goodput_bytes_per_s", "fct_ns_p99"):
            row[f"group{number}_{name}"] = group.get(name)
    row["policies_failed"] = result.totals["policies_failed"]
    return row | {"good": result.good, "problem": result.violation or result.policy_failure}


def of_run(row: Mapping[str, Any]) -> list[str]:
    """The keys of a run's row that tell which run it was: its policies and its fingerprint."""
    return [one for one in row if one.endswith(("_policy", "_sha256"))] + ["fingerprint"]


def _attempt(
    scenario: Scenario, case: Case, threads: int, check: bool, transfers: bool
) -> dict[str, Any] | None:
    """Like one_run, but an error becomes a row, so that one bad case does not end the sweep."""
    try:
        return one_run(scenario, case, threads, check, transfers)
    except WeftError as error:
        return {**case.settings, "seed": case.seed, "good": False, "problem": str(error)}


@contextmanager
def worker_environment() -> Iterator[None]:
    """While active, new processes use huge pages, and one thread in numerical libraries.

    The C library uses huge pages only if the environment asks for them at process start. A fabric
    accesses memory at random: runs are some 15 % faster with huge pages (bench/DIARY.md).
    """
    before = {name: os.environ.get(name) for name in (*THREADS, TUNABLES)}
    os.environ.update(dict.fromkeys(THREADS, "1"))
    told = os.environ.get(TUNABLES, "")
    if HUGE_PAGES.partition("=")[0] not in told:
        os.environ[TUNABLES] = f"{told}:{HUGE_PAGES}" if told else HUGE_PAGES
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def local(
    scenario: Scenario,
    cases: Sequence[Case],
    jobs: int,
    *,
    threads: int = 1,
    check: bool = False,
    transfers: bool = False,
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Runs the cases in processes on this host; yields index and row of each as it finishes.

    If the caller closes the generator, it stops the running cases and waits for them.
    """
    context = get_context("spawn")
    stop = context.Event()
    with worker_environment():
        pool = ProcessPoolExecutor(
            min(jobs, len(cases)) or 1, context, initializer=_begin, initargs=(stop,)
        )
        try:
            with interrupts_held():
                waiting = {
                    pool.submit(_attempt, scenario, case, threads, check, transfers): index
                    for index, case in enumerate(cases)
                }
            for done in as_completed(waiting):
                row = done.result()
                if row is not None:
                    yield waiting[done], row
        except BrokenExecutor:
            raise WorkerLostError(
                "a process of the sweep was killed, perhaps because memory ran out: give fewer "
                "--jobs"
            ) from None
        finally:
            stop.set()
            pool.shutdown(wait=True, cancel_futures=True)


def on_dask(
    scenario: Scenario,
    cases: Sequence[Case],
    address: str,
    *,
    threads: int = 1,
    check: bool = False,
    transfers: bool = False,
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Runs the cases on the workers of a Dask cluster, where weft must be installed."""
    try:
        from distributed import Client, as_completed as completed
    except ImportError as error:
        raise ScenarioError(f"--dask needs distributed: {INSTALL_DASK} ({error})") from None
    try:
        client = Client(address, timeout=10)  # type: ignore[no-untyped-call]
    except (OSError, ValueError, TimeoutError) as error:
        raise ScenarioError(f"--dask {address}: the scheduler does not answer: {error}") from None
    with client:
        waiting = {
            client.submit(_attempt, scenario, case, threads, check, transfers, pure=False): index
            for index, case in enumerate(cases)
        }
        try:
            for done in completed(list(waiting)):  # type: ignore[no-untyped-call]
                row = done.result()
                if row is not None:
                    yield waiting[done], row
        finally:
            client.cancel(list(waiting))  # type: ignore[no-untyped-call]


# Of these measures, the worst value is the smallest; of all other measures, the largest.
LARGER_IS_BETTER = {"busbw_bytes_per_s", "done", "jain"}
MEASURES = (
    *("fct_ns_p50", "fct_ns_p99", "fct_ns_max", "slowdown_p50", "slowdown_p99", "slowdown_max"),
    *("completion_ns", "busbw_bytes_per_s", "retransmits_per_packet", "queue_bytes_p99", "done"),
)


def summarised(
    cases: Sequence[Case], rows: Mapping[int, Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """One row for each setting: the median and the worst of each measure over the seeds."""
    found = []
    for key, mine in _by_setting(cases, rows).items():
        row: dict[str, Any] = {**dict(key), "seeds": len(mine)}
        row["good"] = sum(bool(one.get("good")) for one in mine)
        for name in MEASURES:
            values = [one[name] for one in mine if one.get(name) is not None]
            if values:
                worst = min if name in LARGER_IS_BETTER else max
                row[name] = statistics.median(values)
                row[f"{name}_worst"] = worst(values)
        found.append(row)
    return found


def sizes_summarised(
    cases: Sequence[Case], rows: Mapping[int, Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """One row for each setting, job and group of message sizes, from the runs' SIZES.

    A row has the settings, job, bytes_from and bytes_to, runs (with transfers of these sizes),
    transfers (the least number of them in one run), and of each quantile and of the maximum of
    the slowdown the median and the worst over these runs. A quantile that one of them does not
    judge is None.
    """
    found = []
    for key, mine in _by_setting(cases, rows).items():
        groups: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
        for one in (one for row in mine for one in row.get(SIZES, ())):
            groups.setdefault((one["job"], one["bytes_from"], one["bytes_to"]), []).append(one)
        jobs = {job: place for place, job in enumerate(dict.fromkeys(one[0] for one in groups))}
        for job, begin, end in sorted(groups, key=lambda one: (jobs[one[0]], one[1])):
            bins = groups[job, begin, end]
            row: dict[str, Any] = {**dict(key), "job": job, "bytes_from": begin, "bytes_to": end}
            row |= {"runs": len(bins), "transfers": min(one["transfers"] for one in bins)}
            for name in (f"slowdown_{each}" for each in (*by_size.QUANTILES, "max")):
                values = [one[name] for one in bins]
                judged = None not in values
                row[name] = statistics.median(values) if judged else None
                row[f"{name}_worst"] = max(values) if judged else None
            found.append(row)
    return found


def _by_setting(
    cases: Sequence[Case], rows: Mapping[int, Mapping[str, Any]]
) -> dict[tuple[Any, ...], list[Mapping[str, Any]]]:
    """The rows of the runs of each setting, the items of its dictionary."""
    groups: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for index, case in enumerate(cases):
        mine = groups.setdefault(tuple(case.settings.items()), [])
        if index in rows:
            mine.append(rows[index])
    return groups
