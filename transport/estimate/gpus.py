"""GPUs as estimates see them; gpus.toml has common ones with their source."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from transport.estimate.generations import GENERATIONS, Kernels
from transport.estimate.gpu_profiles import UNKNOWN, Facts, GpuError, read
from transport.estimate.names import matched
from transport.estimate.networks import links
from transport.ground.text import similar

GPUS = Path(__file__).parent / "gpus.toml"
# The part of its peak that a GPU reaches in a program's products, if nothing else is given: fitted
# to ten runs of Megatron-LM (bench estimate_published). Estimates of steps have a model of their
# own (kernels.py).
EFFICIENCY = 0.67
EFFICIENCY_MIN = 0.001
# Other names, and those that leave the size of the memory open.
# NVIDIA's modules of SXM are the GPUs of the profiles; those for PCIe are slower ones.
ALIASES = {
    "v100": "v100-32",
    "a100": "a100-80",
    "trn2": "trainium2",
    "h100-sxm": "h100",
    "h100-sxm5": "h100",
    "h100-80": "h100",
    "h200-sxm": "h200",
    "a100-sxm": "a100-80",
    "a100-80gb": "a100-80",
    "h100-80gb": "h100",
}
# Whose kernels a GPU of a generation without a fit is assumed to run.
LATEST = "hopper"


@dataclass(frozen=True)
class Gpu:
    """flops: operations a second at peak. efficiency: the part of this peak that kernels reach.

    efficiency: None: it follows from the sizes of each product (kernels.py). sms: streaming
    multiprocessors; 0: not known. clock: its clock in products as a part of that of the
    generation's other GPUs, where its power limit is lower. array: rows and columns of a TPU's
    matrix units; 0: a GPU, or not known. fitted: its kernels; None: those of its
    generation. facts: what estimates of a step do not need: rates of other types, power, price,
    links.
    """

    name: str
    flops: float
    memory_bytes: float
    memory_bytes_per_s: float
    efficiency: float | None = None
    generation: str = ""
    sms: int = 0
    clock: float = 1.0
    array: int = 0
    fitted: Kernels | None = None
    facts: Facts = UNKNOWN

    @property
    def kernels(self) -> Kernels:
        return self.fitted or GENERATIONS[self.generation or LATEST]

    @property
    def is_tpu(self) -> bool:
        return self.generation == "tpu"

    @property
    def noun(self) -> str:
        """What such an accelerator is called."""
        if self.is_tpu:
            return "TPU"
        known = links()
        is_on_torus = any(one in known and known[one].is_of_torus for one in self.facts.links)
        return "accelerator" if is_on_torus else "GPU"

    @property
    def one(self) -> str:
        """The noun with its article."""
        return f"an {self.noun}" if self.noun[0] in "ae" else f"a {self.noun}"

    def says(self, text: str) -> str:
        """A text that speaks of GPUs, in words of this accelerator."""
        return text.replace("a GPU", self.one).replace("GPU", self.noun)

    @property
    def share(self) -> float:
        """The part of its peak that large matrix products reach in a training step."""
        return self.kernels.products * self.clock if self.efficiency is None else self.efficiency

    @property
    def fp8_flops(self) -> float:
        """Operations a second at peak in FP8; 0: not known."""
        return dict(self.facts.dense).get("fp8", 0.0)

    def ns(self, flops: float, moved_bytes: float = 0.0) -> float:
        """The time of matrix products, and of the kernels between them, which memory limits."""
        reached = self.flops * (EFFICIENCY if self.efficiency is None else self.efficiency)
        return flops / reached * 1e9 + moved_bytes / self.memory_bytes_per_s * 1e9


@cache
def _tables() -> dict[str, dict[str, Any]]:
    return read(GPUS)


def names() -> list[str]:
    return list(_tables())


def gpu(name: str, efficiency: float | None = None, file: Path | None = None) -> Gpu:
    """A GPU of gpus.toml or of a user's file.

    efficiency: the part of its peak that kernels reach; None: it follows from products' sizes.
    name: one that ends in .toml is itself such a file, with one GPU. file: its GPUs are known, too,
    and come before shipped ones of the same name.
    """
    tables = _tables() if file is None else {**_tables(), **read(file)}
    if name.endswith(".toml"):
        tables = read(Path(name))
        if len(tables) > 1:
            raise GpuError(f"{name} has {', '.join(tables)}: choose with --gpus-file and --gpu")
        name = next(iter(tables))
    name = matched(name, [*tables, *(one for one in ALIASES if one not in tables)])
    name = name if name in tables else ALIASES.get(name, name)
    if name not in tables:
        hint = similar(name, list(tables))
        if Path(name).is_file():
            hint = "; a file of one ends in .toml"
        raise GpuError(f"no GPU {name}: known are {', '.join(tables)}{hint}")
    if efficiency is not None and not EFFICIENCY_MIN <= efficiency <= 1:
        raise GpuError(f"efficiency: {efficiency}: must be {EFFICIENCY_MIN} to 1")
    return Gpu(name, efficiency=efficiency, **tables[name])
