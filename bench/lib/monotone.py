"""Checks that estimates move the right way: a better network or GPU is never slower, and so on.

Each relation draws a case, changes one thing of it, and returns both values in the order in which
they must be. The first may be larger by rounding, and by ANOMALY_MAX if tasks of a step slow each
other.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from bench.lib.monotone_cases import (
    Operation,
    TorusOperation,
    Training,
    operation,
    torus_operation,
    training,
    until,
)
from transport.estimate.collectives import estimate
from transport.estimate.failures import Failures
from transport.estimate.memory import memory_of
from transport.estimate.networks import NONE, Link, Network, Slowdown, links
from transport.estimate.plan import RECOMPUTES, Plan
from transport.estimate.rounds import length_ns
from transport.estimate.schedule import Graph
from transport.estimate.search import search
from transport.estimate.space import Space
from transport.estimate.step import Step
from transport.estimate.torus import AXES, Axis, Torus, estimate as torus_estimate
from transport.estimate.training import launch_ns

ESTIMATES_MAX = 100_000  # of a search
ROUNDING = 1e-9  # relative difference that counts as equal
# Tasks of a step slow each other if they share a NIC, or if the network has a slowdown. One that
# becomes faster can then begin beside one that the step waits for, and make the step longer
# (Graham, "Bounds on Multiprocessing Timing Anomalies", SIAM J. Appl. Math. 17(2), 1969).
ANOMALY_MAX = 0.05
# Communication that runs in parts beside computation (overlap, overlap_context) meets other
# operations at the NIC that it would not meet after it, and the step may wait for these.
HIDDEN_MAX = 0.15
OVERLAPS = ("step: overlap of tensor parallelism", "step: overlap of context parallelism")


@dataclass(frozen=True)
class Checked:
    """What a relation found. less, more: values of which the first must not be larger.

    case: what was drawn, with the change. bound: relative difference by which the first may be
    larger all the same. is_same: neither value is larger. is_anomaly: larger, within the bound.
    """

    relation: str
    less: float
    more: float
    case: str
    bound: float = ROUNDING

    @property
    def holds(self) -> bool:
        return self.less <= self.more * (1 + self.bound)

    @property
    def is_anomaly(self) -> bool:
        return self.holds and self.less > self.more * (1 + ROUNDING)

    @property
    def is_same(self) -> bool:
        return self.less == self.more or abs(self.less - self.more) <= ROUNDING * self.more


# A relation returns the two values, and the cases that they are of.
Pair = tuple[float, float, Any]
Relation = Callable[[random.Random], Pair]


def factor(chance: random.Random) -> float:
    return 1 + chance.choice((0.001, 0.1, 1.0, 9.0))


# Networks: each change makes one better, or worse.


def faster(link: Link, times: float) -> Link:
    return replace(link, bytes_per_s=link.bytes_per_s * times)


def later(link: Link, step_ns: float, base_ns: float) -> Link:
    """A link with more latency of steps and calls."""
    return replace(
        link,
        protocols=tuple(
            replace(one, step_ns=one.step_ns + step_ns, base_ns=one.base_ns + base_ns)
            for one in link.protocols
        ),
    )


def faster_between(net: Network, chance: random.Random) -> Network:
    return replace(net, between=faster(net.between, factor(chance)))


def faster_inside(net: Network, chance: random.Random) -> Network:
    inside = None if net.inside is None else faster(net.inside, factor(chance))
    return replace(net, inside=inside)


def faster_pcie(net: Network, chance: random.Random) -> Network:
    rate = net.sharing.pcie_bytes_per_s * factor(chance)
    return replace(net, sharing=replace(net.sharing, pcie_bytes_per_s=rate))


def fuller_tree(net: Network, chance: random.Random) -> Network:
    """A fat tree with more uplinks."""
    least = max(net.sharing.oversubscription / factor(chance), 1.0)
    return replace(net, sharing=replace(net.sharing, oversubscription=least))


def sooner(net: Network, chance: random.Random) -> Network:
    """The same network, with less latency between nodes."""
    part = 1 / factor(chance)
    protocols = tuple(
        replace(one, step_ns=one.step_ns * part, base_ns=one.base_ns * part)
        for one in net.between.protocols
    )
    return replace(net, between=replace(net.between, protocols=protocols))


def sooner_inside(net: Network, chance: random.Random) -> Network:
    if net.inside is None:
        return net
    part = 1 / factor(chance)
    protocols = tuple(replace(one, step_ns=one.step_ns * part) for one in net.inside.protocols)
    return replace(net, inside=replace(net.inside, protocols=protocols))


def calmer(net: Network, chance: random.Random) -> Network:
    """Computation and communication slow each other less."""
    had = net.slowdown
    part = chance.choice((0.0, 0.5))
    return replace(
        net, slowdown=Slowdown(1 + (had.computation - 1) * part, 1 + (had.communication - 1) * part)
    )


BETTER = {
    "more bandwidth between nodes": faster_between,
    "more bandwidth inside nodes": faster_inside,
    "more bandwidth of PCIe": faster_pcie,
    "less oversubscription": fuller_tree,
    "less latency between nodes": sooner,
    "less latency inside nodes": sooner_inside,
}


# Operations.


def time_ns(one: Operation) -> float:
    net, size = one.network, one.size_bytes
    return estimate(net, one.operation, size, one.ranks, algorithm=one.algorithm).time_ns


def better_network(change: Callable[[Network, random.Random], Network]) -> Relation:
    def checked(chance: random.Random) -> Pair:
        one = operation(chance)
        better = replace(one, network=change(one.network, chance))
        return time_ns(better), time_ns(one), (one, better.network)

    return checked


def more_bytes(chance: random.Random) -> Pair:
    one = operation(chance)
    more = replace(one, size_bytes=one.size_bytes * factor(chance))
    return time_ns(one), time_ns(more), (one, more.size_bytes)


def more_nodes(chance: random.Random) -> Pair:
    """Twice the full nodes, of at least two: an operation of one node needs no network."""
    one = until(lambda: _of_full_nodes(operation(chance)))
    more = replace(one, ranks=2 * one.ranks)
    return time_ns(one), time_ns(more), (one, more.ranks)


def _of_full_nodes(one: Operation) -> Operation | None:
    each = one.network.gpus_per_node
    return one if one.ranks >= 2 * each and one.ranks % each == 0 else None


def best_algorithm(chance: random.Random) -> Pair:
    """The algorithm that is chosen is no slower than a given one."""
    one = until(lambda: _of_an_algorithm(operation(chance)))
    return time_ns(replace(one, algorithm=None)), time_ns(one), one


def _of_an_algorithm(one: Operation) -> Operation | None:
    is_pat = one.algorithm == "pat"  # which NCCL takes only with one GPU a node
    return None if one.algorithm is None or is_pat else one


# Tori.


def _torus(one: TorusOperation) -> Torus:
    shape = zip(AXES, one.lengths, one.is_open, strict=False)
    return Torus(tuple(Axis(name, length, not is_open) for name, length, is_open in shape))


def torus_ns(one: TorusOperation, link: Link | None = None) -> float:
    link = links()[one.link] if link is None else link
    return torus_estimate(_torus(one), link, one.operation, one.size_bytes).time_ns


def torus_faster(chance: random.Random) -> Pair:
    one = torus_operation(chance)
    better = faster(links()[one.link], factor(chance))
    return torus_ns(one, better), torus_ns(one), (one, better.bytes_per_s)


def torus_later(chance: random.Random) -> Pair:
    one = torus_operation(chance)
    worse = later(links()[one.link], chance.uniform(0, 1e4), chance.uniform(0, 1e4))
    return torus_ns(one), torus_ns(one, worse), (one, worse.protocols)


def torus_more_bytes(chance: random.Random) -> Pair:
    one = torus_operation(chance)
    more = replace(one, size_bytes=one.size_bytes * factor(chance))
    return torus_ns(one), torus_ns(more), (one, more.size_bytes)


def torus_closed(chance: random.Random) -> Pair:
    """With wrap-around links on all axes it is no slower."""
    one = torus_operation(chance)
    closed = replace(one, is_open=tuple(False for _ in one.is_open))
    return torus_ns(closed), torus_ns(one), one


# Steps.


def step_ns(one: Training) -> float:
    step = one.step
    return max(length_ns(step), launch_ns(step))


def _pair(less: Training, more: Training) -> Pair:
    return step_ns(less), step_ns(more), (less, more)


def step_better_network(change: Callable[[Network, random.Random], Network]) -> Relation:
    def checked(chance: random.Random) -> Pair:
        one = training(chance)
        return _pair(replace(one, network=change(one.network, chance)), one)

    return checked


def faster_gpu(name: str) -> Relation:
    """name: the field of a GPU that grows."""

    def checked(chance: random.Random) -> Pair:
        one = training(chance)
        grown = getattr(one.gpu, name) * factor(chance)
        return _pair(replace(one, gpu=replace(one.gpu, **{name: grown})), one)

    return checked


def more_efficiency(chance: random.Random) -> Pair:
    one = training(chance)
    less = replace(one, gpu=replace(one.gpu, efficiency=chance.uniform(0.1, 0.5)))
    more = replace(one, gpu=replace(one.gpu, efficiency=chance.uniform(0.5, 1)))
    return _pair(more, less)


def longer(field: str) -> Relation:
    """field: of the model, which is doubled."""

    def checked(chance: random.Random) -> Pair:
        def drawn() -> tuple[Training, Training] | None:
            one = training(chance)
            doubled = {field: 2 * getattr(one.model, field)}
            more = replace(one, model=replace(one.model, **doubled))
            return (one, more) if more.is_possible() else None

        return _pair(*until(drawn))

    return checked


def of_plans(
    less: dict[str, Any],
    more: dict[str, Any],
    value: Callable[[Training], float] = step_ns,
    fits: Callable[[Plan], bool] = lambda plan: True,
) -> Relation:
    """less, more: fields of two plans that are else equal. fits: the plans that are drawn."""

    def checked(chance: random.Random) -> Pair:
        def drawn() -> tuple[Training, Training] | None:
            one = training(chance, **less)
            other = replace(one, plan=replace(one.plan, **more))
            return (one, other) if fits(one.plan) and other.is_possible() else None

        one, other = until(drawn)
        return value(one), value(other), (one, other.plan)

    return checked


def scaled(
    field: str,
    value: Callable[[Training], float],
    grows: bool,
    fits: Callable[[Plan], bool] = lambda plan: True,
    **more: str,
) -> Relation:
    """field: of the plan, which is doubled. grows: whether the value may grow, or must not.

    more: further fields -> the field that they stay a multiple of.
    """

    def checked(chance: random.Random) -> Pair:
        def drawn() -> tuple[Training, Training] | None:
            one = training(chance)
            doubled = {name: 2 * getattr(one.plan, name) for name in (field, *more)}
            other = replace(one, plan=replace(one.plan, **doubled))
            return (one, other) if fits(one.plan) and other.is_possible() else None

        one, other = until(drawn)
        pair = (value(one), value(other)) if grows else (value(other), value(one))
        return *pair, (one, other.plan)

    return checked


def memory_bytes(one: Training) -> float:
    return memory_of(one.model, one.plan).total


def memory_of_model(field: str) -> Relation:
    """field: of the model, which is doubled: it never needs less memory."""

    def checked(chance: random.Random) -> Pair:
        one = training(chance)
        doubled = {field: 2 * getattr(one.model, field)}
        more = replace(one, model=replace(one.model, **doubled))
        return memory_bytes(one), memory_bytes(more), (one, doubled)

    return checked


# Searches, and runs.


def _best_ns(one: Training, contexts: tuple[int, ...] = (1,)) -> float:
    """The fastest plan's step; infinite if none fits."""
    batch = 4 * one.plan.gpus
    common = Plan(framework=one.plan.framework, gradient_bytes=one.plan.gradient_bytes)
    space = Space(one.plan.gpus, batch, contexts=contexts, common=common)
    found = search(one.model, one.gpu, one.network, space, keep=1, limit=ESTIMATES_MAX)
    assert found.complete, "a search of few GPUs ended early"
    return found.best[0].step_ns if found.best else math.inf


def _small(chance: random.Random) -> Training:
    """A case whose search is complete and takes less than a second."""

    def drawn() -> Training | None:
        one = training(chance, zero=0, shard=0)
        is_small = one.plan.gpus in (8, 16) and one.network.gpus_per_node in (8, 16)
        return one if is_small and one.model.experts == 1 else None

    return until(drawn)


def search_better(change: Callable[[Training, random.Random], Training]) -> Relation:
    def checked(chance: random.Random) -> Pair:
        one = _small(chance)
        better = change(one, chance)
        return _best_ns(better), _best_ns(one), (one, better)

    return checked


def search_wider(chance: random.Random) -> Pair:
    one = _small(chance)
    return _best_ns(one, (1, 2)), _best_ns(one), one


def fewer_failures(chance: random.Random) -> Pair:
    """Goodput is no lower if failures are rarer."""
    one = Failures(
        10 ** chance.uniform(2, 7), 10 ** chance.uniform(0, 4), 10 ** chance.uniform(0, 4)
    )
    better = replace(one, mtbf_s=one.mtbf_s * factor(chance))
    return one.goodput(one.daly_s), better.goodput(better.daly_s), (one, better)


def _faster_gpu(one: Training, chance: random.Random) -> Training:
    return replace(one, gpu=replace(one.gpu, flops=one.gpu.flops * factor(chance)))


def _larger_gpu(one: Training, chance: random.Random) -> Training:
    return replace(one, gpu=replace(one.gpu, memory_bytes=one.gpu.memory_bytes * factor(chance)))


def _faster_network(one: Training, chance: random.Random) -> Training:
    return replace(one, network=faster_between(one.network, chance))


def _is_plain(plan: Plan) -> bool:
    return plan.interleave == 1 and not plan.overlap and plan.schedule == "1f1b"


def _recomputes() -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    """Pairs of neighbours in RECOMPUTES: what the first does not run again, the second does."""
    levels = list(RECOMPUTES.items())
    none = {"recompute": False, "selective": "", "kept": None, "offload": False}
    for (first, less), (second, more) in pairwise(levels):
        yield f"{second} after {first}", none | less, none | more


def _has_copies(plan: Plan) -> bool:
    """Whether more copies of experts need no communicator that fewer do not need."""
    return not plan.places_experts or plan.group("copies").ranks > 1


def splits(plan: Plan) -> bool:
    """Whether more data parallel GPUs need no communicators that fewer do not need."""
    has_replicas = not plan.shard or plan.group("replicas").ranks > 1
    return plan.data > 1 and _has_copies(plan) and has_replicas


def _splits_context(plan: Plan) -> bool:
    """The same of more context parallel GPUs."""
    return plan.context > 1 and plan.shard == 0 and _has_copies(plan)


def _keeps_matrix(plan: Plan) -> bool:
    """FlashAttention keeps no matrix, and has nothing to gain from `selective`."""
    return not plan.flash


# Relation -> how many of 1,000 checks it gets, at least, and what it checks.
RELATIONS: dict[str, tuple[int, Relation]] = {
    **{f"collective: {name}": (40, better_network(each)) for name, each in BETTER.items()},
    "collective: more bytes": (60, more_bytes),
    "collective: twice the nodes": (40, more_nodes),
    "collective: the best algorithm": (30, best_algorithm),
    "torus: more bandwidth": (20, torus_faster),
    "torus: less latency": (20, torus_later),
    "torus: more bytes": (20, torus_more_bytes),
    "torus: closed axes": (20, torus_closed),
    **{f"step: {name}": (25, step_better_network(each)) for name, each in BETTER.items()},
    "step: less slowdown": (10, step_better_network(calmer)),
    "step: more operations a second": (30, faster_gpu("flops")),
    "step: more bandwidth of memory": (20, faster_gpu("memory_bytes_per_s")),
    "step: more efficiency": (20, more_efficiency),
    "step: longer sequences": (30, longer("sequence")),
    "step: more layers": (20, longer("layers")),
    "step: larger vocabulary": (10, longer("vocabulary")),
    "step: more sequences": (30, scaled("global_batch", step_ns, grows=True)),
    "step: larger gradients": (20, of_plans({"gradient_bytes": 2}, {"gradient_bytes": 4})),
    "step: overlap of tensor parallelism": (20, of_plans({"overlap": True}, {"overlap": False})),
    "step: overlap of context parallelism": (
        20,
        of_plans({"overlap_context": True}, {"overlap_context": False}),
    ),
    "step: flash attention": (20, of_plans({"flash": True}, {"flash": False})),
    **{
        f"step: recompute {name}": (12, of_plans(less, more, fits=_keeps_matrix))
        for name, less, more in _recomputes()
    },
    "memory: more data parallel GPUs": (40, scaled("data", memory_bytes, False, splits)),
    "memory: more tensor parallel GPUs": (
        20,
        scaled("tensor", memory_bytes, False, lambda plan: plan.sequence and plan.tensor > 1),
    ),
    "memory: more context parallel GPUs": (
        20,
        scaled("context", memory_bytes, False, _splits_context),
    ),
    "memory: larger microbatches": (30, scaled("micro_batch", memory_bytes, grows=True)),
    "memory: more layers": (15, memory_of_model("layers")),
    "memory: longer sequences": (15, memory_of_model("sequence")),
    "memory: larger vocabulary": (10, memory_of_model("vocabulary")),
    "memory: larger gradients": (
        15,
        of_plans({"gradient_bytes": 2}, {"gradient_bytes": 4}, memory_bytes),
    ),
    "memory: ZeRO 1 after 0": (
        15,
        of_plans({"zero": 1, "shard": 0}, {"zero": 0}, memory_bytes),
    ),
    "memory: ZeRO 2 after 1": (15, of_plans({"zero": 2}, {"zero": 1}, memory_bytes)),
    **{
        f"memory: recompute {name}": (12, of_plans(more, less, memory_bytes))
        for name, less, more in _recomputes()
    },
    "plan: more operations a second": (1, search_better(_faster_gpu)),
    "plan: more memory": (1, search_better(_larger_gpu)),
    "plan: more bandwidth between nodes": (1, search_better(_faster_network)),
    "plan: more degrees": (1, search_wider),
    "run: fewer failures": (20, fewer_failures),
}


# Searches for the fastest plan, of a network or GPU that becomes better.
SEARCHES = ("plan: more operations a second", "plan: more bandwidth between nodes")


def bound_of(name: str, case: Any) -> float:
    """The bound of a relation's case: more than ROUNDING if tasks of a step can slow each other."""
    if name in SEARCHES:
        return ANOMALY_MAX
    drawn = case if name.startswith("step: ") else ()
    steps = [one.step for one in drawn if isinstance(one, Training)]
    if not any(_slows(step) for step in steps):
        return ROUNDING
    return HIDDEN_MAX if name in OVERLAPS else ANOMALY_MAX


def _slows(step: Step) -> bool:
    return step.network.slowdown != NONE or bool(Graph(step.build()).sharing)


def checked(name: str, seed: str) -> Checked:
    """What a relation finds in the case that it draws from a seed."""
    _, relation = RELATIONS[name]
    less, more, case = relation(random.Random(seed))
    found = Checked(name, less, more, f"{seed}: {case}")
    return found if found.holds else replace(found, bound=bound_of(name, case))


def checks(count: int, seed: int) -> Iterator[Checked]:
    """At least `count` checks, each relation at least once; the same for the same seed."""
    whole = sum(share for share, _ in RELATIONS.values())
    for name, (share, _) in RELATIONS.items():
        for number in range(-(-count * share // whole)):
            yield checked(name, f"{seed} {name} {number}")
