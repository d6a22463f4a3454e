"""Finds the plans of a training step that are fastest on a number of GPUs, and fit their memory.

Every plan of the space is checked for divisibility and memory, which is cheap. Those that fit are
estimated in the order of a bound that no schedule is faster than; the search ends when the bound of
the next one is above the time of the last one that is kept. It then finds what an estimate of all
of them would, unless it ends earlier, after `limit` estimates or SEARCH_PASSES_MAX passes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

from transport.estimate.computation import Computation, of_gpu
from transport.estimate.gpus import Gpu
from transport.estimate.memory import Memory, memory_of
from transport.estimate.models import Model
from transport.estimate.networks import Network
from transport.estimate.pipelines import BACKWARD, FORWARD, INPUTS, WEIGHTS, chunks_of
from transport.estimate.plan import RECOMPUTES, SCHEDULES, Plan, PlanError
from transport.estimate.rounds import length_ns, rounds_of
from transport.estimate.step import Step
from transport.estimate.training import check_nodes, launch_ns

PLANS_MAX = 200_000  # largest number of plans that are looked at
LIMIT = 150  # estimates of one search, if nothing else is given
SEARCH_PASSES_MAX = 1_000_000  # passes that are scheduled in a search, tens of seconds
SPARE = 5  # plans beyond those that are kept whose step is scheduled as a whole
MICRO_BATCHES = (1, 2, 4, 8, 16)
MORE = (2, 4, 8)  # times as many, of what might make a plan fit
INTERLEAVES = (1, 2, 3, 4, 5, 6, 8)
OnProgress = Callable[[str, float], None]


@dataclass(frozen=True)
class Space:
    """What is searched. common: the fields of a plan that all have.

    contexts, experts: degrees of context and expert parallelism. recomputes: names of RECOMPUTES.
    """

    gpus: int
    global_batch: int
    contexts: tuple[int, ...] = (1,)
    experts: tuple[int, ...] = (1,)
    zeros: tuple[int, ...] = (0, 1, 2, 3)
    schedules: tuple[str, ...] = SCHEDULES[:2]
    recomputes: tuple[str, ...] = tuple(RECOMPUTES)
    common: Plan = field(default_factory=Plan)


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
    plan that needs the least memory; None: no plan is possible."""

    best: tuple[Fitting, ...]
    looked: int
    fit: int
    estimated: int
    complete: bool
    smallest: Fitting | None


def search(
    model: Model,
    gpu: Gpu,
    network: Network,
    space: Space,
    keep: int = 10,
    limit: int = LIMIT,
    progress: OnProgress = lambda what, share: None,
) -> Searched:
    """The `keep` fastest plans that fit; none if none fits.

    progress: called with what is done now, and the share that is done. PlanError: no plan has this
    number of GPUs and batch.
    """
    progress("memory", 0.0)
    found = fitting(model, gpu, network, space)
    if found.smallest is None:
        raise PlanError(
            f"gpus: {space.gpus:,}: no plan divides them, the batch of {space.global_batch:,} "
            f"sequences, the {model.layers} layers and the {model.heads} heads: change one of them"
        )
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
    kept, looked = [], 0
    smallest: Fitting | None = None
    for plan in plans(model, network, space):
        for name in space.recomputes:
            one = replace(plan, **RECOMPUTES[name])
            found = Fitting(one, memory_of(model, one), 0.0)
            looked += 1
            if smallest is None or found.memory.total < smallest.memory.total:
                smallest = found
            # One that recomputes more is slower in everything, and is not needed.
            if found.memory.total <= gpu.memory_bytes:
                kept.append(found)
                break
        if looked > PLANS_MAX:
            raise PlanError(
                f"gpus: more than {PLANS_MAX:,} plans: ask for fewer degrees of context and expert "
                "parallelism"
            )
    return Searched(tuple(kept), looked, len(kept), 0, True, smallest)


def helps(model: Model, gpu: Gpu, network: Network, space: Space) -> list[str]:
    """What would make a plan fit, if none does: more GPUs, or sequences that GPUs share."""
    kinds = (
        [(f"{n * space.gpus:,} GPUs", replace(space, gpus=n * space.gpus)) for n in MORE],
        [(f"--context {n}", replace(space, contexts=(n,))) for n in MORE],
    )
    made = []
    for kind in kinds:
        fits = (text for text, one in kind if fitting(model, gpu, network, one).best)
        made += [text for text in (next(fits, None),) if text is not None]
    return made


def plans(model: Model, network: Network, space: Space) -> Iterator[Plan]:
    """The plans of the space that are possible, without recomputation."""
    for degrees in _degrees(model, network, space):
        data, pipeline = degrees["data"], degrees["pipeline"]
        sequence = degrees["tensor"] > 1
        for micro_batch, zero, (schedule, interleave) in product(
            MICRO_BATCHES, space.zeros, _pipelines(model, pipeline, space)
        ):
            if space.global_batch % (data * micro_batch):
                continue
            plan = replace(
                space.common,
                **degrees,
                micro_batch=micro_batch,
                zero=zero,
                schedule=schedule,
                interleave=interleave,
                sequence=sequence,
                global_batch=space.global_batch,
            )
            if _differs(plan) and _possible(model, plan, network):
                yield plan


def _degrees(model: Model, network: Network, space: Space) -> Iterator[dict[str, Any]]:
    """Degrees whose product is the number of GPUs. A layer is split within a node."""
    node = min(network.gpus_per_node, space.gpus)
    tensors = [one for one in divisors(space.gpus) if one <= node and model.heads % one == 0]
    stages = [one for one in divisors(space.gpus) if one <= model.layers]
    for tensor, pipeline, context, expert in product(
        tensors, stages, space.contexts, space.experts
    ):
        data, rest = divmod(space.gpus, tensor * pipeline * context)
        if rest or not data or space.global_batch % data:
            continue
        yield {
            "data": data,
            "tensor": tensor,
            "pipeline": pipeline,
            "context": context,
            "expert": expert,
        }


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


def _possible(model: Model, plan: Plan, network: Network) -> bool:
    try:
        plan.check(model)
        check_nodes(plan, network.gpus_per_node)
    except PlanError:
        return False
    return True


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
    tokens = found.plan.global_batch * model.sequence
    return model.step_flops(tokens) / (found.step_ns / 1e9) / (gpu.flops * found.plan.gpus)


def recompute_of(plan: Plan) -> str:
    """The name of what the plan recomputes, as in RECOMPUTES."""
    if plan.recompute:
        return "full"
    names = {"": "none", "attention": "selective", "operators": "selective-op"}
    return names[plan.selective]
