"""The plans that divide a number of GPUs, and why others are not possible."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import product

from transport.estimate.memory import Memory, above_of
from transport.estimate.models import Model
from transport.estimate.networks import Network
from transport.estimate.plan import RECOMPUTES, SCHEDULES, Plan, PlanError
from transport.estimate.training import check_nodes
from transport.ground.units import counted

MICRO_BATCHES = (1, 2, 4, 8, 16)
INTERLEAVES = (1, 2, 3, 4, 5, 6, 8)


@dataclass(frozen=True)
class Space:
    """What is searched. common: the fields of a plan that all have.

    contexts, experts: degrees of context and expert parallelism. recomputes: names of RECOMPUTES.
    headroom: memory that a plan leaves unused, as a part of its estimate; None: by how much
    published peaks are above estimates. sharded_stages: ZeRO 3 beside pipeline stages is tried.
    tensors, pipelines: degrees of tensor and pipeline parallelism; empty: all.
    """

    gpus: int
    global_batch: int
    contexts: tuple[int, ...] = (1,)
    experts: tuple[int, ...] = (1,)
    zeros: tuple[int, ...] = (0, 1, 2, 3)
    schedules: tuple[str, ...] = SCHEDULES[:2]
    recomputes: tuple[str, ...] = tuple(RECOMPUTES)
    common: Plan = field(default_factory=Plan)
    headroom: float | None = 0.0
    sharded_stages: bool = True
    tensors: tuple[int, ...] = ()
    pipelines: tuple[int, ...] = ()

    def headroom_of(self, plan: Plan) -> float:
        """The part of its estimated memory that a plan must leave beside it."""
        return above_of(plan) if self.headroom is None else self.headroom

    def needed_bytes(self, plan: Plan, memory: Memory) -> float:
        """The memory of a plan with its headroom."""
        return memory.total * (1 + self.headroom_of(plan))


def plans(
    model: Model, network: Network, space: Space, refused: Counter[str] | None = None
) -> Iterator[Plan]:
    """The plans of the space that are possible, without recomputation.

    refused: counts the ways to divide the GPUs that no possible plan has, by cause. PlanError: no
    degree of context parallelism divides the GPUs.
    """
    refused = Counter() if refused is None else refused
    if not (ways := list(_ways(space))):
        named = ", ".join(map(str, space.contexts))
        if space.tensors or space.pipelines:
            raise PlanError(f"gpus: {space.gpus:,}: no tensor x pipeline x context divides them")
        raise PlanError(f"context: {named}: must divide the {space.gpus:,} GPUs")
    for way in ways:
        cause = _impossible(model, way, network)
        count = 0
        for plan in _settings(model, way, space) if not cause else ():
            found = _impossible(model, plan, network)
            cause = cause or found
            if not found:
                count += 1
                yield plan
        if not count:
            refused[cause or "no schedule of those to try"] += 1


def _ways(space: Space) -> Iterator[Plan]:
    """A plan for each combination of degrees whose product is the number of GPUs."""
    each = divisors(space.gpus)
    tensors = [one for one in each if not space.tensors or one in space.tensors]
    stages = [one for one in each if not space.pipelines or one in space.pipelines]
    for tensor, pipeline, context, expert in product(
        tensors, stages, space.contexts, space.experts
    ):
        data, rest = divmod(space.gpus, tensor * pipeline * context)
        if rest or not data:
            continue
        yield replace(
            space.common,
            data=data,
            tensor=tensor,
            pipeline=pipeline,
            context=context,
            expert=expert,
            sequence=tensor > 1,
            global_batch=space.global_batch,
        )


def _settings(model: Model, way: Plan, space: Space) -> Iterator[Plan]:
    """The plans with these degrees, with each microbatch, ZeRO stage and schedule."""
    for micro_batch, zero, (schedule, interleave) in product(
        MICRO_BATCHES, space.zeros, _pipelines(model, way.pipeline, space)
    ):
        if space.global_batch % (way.data * micro_batch):
            continue
        plan = replace(
            way, micro_batch=micro_batch, zero=zero, schedule=schedule, interleave=interleave
        )
        if _differs(plan) and (space.sharded_stages or not plan.keeps_gathered):
            yield plan


def divisors(number: int) -> list[int]:
    return [one for one in range(1, number + 1) if number % one == 0]


def _pipelines(model: Model, stages: int, space: Space) -> Iterator[tuple[str, int]]:
    """The schedules, and chunks of a stage. Chunks are equal, if stages are."""
    for schedule in space.schedules if stages > 1 else SCHEDULES[:1]:
        for interleave in INTERLEAVES if stages > 1 and schedule == "1f1b" else (1,):
            equal = model.layers % (stages * interleave) == 0 or model.layers % stages
            if interleave == 1 or equal:
                yield schedule, interleave


def _differs(plan: Plan) -> bool:
    """Whether the ZeRO stage differs from a lower one: it splits, and gradients too if it is 2."""
    if plan.zero and plan.group("data").ranks == 1:
        return False
    return plan.zero != 2 or plan.pipeline == 1


def _impossible(model: Model, plan: Plan, network: Network) -> str:
    """Why a plan is not possible; empty: it is."""
    node = network.gpus_per_node
    try:
        plan.check(model)
        check_nodes(plan, node)
    except PlanError as error:
        return error.cause
    # The search splits layers within nodes only: other networks are too slow for it.
    return f"tensor above the {counted(node, 'GPU')} of a node" if plan.tensor > node else ""
