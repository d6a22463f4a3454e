"""The range that a step's real time is expected in: from the errors of the runs of the fit.

The range is from the 10th to the 90th percentile of published / estimated, of the published runs
that the GPU's generation was fitted to, each publisher's with a fit to those of all others
(`python -m bench estimate_fit`). Logarithms of both are
multiplied where an estimate goes beyond these runs. These factors are judgement, not a fit.
Queues between nodes add to the upper end what they cost in simulations.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from transport.estimate.gpus import Gpu
from transport.estimate.kernels import layer_products
from transport.estimate.models import Model
from transport.estimate.plan import Plan
from transport.estimate.training import Row

# 10th and 90th percentile of measured / estimated of the 24 steps of `bench estimate_steps`, whose
# computation was measured on one GPU, rounded up.
MEASURED = (0.90, 1.10)
OTHER_GPU = 2.0  # a GPU of a generation that no run of the fit had
FP8 = 1.5  # products in FP8, in no run of the fit
SMALL = 1.5  # products of fewer tiles than the GPU has SMs, or of a short k
MANY = 1.3  # more GPUs than MANY_GPUS, of which stragglers and failures are part
SMALL_TILE = 128
SMALL_K = 512
MANY_GPUS = 1_024
# Parts of the exposed time of operations between nodes by which simulated steps are longer, at most
# (`bench estimate_simulated_steps`): flows of AllToAlls meet in queues; inner nodes of trees wait
# for several neighbours, and all of them send to other pipeline stages, too. Gathers by PAT follow
# each other without a barrier: messages of hosts that are ahead take the links of those behind.
EXCHANGES = 0.5
PAT_IN_A_ROW = 1.7
TREES_BESIDE_SENDS = 1.25
QUEUES_MIN = 0.01  # a smaller part of the step is not said


@dataclass(frozen=True)
class Range:
    """low_ns, high_ns: 10th and 90th percentile of a step's time. wider: why it is wider."""

    low_ns: float
    high_ns: float
    wider: tuple[str, ...]


def range_of(
    step_ns: float,
    model: Model,
    plan: Plan,
    gpu: Gpu,
    measured: bool = False,
    queued_ns: float = 0.0,
) -> Range:
    """The range of an estimated step. measured: its computation was measured on one GPU.

    queued_ns: as of queued_ns().
    """
    low, high = MEASURED if measured else gpu.kernels.spread
    power, wider = 1.0, []
    if not measured:
        fitted = gpu.kernels.fitted
        if not gpu.generation or (fitted and gpu.name not in fitted):
            power *= OTHER_GPU
            wider.append(f"no runs of {gpu.name} were fitted")
        if plan.dtype == "fp8":
            power *= FP8
            wider.append("no runs in FP8 were fitted")
        if _small(model, plan, gpu):
            power *= SMALL
            wider.append("small matrix products")
    if plan.gpus > MANY_GPUS:
        power *= MANY
        wider.append(f"more than {MANY_GPUS:,} GPUs")
    if queued_ns > QUEUES_MIN * step_ns:
        wider.append("queues between nodes")
    return Range(step_ns * low**power, step_ns * high**power + queued_ns, tuple(wider))


def queued_ns(rows: Iterable[Row], plan: Plan) -> float:
    """By how much queues between nodes may make a step longer, which no estimate has."""
    trees = TREES_BESIDE_SENDS if plan.pipeline > 1 else 0.0
    parts = {"pairs": EXCHANGES, "pat": PAT_IN_A_ROW, "tree": trees, "nvls": trees}
    return sum(
        parts.get(row.algorithm, 0.0) * row.exposed_ns
        for row in rows
        if row.nodes > 1 and row.operation != "send"
    )


def _small(model: Model, plan: Plan, gpu: Gpu) -> bool:
    """Whether most products of a layer do not fill the GPU, or have a short k."""
    products = list(layer_products(model, plan))
    if gpu.array:  # which has no SMs to fill
        small = [min(one.m, one.n, one.k) < gpu.array for one in products]
        return 2 * sum(small) > len(products)
    small = [
        one.count * one.m * one.n < gpu.sms * SMALL_TILE**2 or one.k < SMALL_K for one in products
    ]
    return 2 * sum(small) > len(products)
