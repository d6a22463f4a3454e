"""The range that a step's real time is expected in: from the errors of the runs of the fit.

The range is from the 10th to the 90th percentile of published / estimated, of the published runs
that the GPU's generation was fitted to, each publisher's with a fit to those of all others
(`python -m bench estimate_fit`). Logarithms of both are
multiplied where an estimate goes beyond these runs. These factors are judgement, not a fit.
Queues between nodes add to the upper end what they cost in simulations.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from transport.estimate.collectives import Estimate
from transport.estimate.gpus import Gpu
from transport.estimate.kernels import layer_products
from transport.estimate.models import Model
from transport.estimate.networks import Network
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


# 10th and 90th percentile of published / estimated times of operations (`bench
# estimate_collectives`): 19 of at most 64 KiB, 28 of at most 64 MiB and 32 larger ones, the latter
# two inside a node and between nodes. Rows of the fit count, too: only two constants are fitted.
OPERATIONS = (
    (64 << 10, (0.93, 1.27), (0.93, 1.27)),
    (64 << 20, (1.0, 2.63), (0.90, 1.30)),
    (math.inf, (0.96, 1.12), (0.99, 1.13)),
)
OTHER_OPERATION = 1.5  # of all but AllReduces hardly any time is published
ONE_TABLE = 1.5  # small operations over RoCE: the latency is fitted to one table


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
        if plan.dtype == "fp8" and gpu.kernels.fp8 is None:
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


def range_of_operation(one: Estimate, network: Network) -> Range | None:
    """The range of an estimated operation. None: not known, as outside of a measured range.

    Of a network that was measured it is as far as 95 % of these measurements.
    """
    if network.calibrated is not None:
        if network.extrapolates(one.operation, one.size_bytes, one.ranks):
            return None
        most = 1 + network.calibrated.p95_error
        return Range(one.time_ns / most, one.time_ns * most, ())
    is_between = one.ranks > network.gpus_per_node
    small = OPERATIONS[0][0]
    _, *both = next(each for each in OPERATIONS if one.size_bytes <= each[0])
    (low, high), power, wider = both[is_between], 1.0, []
    if one.operation != "all_reduce":
        power *= OTHER_OPERATION
        wider.append("hardly any published times of other operations than AllReduces")
    if is_between and network.between.ll_more_ns and one.size_bytes <= small:
        power *= ONE_TABLE
        wider.append("small operations over RoCE, whose latency is fitted to one table")
    return Range(one.time_ns * low**power, one.time_ns * high**power, tuple(wider))


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
