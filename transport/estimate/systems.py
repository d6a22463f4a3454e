"""Systems of accelerators as people write them, and how long one sums a model's gradients.

A text such as "8 x a100 nvlink3", "64 x h100 nvlink4 ethernet-400 8/node" or "tpu-v4 4x4x4" says
how many accelerators of which kind there are, and what links them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from transport.estimate import torus
from transport.estimate.collectives import Estimate, ShapeError, estimate
from transport.estimate.gpu_profiles import GpuError, read
from transport.estimate.gpus import Gpu, gpu, names
from transport.estimate.names import matched
from transport.estimate.networks import Link, Network, link, of_links, own_link, with_file
from transport.estimate.plan import RANKS_MAX
from transport.estimate.ranges import MANY, MANY_GPUS, OTHER_GPU

GPUS_PER_NODE = 8
# The largest NVLink domain of the shipped profiles: GB200 NVL72.
DOMAIN_MAX = 72
# Bytes of a parameter in mixed precision with Adam: 2 of its value, 2 of its gradient, 12 of state.
PARAMETER_BYTES = 16
# Backward is two thirds of the computation of a step, and gradients are summed while it runs.
BACKWARD = 2 / 3
TIMES = "x*\u00d7"  # between a number and a name; the last is the multiplication sign
EXAMPLE = "64 x h100 nvlink4 ethernet-400 8/node"
_COUNT, _EACH = re.compile(rf"(\d{{1,7}})[{TIMES}]?", re.I), re.compile(r"(\d{1,7})/node")
_JOINED = re.compile(rf"(\d{{1,7}}[{TIMES}])([a-z].*)", re.I)  # 8xa100
_SHAPE = re.compile(r"\d+x\d+\S*")


@dataclass(frozen=True)
class System:
    """Accelerators and their network: either a switch (network) or a torus with its link."""

    name: str
    gpu: Gpu
    chips: int
    network: Network | None = None
    torus: torus.Torus | None = None
    link: Link | None = None

    def estimate(self, operation: str, size_bytes: float) -> Estimate:
        """The time of an operation of all accelerators; size_bytes: as for collectives."""
        if self.network is not None:
            return estimate(self.network, operation, size_bytes, self.chips)
        assert self.torus is not None
        assert self.link is not None
        return torus.estimate(self.torus, self.link, operation, size_bytes)

    @property
    def is_one_domain(self) -> bool:
        """Whether more accelerators than a usual node has are linked without a network."""
        network = self.network
        return network is not None and GPUS_PER_NODE < self.chips <= network.gpus_per_node


def parsed(text: str, file: Path | None = None, links_file: Path | None = None) -> System:
    """The system of a text. file, links_file: a user's accelerators and links.

    ShapeError, GpuError, NetworkError: what is wrong, in one line.
    """
    words = _Words(text, file, with_file(links_file))
    if words.shape is not None:
        return _on_torus(text, words)
    if words.chips is None:
        raise ShapeError(f"{text}: how many accelerators? Give 8 x NAME, or the shape of a torus")
    inside, between = words.inside, words.between
    if inside is None:
        inside = own_link(words.gpu.name, words.gpu.facts.links, words.links)
    if inside is None and between is None:
        raise ShapeError(f"{text}: what links the accelerators? Name a link, such as nvlink4")
    if inside is not None and link(inside, words.links).is_of_torus:
        raise ShapeError(f"{text}: {inside} needs the shape of the torus, such as 4x4x4")
    if between is None and words.chips > (words.each or DOMAIN_MAX):
        raise ShapeError(
            f"{text}: {words.chips} are not one node: name the link between nodes, too, such as "
            "ethernet-400"
        )
    each = words.each or (GPUS_PER_NODE if between is not None else words.chips)
    if inside is not None and words.chips > each and words.chips % each:
        raise ShapeError(f"{text}: must be a multiple of the {each} of a node, or less")
    network = of_links(between or "ethernet-400", inside, each, pcie=words.pcie, known=words.links)
    return System(text, words.gpu, words.chips, network)


def _on_torus(text: str, words: _Words) -> System:
    assert words.shape is not None
    shape = torus.parsed(words.shape)
    if words.chips not in (None, shape.chips):
        raise ShapeError(f"{text}: {words.shape} has {shape.chips} accelerators: leave the count")
    if words.between or words.each or words.pcie:
        raise ShapeError(f"{text}: a torus has no nodes: leave out their links and size")
    name = words.inside or own_link(words.gpu.name, words.gpu.facts.links, words.links)
    if name is None:
        raise ShapeError(f"{text}: what links the accelerators? Name a link, such as tpu-v4")
    used = link(name, words.links)
    torus.check_link(name, used)
    return System(text, words.gpu, shape.chips, torus=shape, link=used)


def _once(text: str, before: int | None, now: int, what: str) -> int:
    if before is not None:
        raise ShapeError(f"{text}: two {what}, {before} and {now}: leave one out")
    return now


class _Words:
    """The words of a text, told apart by their form and by the names that are known."""

    def __init__(self, text: str, file: Path | None, links: dict[str, Link]) -> None:
        self.links = links
        self.chips: int | None = None
        self.each: int | None = None
        self.shape: str | None = None
        self.inside: str | None = None
        self.between: str | None = None
        self.pcie: str | None = None
        found: Gpu | None = None
        if file is not None:
            read(file)  # a mistake in it is to be told, too, if no word needs it
        for word in self._split(text, file):
            if count := _COUNT.fullmatch(word):
                self.chips = _once(text, self.chips, int(count[1]), "numbers of accelerators")
            elif each := _EACH.fullmatch(word):
                self.each = _once(text, self.each, int(each[1]), "sizes of a node")
            elif _SHAPE.fullmatch(word):
                self.shape = word
            elif word.lower() in tuple(TIMES):
                continue
            elif found is None and (one := _gpu(word, file)) is not None:
                found = one
            else:
                self._take_link(text, word)
        if found is None:
            raise GpuError(
                f"{text or 'an empty text'}: which accelerator? Name one, as in {EXAMPLE} or "
                "tpu-v4 4x4x4"
            )
        if self.chips == 0 or self.each == 0 or (self.chips or 0) > RANKS_MAX:
            raise ShapeError(f"{text}: give 1 to {RANKS_MAX:,} accelerators")
        self.gpu = found

    def _split(self, text: str, file: Path | None) -> Iterator[str]:
        """The words of the text; 8xa100 is two, unless an accelerator or a file has this name."""
        for word in text.split():
            joined = _JOINED.fullmatch(word)
            is_file = word.endswith(".toml")
            if joined is None or (Path(word).exists() if is_file else _gpu(word, file) is not None):
                yield word
            else:
                yield from joined.groups()

    def _take_link(self, text: str, word: str) -> None:
        name = matched(word, self.links)
        if name not in self.links:
            raise ShapeError(
                f"{text}: {word} is neither an accelerator ({', '.join(names())}) nor a link "
                f"({', '.join(self.links)}): give a system as {EXAMPLE}"
            )
        kind = "between" if self.links[name].kind == "network" else "inside"
        if kind == "inside" and self.inside is not None:
            # PCIe beside another link inside a node leads to the NICs.
            kinds = self.links[name].kind, self.links[self.inside].kind
            if kinds.count("pcie") == 1 and self.pcie is None:
                is_new = kinds[0] == "pcie"
                self.pcie = name if is_new else self.inside
                self.inside = self.inside if is_new else name
                return
        if getattr(self, kind) is not None:
            raise ShapeError(f"{text}: two links {kind} nodes: leave one out")
        setattr(self, kind, name)


def _gpu(word: str, file: Path | None) -> Gpu | None:
    """The accelerator of a word; None: it is another word. GpuError: a wrong profile."""
    try:
        return gpu(word, file=file)
    except GpuError:
        if word.endswith(".toml"):
            raise
        return None


@dataclass(frozen=True)
class Sync:
    """How a system sums the gradients of a model after a step of data parallelism.

    sent_bytes: what an accelerator sends in all; between_bytes: of it to other nodes, by each NIC.
    compute_ns: what a step computes; None: not said. range_ns: its range, if it is estimated.
    hidden_ns, at most: the part of the sum that runs beside backward. needed_bytes: parameters,
    gradients and Adam's state, without activations, if each accelerator has all of them;
    split_bytes: if they are split among all (ZeRO 3).
    """

    system: System
    estimate: Estimate
    sent_bytes: float
    between_bytes: float
    compute_ns: float | None
    range_ns: tuple[float, float] | None
    hidden_ns: float | None
    needed_bytes: float
    split_bytes: float

    def exposed_ns(self, compute_ns: float) -> float:
        """What backward cannot hide of the sum, at least, if a step computes for so long."""
        return max(self.estimate.time_ns - compute_ns * BACKWARD, 0.0)

    @property
    def fits(self) -> str:
        """Whether the model's state fits: whole, split, or no."""
        memory = self.system.gpu.memory_bytes
        if self.needed_bytes <= memory:
            return "whole"
        return "split" if self.split_bytes <= memory else "no"


def sync(
    system: System,
    parameters: float,
    gradient_bytes: int = 2,
    compute_ns: float | None = None,
    tokens: float | None = None,
) -> Sync:
    """The sum of all gradients. compute_ns: of a step.

    tokens: of a step and accelerator, instead of compute_ns: 6 operations for each of them and each
    parameter, at the share of the peak that the accelerator's products reach in training steps.
    """
    found = system.estimate("all_reduce", parameters * gradient_bytes)
    range_ns = None
    if compute_ns is None and tokens is not None:
        compute_ns = 6 * parameters * tokens / (system.gpu.flops * system.gpu.share) * 1e9
        low, high = _spread(system)
        range_ns = compute_ns * low, compute_ns * high
    inside, between = found.terms.inside_bytes, found.terms.between_bytes
    if system.torus is not None:
        inside *= sum(one.ways for one in system.torus.axes)
    hidden_ns = None if compute_ns is None else min(found.time_ns, compute_ns * BACKWARD)
    needed = parameters * PARAMETER_BYTES
    return Sync(
        system,
        found,
        inside + between if found.algorithm == "tree" else max(inside, between),
        between,
        compute_ns,
        range_ns,
        hidden_ns,
        needed,
        needed / system.chips,
    )


def _spread(system: System) -> tuple[float, float]:
    """10th and 90th percentile of what published steps took, relative to their estimates."""
    known, name = system.gpu.kernels, system.gpu.name
    is_fitted = system.gpu.generation and (not known.fitted or name in known.fitted)
    power = 1.0 if is_fitted else OTHER_GPU
    power *= MANY if system.chips > MANY_GPUS else 1.0
    low, high = known.spread
    return low**power, high**power
