"""Draws what estimates are made of: networks, tori, models, GPUs, and plans that fit."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from transport.estimate.collectives import ALGORITHMS
from transport.estimate.computation import of_gpu
from transport.estimate.gpus import Gpu, gpu, names as gpu_names
from transport.estimate.models import PRESETS, Model
from transport.estimate.networks import Network, NetworkError, Slowdown, links, of_links
from transport.estimate.plan import (
    ADAM_BYTES,
    DTYPES,
    FRAMEWORKS,
    RECOMPUTES,
    REMATS,
    SCHEDULES,
    Plan,
    PlanError,
)
from transport.estimate.sharing import Sharing
from transport.estimate.step import Step
from transport.estimate.torus import OPERATIONS as TORUS_OPERATIONS
from transport.estimate.training import check_nodes

One = TypeVar("One")

SIZE_EXPONENTS = (0.0, 10.0)  # of 10, in bytes
NODES_MAX = 128
PASSES_MAX = 300  # passes of a step that is drawn, so that thousands are estimated in a minute
TRIES_MAX = 10_000
GPUS = tuple(gpu_names())
# What runs again: ways of Megatron-LM and PyTorch, and of MaxText.
AGAIN: tuple[dict[str, Any], ...] = (
    *RECOMPUTES.values(),
    *({"kept": one} for one in REMATS.values()),
)


@dataclass(frozen=True)
class Operation:
    """An operation of `ranks` ranks on a network. algorithm: None: the best one."""

    network: Network
    operation: str
    size_bytes: float
    ranks: int
    algorithm: str | None


@dataclass(frozen=True)
class TorusOperation:
    """An operation on a torus. lengths, is_open: of each axis."""

    lengths: tuple[int, ...]
    is_open: tuple[bool, ...]
    link: str
    operation: str
    size_bytes: float


@dataclass(frozen=True)
class Training:
    """A step of training."""

    model: Model
    plan: Plan
    gpu: Gpu
    network: Network

    @property
    def step(self) -> Step:
        computed = of_gpu(self.model, self.plan, self.gpu)
        return Step(self.model, self.plan, computed, self.network)

    def is_possible(self) -> bool:
        try:
            self.plan.check(self.model)
            check_nodes(self.plan, self.network.gpus_per_node)
        except PlanError:
            return False
        return (
            Step(
                self.model, self.plan, of_gpu(self.model, self.plan, self.gpu), self.network
            ).passes
            <= PASSES_MAX
        )


def until(draw: Callable[[], One | None]) -> One:
    """What `draw` returns first that is not None."""
    for _ in range(TRIES_MAX):
        if (found := draw()) is not None:
            return found
    raise AssertionError(f"nothing possible in {TRIES_MAX:,} tries: widen what is drawn")


def size_bytes(chance: random.Random) -> float:
    return float(round(10 ** chance.uniform(*SIZE_EXPONENTS)))


def network(chance: random.Random) -> Network:
    return until(lambda: _network(chance))


def _network(chance: random.Random) -> Network | None:
    kinds = {name: one.kind for name, one in links().items()}
    far = [name for name, kind in kinds.items() if kind != "torus"]
    near = [None, *(name for name, kind in kinds.items() if kind in ("nvlink", "pcie"))]
    pcie = [None, None, *(name for name, kind in kinds.items() if kind == "pcie")]
    each = chance.choice((1, 2, 4, 8, 8, 72))
    sharing = Sharing(
        gpus_per_switch=chance.choice((0, 0, 2, 4)),
        oversubscription=chance.choice((1.0, 1.0, chance.uniform(1, 8))),
        nodes_per_leaf=chance.choice((1, 4, 16)),
    )
    nics = chance.choice((None, None, 1, 2, each))
    try:
        found = of_links(
            chance.choice(far), chance.choice(near), each, nics, chance.choice(pcie), sharing
        )
    except NetworkError:
        return None
    if chance.random() < 0.3:
        found = replace(found, slowdown=Slowdown(chance.uniform(1, 2), chance.uniform(1, 2)))
    return found


def ranks(chance: random.Random, each: int) -> int:
    """Ranks on a part of a node, or on whole nodes of `each` GPUs."""
    if chance.random() < 0.3 and each > 1:
        return chance.randint(2, each)
    return each * chance.randint(1 if each > 1 else 2, NODES_MAX)


def operation(chance: random.Random) -> Operation:
    net = network(chance)
    name = chance.choice(tuple(ALGORITHMS))
    algorithm = chance.choice((None, *ALGORITHMS[name]))
    return Operation(net, name, size_bytes(chance), ranks(chance, net.gpus_per_node), algorithm)


def torus_operation(chance: random.Random) -> TorusOperation:
    axes = chance.randint(1, 4)
    of_torus = [name for name, one in links().items() if one.is_of_torus]
    return TorusOperation(
        tuple(chance.choice((1, 2, 3, 4, 5, 8, 16)) for _ in range(axes)),
        tuple(chance.random() < 0.4 for _ in range(axes)),
        chance.choice(of_torus),
        chance.choice(TORUS_OPERATIONS),
        size_bytes(chance),
    )


def model(chance: random.Random) -> Model:
    """A published model, cut to few layers, so that its step is scheduled fast."""
    found = PRESETS[chance.choice(tuple(PRESETS))]
    layers = min(found.layers, chance.choice((4, 6, 8, 12, 24)))
    return replace(found, layers=layers, sequence=chance.choice((1_024, 2_048, 8_192, 32_768)))


def training(chance: random.Random, **fixed: Any) -> Training:
    """A step that is possible. fixed: fields of the plan that are not drawn."""
    return until(lambda: _training(chance, fixed))


def _training(chance: random.Random, fixed: dict[str, Any]) -> Training | None:
    shape, net = model(chance), network(chance)
    drawn = {
        **{name: chance.choice(values) for name, values in _degrees(shape).items()},
        **chance.choice(AGAIN),
    }
    device = gpu(chance.choice(GPUS))
    if "fp8" not in dict(device.facts.dense):
        drawn["dtype"] = "bf16"
    drawn |= fixed
    if drawn["zero"] not in (1, 2):  # nothing is gathered beside the next forward pass
        drawn["overlap_gather"] = False
    plan = Plan(**drawn)
    times = chance.choice((1, 2, 4)) * plan.pipeline
    plan = replace(plan, global_batch=plan.data * plan.micro_batch * times)
    found = Training(shape, plan, device, net)
    return found if found.is_possible() else None


def _degrees(shape: Model) -> dict[str, Sequence[Any]]:
    """Field of a plan -> its values."""
    return {
        "data": (1, 2, 4, 8, 16, 64),
        "tensor": (1, 1, 2, 4, 8),
        "pipeline": (1, 1, 2, 4),
        "interleave": (1, 1, 2),
        "expert": (1, 4, 8) if shape.experts > 1 else (1,),
        "context": (1, 1, 1, 2, 4),
        "zero": (0, 1, 2, 3),
        "micro_batch": (1, 2, 4),
        "bucket_bytes": (1 << 20, 25 << 20, 400 << 20),
        "gradient_bytes": (2, 4),
        "flash": (True, True, False),
        "sequence": (True, False),
        "shard": (0, 0, 2, 8),
        "schedule": ("1f1b", *SCHEDULES),
        "overlap": (True, False),
        "overlap_context": (True, False),
        "overlap_gather": (True, False),
        "framework": FRAMEWORKS,
        "dtype": DTYPES,
        "optimizer_bytes": (ADAM_BYTES, 4),
        "offload": (False, False, True),
        "sum_once": (False, True),
        "expert_tensor": (0, 0, 1, 2) if shape.experts > 1 else (0,),
    }
