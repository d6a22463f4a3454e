"""Runs the four experiments of C4P in the simulator, with and without a plan, and sums them up."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

import numpy as np

from bench.lib.c4p_fabric import (
    Load,
    Shape,
    Tables,
    Way,
    jobs_of_two,
    one_ring,
    scenario,
)
from bench.lib.common import Config
from transport.plan import planfile
from transport.plan.assign import Assigned, assign
from transport.sim import planned
from transport.sim.result import Result
from transport.sim.run import Simulation
from transport.sim.scenario import Scenario

HOPS = 5_000_000
OWN_PATH = str(Path(__file__).parent / "own_path.py")
LOST = ("leaf0.0.left", "spine0")


@dataclass(frozen=True)
class Published:
    """The results of C4P's authors, in Gb/s per NIC: range without and with C4P, and the gain."""

    without: tuple[float, float] | None
    with_plan: tuple[float, float] | None
    gain: float  # rate with divided by rate without, minus 1


@dataclass(frozen=True)
class Experiment:
    """ring: one job of all nodes, else jobs of two nodes.

    steps: how many steps of the ring are simulated; None: all of them.
    """

    name: str
    shape: Shape
    load: Load
    published: Published
    ring: bool = False
    steps: int | None = None

    def work(self, way: Way) -> list[Tables]:
        load = replace(self.load, queue_pairs=way.queue_pairs)
        return (one_ring if self.ring else jobs_of_two)(self.shape, load)

    def ranks(self) -> int:
        return self.shape.nodes if self.ring else 2


def ways(queue_pairs: int) -> tuple[Way, ...]:
    """The ways to choose paths that are compared; a queue pair is a connection with one path."""
    return (
        Way("ECMP, single paths", OWN_PATH, queue_pairs, queue_pairs),
        Way("plan, single paths", OWN_PATH, queue_pairs, queue_pairs, planned=True),
        Way("16 paths, power_of_two", "power_of_two", 16),
        Way("64 paths, reps", "reps", 64),
        Way("plan, 16 paths, power_of_two", "power_of_two", 16, planned=True),
        Way("plan, 16 paths, round_robin", "round_robin", 16, planned=True),
    )


PUBLISHED = (
    Published((240, 240), (360, 360), 0.5),
    Published((172, 263), (354, 361), 0.70),
    Published(None, None, 0.656),
    Published((185.8, 185.8), (301.5, 301.5), 0.62),
)


def experiments(hosts: int, tiny: bool) -> tuple[Experiment, ...]:
    """The four experiments on a fabric of this many NICs."""
    shape = Shape(nodes=hosts // 8)
    ring, pairs, steps = Load(64_000_000, 16), Load(48_000_000, 16), None
    if hosts > 128:
        ring, pairs, steps = Load(1_000_000 * hosts // 4, 16), Load(16_000_000, 16), 12
    if tiny:
        shape = Shape(nodes=4, rails=2, nodes_per_leaf=2, spines=2)
        ring = pairs = Load(1_000_000, 4)
    half = replace(shape, spines=shape.spines // 2)
    longer = replace(pairs, size_bytes=2 * pairs.size_bytes)
    lost = replace(shape, lost=(LOST,))
    return (
        Experiment("two ports balanced", shape, ring, PUBLISHED[0], True, steps),
        Experiment("eight jobs, 1:1", shape, pairs, PUBLISHED[1]),
        Experiment("eight jobs, 2:1", half, longer, PUBLISHED[2]),
        Experiment("one uplink lost", lost, pairs, PUBLISHED[3]),
    )


def plan_of(made: Scenario, file: Path, avoid: Sequence[str] = ()) -> tuple[Assigned, float]:
    """Makes the plan of a scenario, writes it, and returns it and the seconds that it took."""
    routes = planned.routes_of(made.network, made.work, Simulation(made).plan)
    demand = planned.demand_of(made.network, made.work)
    begin_s = time.perf_counter()
    found = assign(routes, demand, paths=made.keys["hosts"]["paths"], avoid=avoid)
    took_s = time.perf_counter() - begin_s
    planfile.write(planfile.Plan(routes.fingerprint(), {"c4p": found.pairs}), file)
    return found, took_s


def with_plan(made: Scenario, *files: tuple[Path, int]) -> Scenario:
    """The scenario with plans. files: each plan's file, and the time when it takes effect."""
    rows = [{"file": str(file), "at_ns": at_ns} for file, at_ns in files]
    return made.changed({"plans": rows})


def measured(experiment: Experiment, made: Scenario) -> tuple[Result, list[float]]:
    """The result of a run and the busbw of each job, in Gb/s per NIC."""
    simulation = Simulation(made)
    mask = _first_steps(experiment, made)
    while simulation.step(HOPS):
        if mask is not None and simulation.result().done[mask].all():
            break
    result = simulation.result()
    ranks = experiment.ranks()
    sent = experiment.load.size_bytes * 2 * (ranks - 1) / ranks
    if experiment.steps is not None:
        sent = experiment.load.size_bytes / ranks * experiment.steps
    longest: dict[str, int] = defaultdict(int)
    names = [name.split(".")[0] for name in made.work.names]
    counted = slice(None) if mask is None else mask
    received = result.transfers["received_ns"][counted]
    for job, end_ns in zip(made.work.transfers["job"][counted], received, strict=True):
        if end_ns < 0:
            return result, []
        longest[names[job]] = max(longest[names[job]], int(end_ns))
    return result, [8 * sent / end_ns for end_ns in longest.values()]


def _first_steps(experiment: Experiment, made: Scenario) -> np.ndarray | None:
    """Mask of the transfers of the first steps of their ring; None: all transfers count."""
    if experiment.steps is None:
        return None
    every = made.work.transfers["job"]
    first = np.searchsorted(every, every)  # the transfers of a job follow one another
    return np.asarray((np.arange(len(every)) - first) // experiment.ranks() < experiment.steps)


def run(experiment: Experiment, way: Way, seed: int, folder: Path) -> Config:
    made = scenario(experiment.shape, experiment.work(way), way, seed)
    row: Config = {"experiment": experiment.name, "way": way.name, "seed": seed}
    if way.planned:
        plan, took_s = plan_of(made, folder / "plan.json")
        made = with_plan(made, (folder / "plan.json", 0))
        row |= {"assign_s": took_s, "bound_share": float(plan.busiest_bytes / plan.bound_bytes)}
    begin_s = time.process_time()
    result, rates = measured(experiment, made)
    return row | {
        "gbits_per_s": rates,
        "resent": int(result.streams["segments_resent"].sum()),
        "packet_hops": int(result.totals["packet_hops"]),
        "cpu_s": time.process_time() - begin_s,
        "imbalance": imbalance(made, result),
    }


def imbalance(made: Scenario, result: Result) -> float:
    """Bytes of the busiest link from a leaf to a spine, divided by the mean of these links."""
    carried = loads(made, result)
    return float(carried.max() / carried.mean()) if carried.any() else 1.0


def loads(made: Scenario, result: Result) -> np.ndarray:
    """Bytes over each link from a leaf to a spine."""
    names = [made.network.port_name(port) for port in range(len(made.network.ports))]
    up = [name.startswith("leaf") and ">spine" in name for name in names]
    return np.asarray(result.ports["bytes"][np.array(up)], np.int64)


def seeds_of(way: Way, seeds: int) -> int:
    """Planned runs differ little from seed to seed, so a quarter of the seeds is enough."""
    return -(-seeds // 4) if way.planned else seeds


def turns(
    chosen: Sequence[Experiment], compared: Sequence[Way], seeds: int
) -> Iterator[tuple[Experiment, Way, int]]:
    for experiment in chosen:
        for seed in range(1, seeds + 1):
            for way in compared:
                if seed <= seeds_of(way, seeds):
                    yield experiment, way, seed


def summed(
    chosen: Sequence[Experiment], compared: Sequence[Way], runs: Sequence[Config]
) -> list[Config]:
    """A row for each experiment and way: the median over jobs and seeds, the range, the gain."""
    rows = []
    for experiment in chosen:
        base: float | None = None
        for way in compared:
            mine = [
                one
                for one in runs
                if (one["experiment"], one["way"]) == (experiment.name, way.name)
            ]
            rates = [rate for one in mine for rate in one["gbits_per_s"]]
            if not rates:
                continue
            middle = median(rates)
            base = middle if base is None else base
            rows.append(
                {
                    "experiment": experiment.name,
                    "way": way.name,
                    "seeds": len(mine),
                    "median": middle,
                    "least": min(rates),
                    "most": max(rates),
                    "gain": middle / base - 1,
                    "c4p_without": _range(experiment.published.without),
                    "c4p_with": _range(experiment.published.with_plan),
                    "c4p_gain": experiment.published.gain,
                    "max_to_mean": median(one["imbalance"] for one in mine),
                    "unfinished": sum(not one["gbits_per_s"] for one in mine),
                }
            )
    return rows


def _range(values: tuple[float, float] | None) -> str:
    if values is None:
        return ""
    return f"{values[0]:g}" if values[0] == values[1] else f"{values[0]:g}-{values[1]:g}"
