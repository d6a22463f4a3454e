"""Fits how GPUs run kernels (transport/estimate/generations.py) to published runs.

Each publisher has the same weight, as its runs share what is not modelled; large errors count
linearly (soft L1), as some of them are of what no estimate has, such as stragglers. Each parameter
also has a first guess with a standard deviation, from what is known of single kernels, so that
parameters that runs hardly tell apart stay physical. Held-out runs are not read; a run
is estimated with several scales of its computation, between which fits interpolate.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import click
import numpy as np

from bench.lib.common import Config, document, emit, json_option
from bench.lib.published_plans import NotExpressibleError, again_of, estimated_s, plan_of
from bench.lib.published_runs import SETS, PublishedError, PublishedRun, read
from transport.cli.packages import need_packages
from transport.estimate.activations import repeated_passes
from transport.estimate.computation import Computation, of_gpu
from transport.estimate.generations import GENERATIONS, Kernels
from transport.estimate.gpus import Gpu, gpu
from transport.estimate.models import Model
from transport.estimate.plan import Plan
from transport.estimate.slices import SLICES_WAIT, waiting

# Generation of published runs -> that of gpus.toml.
FITTED = {"A100": "a100", "Hopper": "hopper", "Blackwell": "blackwell", "TPU": "tpu"}
# First guess, and standard deviation of its logarithm. products: of large products alone; memory:
# of a copy; unfused: PyTorch's norms in 32 bits and separate residuals; clock: the cube root of
# 500 W / 700 W, as power grows with the cube of the clock, is 0.89. slices: SLICES_WAIT.
GUESSES: dict[str, dict[str, tuple[float, float]]] = {
    "A100": {
        "products": (0.85, 0.15),
        "depth": (100.0, 0.7),
        "memory": (0.8, 0.1),
        "unfused": (2.0, 0.3),
    },
    "Hopper": {
        "products": (0.70, 0.15),
        "depth": (150.0, 0.7),
        "memory": (0.8, 0.1),
        "unfused": (2.0, 0.3),
        "clock": (0.89, 0.08),
        "fp8": (1.0, 0.15),
    },
    "Blackwell": {"products": (0.70, 0.15)},
    "TPU": {"products": (0.90, 0.15), "slices": (0.02, 1.0)},
}
LIMITED = "h100-96"  # the GPU whose clock is fitted
ERROR = 0.06  # of a usual estimate: larger ones count linearly
SCALES = (0.5, 0.7, 0.85, 1.0, 1.2, 1.5, 2.0)
COLUMNS = ("generation", "parameter", "value", "first_guess", "standard_deviation", "now")


@dataclass(frozen=True)
class Fitted:
    """A run. times_s: of its step, if its computation takes SCALES times that of `work_ns`."""

    run: PublishedRun
    plan: Plan
    published_s: float
    work_ns: float
    times_s: tuple[float, ...]

    def error(self, gpu_: Gpu, wait: float = SLICES_WAIT) -> float:
        """The logarithm of estimated / published, interpolated between `times_s`."""
        scale = work_ns(self.run, self.plan, gpu_) / self.work_ns
        slices = self.run.gpus // self.run.gpus_per_node if self.run.generation == "TPU" else 1
        longer = waiting(slices, wait) / waiting(slices)
        found_s = longer * float(np.interp(scale, SCALES, self.times_s))
        return math.log(found_s / self.published_s)

    def error_with(self, values: Mapping[str, float]) -> float:
        """The error with values of the parameters of a fit."""
        return self.error(with_kernels(self.run, values), values.get("slices", SLICES_WAIT))


def work_ns(one: PublishedRun, plan: Plan, gpu_: Gpu) -> float:
    """The computation of a microbatch on a pipeline stage, the logits without other stages."""
    computed = of_gpu(one.model, plan, gpu_)
    share = again_of(one)
    again = repeated_passes(one.model, plan) if share is None else share
    again_ns = computed.repeated_ns or again * computed.forward_ns
    layer_ns = computed.forward_ns + again_ns + computed.backward_ns
    head_ns = computed.head_forward_ns + computed.head_backward_ns
    return one.model.layers / plan.pipeline * layer_ns + head_ns * (plan.pipeline == 1)


def prepared(one: PublishedRun) -> Fitted:
    """Estimates a run with several scales of its computation. NotExpressibleError: it cannot be."""
    plan, known = plan_of(one), gpu(one.gpu)
    if plan.context > 1 and plan.framework == "pytorch":
        # From 2 to 4 ranks, torchtitan's runs become 1.4 times as slow as attention's operations.
        raise NotExpressibleError("context parallelism of PyTorch, whose attention is slower")
    if plan.expert > 1:
        raise NotExpressibleError("experts: their AllToAlls are not as estimated")

    def scaled(scale: float, model: Model, plan: Plan) -> Computation:
        computed = of_gpu(model, plan, known)
        return Computation(**{name: scale * ns for name, ns in vars(computed).items()})

    times_s = tuple(estimated_s(one, partial(scaled, scale)) for scale in SCALES)
    return Fitted(one, plan, one.step_s(known.flops), work_ns(one, plan, known), times_s)


def with_kernels(one: PublishedRun, values: Mapping[str, float]) -> Gpu:
    """The run's GPU with other values of parameters."""
    known, more = gpu(one.gpu), {key: at for key, at in values.items() if key != "slices"}
    clock = more.pop("clock", known.clock)
    kernels = Kernels(**(vars(GENERATIONS[FITTED[one.generation]]) | more))
    return replace(known, fitted=kernels, clock=clock if one.gpu == LIMITED else known.clock)


def fit(generation: str, runs: Sequence[Fitted]) -> tuple[dict[str, float], list[float]]:
    """The parameters, and the standard deviations of their logarithms."""
    from scipy.optimize import least_squares

    guesses = GUESSES[generation]
    middle = np.log([guess for guess, _ in guesses.values()])
    spread = np.array([deviation for _, deviation in guesses.values()])
    counts = Counter(one.run.publisher for one in runs)
    weights = np.array([1 / counts[one.run.publisher] for one in runs])
    weights = np.sqrt(weights * len(runs) / weights.sum())

    def off(logs: np.ndarray) -> np.ndarray:
        values = dict(zip(guesses, map(float, np.exp(logs)), strict=True))
        errors = np.array([one.error_with(values) for one in runs]) / ERROR
        soft = np.sqrt(2 * (np.sqrt(1 + errors**2) - 1))
        return np.concatenate([weights * soft, (logs - middle) / spread])

    found = least_squares(off, middle, diff_step=0.02)
    deviations = np.sqrt(np.diag(np.linalg.inv(found.jac.T @ found.jac)))
    return dict(zip(guesses, map(float, np.exp(found.x)), strict=True)), list(deviations)


def groups_of(runs: Sequence[Fitted]) -> set[str]:
    """What one part of the runs does not share with the others: publishers, or accelerators."""
    publishers = {one.run.publisher for one in runs}
    return publishers if len(publishers) > 1 else {one.run.gpu for one in runs}


def group_of(one: Fitted, runs: Sequence[Fitted]) -> str:
    return one.run.publisher if one.run.publisher in groups_of(runs) else one.run.gpu


def left_out_errors(generation: str, runs: Sequence[Fitted]) -> list[float]:
    """Logarithms of published / estimated of each publisher's runs, fitted to all others'.

    Errors of runs that were fitted would be too small for runs of publishers that were not. If
    there is one publisher, each accelerator is left out instead.
    """
    off = []
    for left_out in sorted(groups_of(runs)):
        others = [one for one in runs if group_of(one, runs) != left_out]
        values, _ = fit(generation, others)
        own = [one for one in runs if group_of(one, runs) == left_out]
        off += [-one.error_with(values) for one in own]
    return off


def fitted_rows(generation: str, runs: Sequence[Fitted]) -> list[Config]:
    """A row for each parameter, and for the 10th and 90th percentile of published / estimated."""
    values, deviations = fit(generation, runs)
    kernels: dict[str, Any] = vars(GENERATIONS[FITTED[generation]])
    kernels = kernels | {"clock": gpu(LIMITED).clock, "slices": SLICES_WAIT}
    rows: list[Config] = [
        {
            "generation": generation,
            "parameter": name,
            "value": value,
            "first_guess": GUESSES[generation][name][0],
            "standard_deviation": deviation,
            "now": kernels[name],
        }
        for (name, value), deviation in zip(values.items(), deviations, strict=True)
    ]
    if len(groups_of(runs)) < 2:
        return rows  # a range needs runs to leave out
    off = left_out_errors(generation, runs)
    for name, percentile, now in zip(("p10", "p90"), (10, 90), kernels["spread"], strict=True):
        value = math.exp(float(np.percentile(off, percentile)))
        rows.append({"generation": generation, "parameter": name, "value": value, "now": now})
    return rows


@click.command("estimate_fit")
@click.option("--only", help="Only runs whose name begins like this.")
@json_option
def command(only: str | None, json_path: str | None) -> None:
    """Fits how GPUs run kernels to published runs; prints what belongs into generations.py."""
    need_packages("python -m bench estimate_fit", "scipy")
    found: dict[str, list[Fitted]] = {}
    try:
        published = read(SETS["fit"])
    except PublishedError as error:
        raise click.ClickException(str(error)) from None
    for one in published:
        if one.generation not in FITTED or not one.run.startswith(only or ""):
            continue
        try:
            found.setdefault(one.generation, []).append(prepared(one))
        except NotExpressibleError as error:
            click.echo(f"left out: {one.run}: {error}", err=True)
    if not found:
        raise click.UsageError(f"no run that can be fitted begins with {only!r}: leave out --only")
    rows = [row for name, runs in found.items() for row in fitted_rows(name, runs)]
    counts = ", ".join(f"{len(runs)} of {name}" for name, runs in found.items())
    notes = [
        f"fitted to {counts}; standard_deviation: of the parameter's logarithm; now: in use",
        "p10, p90: published / estimated time of a step, of publishers that were left out of a fit",
    ]
    emit(
        document("estimate_fit", rows, keys=["generation", "parameter"]), json_path, COLUMNS, notes
    )
