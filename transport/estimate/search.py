"""Finds the plans of a training step that are fastest on a number of GPUs, and fit their memory.

Every plan of the space is checked for divisibility and memory, which is cheap. Those that fit are
estimated in the order of a bound that no schedule is faster than; the search ends when the bound of
the next one is above the time of the last one that is kept. It then finds what an estimate of all
of them would, unless it ends earlier, after `limit` estimates or SEARCH_PASSES_MAX passes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from transport.estimate.activations import repeated_passes
from transport.estimate.computation import Computation, of_gpu
from transport.estimate.gpus import Gpu
from transport.estimate.memory import Memory, memory_of
from transport.estimate.models import Model
from transport.estimate.networks import Network
from transport.estimate.pipelines import BACKWARD, FORWARD, INPUTS, WEIGHTS, chunks_of
from transport.estimate.plan import RECOMPUTES, REMATS, Plan, PlanError
from transport.estimate.rounds import length_ns, rounds_of
from transport.estimate.space import Space, plans
from transport.estimate.step import Step
from transport.estimate.training import launch_ns

PLANS_MAX = 200_000  # largest number of plans that are looked at
LIMIT = 150  # estimates of one search, if nothing else is given
SEARCH_PASSES_MAX = 1_000_000  # passes that are scheduled in a search, tens of seconds
SPARE = 5  # plans beyond those that are kept whose step is scheduled as a whole
TOO_LARGE = "too much memory"  # why ways to divide the GPUs are refused whose plans do not fit
OnProgress = Callable[[str, float], None]


@dataclass(frozen=True)
class Fitting:
    """A plan with its memory, and how long its step takes: at least, or as estimated."""

    plan: Plan
    memory: Memory
    step_ns: float


@dataclass(frozen=True)
class Searched:
    """best: fastest first. looked: plans whose memory was found; fit: those that fit, with the
    least recomputation. complete: no plan of the space that is left out is faster. smallest: the
    plan that needs the least memory; None: no plan is possible. refused: cause -> number of ways
    to divide the GPUs among the kinds of parallelism that no plan which fits has, most first."""

    best: tuple[Fitting, ...]
    looked: int
    fit: int
    estimated: int
    complete: bool
    smallest: Fitting | None
    refused: dict[str, int]


def search(
    model: Model,
    gpu: Gpu,
    network: Network,
    space: Space,
    keep: int = 10,
    limit: int = LIMIT,
    progress: OnProgress = lambda what, share: None,
) -> Searched:
    """The `keep` fastest plans that fit; none if none fits, and refused says why.

    progress: called with what is done now, and the share that is done. PlanError: the space is too
    large, or a step too long.
    """
    progress("memory", 0.0)
    found = fitting(model, gpu, network, space)
    if not found.best:
        return found
    computed = _Computed(model, gpu)

    def step_of(one: Fitting) -> Step:
        return Step(model, one.plan, computed.of(one.plan), network)

    bounded = [replace(one, step_ns=least_ns(step_of(one))) for one in found.best]
    bounded.sort(key=lambda one: one.step_ns)
    best, estimated, complete = _fastest(bounded, step_of, keep, limit, progress)
    if not best:
        raise PlanError("global_batch: every plan that fits has too many microbatches to schedule")
    progress("whole steps", 1.0)
    whole = sorted((_timed(one, step_of(one)) for one in best), key=lambda one: one.step_ns)
    return replace(found, best=tuple(whole[:keep]), estimated=estimated, complete=complete)


def _fastest(
    bounded: list[Fitting],
    step_of: Callable[[Fitting], Step],
    keep: int,
    limit: int,
    progress: OnProgress,
) -> tuple[list[Fitting], int, bool]:
    """Estimates plans in the order of their bounds, by few rounds of their steps.

    Returns the fastest `keep` and some more, how many were estimated, and whether no other one
    is faster.
    """
    best: list[Fitting] = []
    estimated, passes, complete = 0, 0, True
    for one in bounded:
        if len(best) >= keep and one.step_ns >= best[keep - 1].step_ns:
            break
        step = step_of(one)
        passes += sum(each.passes for each in rounds_of(step, 0).steps)
        if estimated >= limit or (best and passes > SEARCH_PASSES_MAX):
            return best, estimated, False
        progress(f"step {estimated + 1}", estimated / min(limit, len(bounded)))
        try:
            best.append(_timed(one, step, 0))
        except PlanError:  # too many passes
            complete = False
            continue
        best = sorted(best, key=lambda one: one.step_ns)[: keep + SPARE]
        estimated += 1
    return best, estimated, complete


def _timed(one: Fitting, step: Step, exact: int | None = None) -> Fitting:
    return replace(one, step_ns=max(length_ns(step, exact), launch_ns(step)))


def fitting(model: Model, gpu: Gpu, network: Network, space: Space) -> Searched:
    """All plans that fit, not yet estimated, and the one that needs the least memory."""
    kept: list[Fitting] = []
    looked, refused = 0, Counter[str]()
    smallest: Fitting | None = None
    fits_of: dict[tuple[int, ...], bool] = {}  # way to divide the GPUs -> a plan fits
    for plan in plans(model, network, space, refused):
        way = plan.data, plan.tensor, plan.pipeline, plan.context, plan.expert
        fits_of.setdefault(way, False)
        for name in space.recomputes:
            one = replace(plan, **RECOMPUTES[name])
            found = Fitting(one, memory_of(model, one), 0.0)
            looked += 1
            if smallest is None or found.memory.total < smallest.memory.total:
                smallest = found
            # One that recomputes more is slower in everything, and is not needed.
            if space.needed_bytes(one, found.memory) <= gpu.memory_bytes:
                kept.append(found)
                fits_of[way] = True
                break
        if looked > PLANS_MAX:
            raise PlanError(
                f"gpus: more than {PLANS_MAX:,} plans: ask for fewer degrees of context and expert "
                "parallelism"
            )
    if too_large := sum(not fits for fits in fits_of.values()):
        refused[TOO_LARGE] = too_large
    causes = dict(refused.most_common())
    return Searched(tuple(kept), looked, len(kept), 0, True, smallest, causes)


def least_ns(step: Step) -> float:
    """A time in ns that the step takes at least: that of the stage that computes most.

    Of a layer it has computation and the communication that the next layer waits for, and of a
    stage what it waits for at first and what others compute at last.
    """
    plan, computed = step.plan, step.computation
    late = plan.schedule == "zero-bubble"
    kinds = (FORWARD, INPUTS, WEIGHTS) if late else (FORWARD, BACKWARD)
    layer_ns = [step.least_layer_ns(kind) for kind in kinds]
    if plan.schedule == "dualpipe":
        return plan.microbatches * step.model.layers / plan.pipeline * sum(layer_ns)
    head_ns = computed.head_forward_ns + computed.head_backward_ns
    around_ns = layer_ns[0] if late else sum(layer_ns)
    longest, before = 0.0, 0
    for stage in range(plan.pipeline):
        chunks = chunks_of(plan, stage)
        ns = sum(step.layers_of(one) for one in chunks) * sum(layer_ns)
        ns += head_ns if step.last_chunk in chunks else 0.0
        longest = max(longest, plan.microbatches * ns + before * around_ns)
        before += step.layers_of(stage)
    return longest


class _Computed:
    """Computation of each kind of microbatch, which many plans share."""

    def __init__(self, model: Model, gpu: Gpu) -> None:
        self._model, self._gpu = model, gpu
        self._known: dict[Any, Computation] = {}

    def of(self, plan: Plan) -> Computation:
        alone = plan.data == 1
        key = plan.tensor, plan.context, plan.expert, plan.micro_batch, plan.zero, alone
        if key not in self._known:
            self._known[key] = of_gpu(self._model, plan, self._gpu)
        return self._known[key]


def mfu(model: Model, found: Fitting, gpu: Gpu) -> float:
    """The part of the GPUs' peak that the model's own operations reach, without recomputation."""
    return _utilization(model, found, gpu, 0.0)


def hfu(model: Model, found: Fitting, gpu: Gpu) -> float:
    """The part of the GPUs' peak that all operations reach, with recomputation."""
    return _utilization(model, found, gpu, repeated_passes(model, found.plan))


def _utilization(model: Model, found: Fitting, gpu: Gpu, recomputes: float) -> float:
    tokens = found.plan.global_batch * model.sequence
    flops = model.step_flops(tokens, recomputes)
    return flops / (found.step_ns / 1e9) / (gpu.flops * found.plan.gpus)


def recompute_of(plan: Plan) -> str:
    """The name of what the plan recomputes, as in RECOMPUTES and REMATS."""
    if plan.kept is not None:
        return next((name for name, kept in REMATS.items() if kept == plan.kept), "maxtext-full")
    if plan.recompute:
        return "full"
    names = {"": "none", "attention": "selective", "operators": "selective-op"}
    return names[plan.selective]
