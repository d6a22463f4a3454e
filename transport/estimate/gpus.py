"""GPUs as estimates see them; gpus.toml has common ones with their source."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

from transport.estimate.names import matched
from transport.ground import toml

GPUS = Path(__file__).parent / "gpus.toml"
# The part of its peak that a GPU reaches in a transformer's matrix products, if nothing else is
# given: fitted to ten runs of Megatron-LM (bench estimate_published). Measure a step on one GPU,
# and give --efficiency.
EFFICIENCY = 0.67


class GpuError(ValueError):
    """An unknown GPU, or an impossible efficiency."""


@dataclass(frozen=True)
class Gpu:
    """flops: operations a second at peak. efficiency: the part of this peak that kernels reach."""

    name: str
    flops: float
    memory_bytes: float
    memory_bytes_per_s: float
    efficiency: float

    def ns(self, flops: float, moved_bytes: float = 0.0) -> float:
        """The time of matrix products, and of the kernels between them, which memory limits."""
        computing_ns = flops / (self.flops * self.efficiency) * 1e9
        return computing_ns + moved_bytes / self.memory_bytes_per_s * 1e9


@cache
def _tables() -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = toml.read(GPUS)
    return found


def names() -> list[str]:
    return list(_tables())


def gpu(name: str, efficiency: float = EFFICIENCY) -> Gpu:
    """A GPU of gpus.toml. efficiency: the part of its peak that kernels reach."""
    name = matched(name, names())
    if name not in _tables():
        raise GpuError(f"no GPU {name}: known are {', '.join(names())}")
    if not 0 < efficiency <= 1:
        raise GpuError(f"efficiency: {efficiency}: must be more than 0 and at most 1")
    return Gpu(name, efficiency=efficiency, **_tables()[name])
