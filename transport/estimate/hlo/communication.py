"""The collectives of an HLO program: which instruction sends how much among which devices.

A collective is an instruction of its own (all-reduce), a pair (all-reduce-start, all-reduce-done),
or in a computation that a fusion or async-start calls. A `send` counts with its `recv` as one.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass

from transport.estimate.collectives import estimate
from transport.estimate.hlo.groups import Devices, Groups
from transport.estimate.hlo.shapes import Shape, bytes_of_shape
from transport.estimate.hlo.text import (
    Computation,
    HloError,
    Instruction,
    Module,
    check_depth,
)
from transport.estimate.networks import Network

# Kind of collective -> the operation that estimates it.
KINDS = {
    "all-reduce": "all_reduce",
    "all-gather": "all_gather",
    "reduce-scatter": "reduce_scatter",
    "all-to-all": "all_to_all",
    "ragged-all-to-all": "all_to_all",
    "collective-broadcast": "broadcast",
    "collective-permute": "send",
    "send": "send",
}
CALLED_MAX = 1 << 12  # collectives of a fusion
_IS_SYNC = re.compile(r'is_sync\\?"\s*:\s*true')


@dataclass(frozen=True)
class Site:
    """A collective at a place of the program.

    at: the instruction that begins it there; inner: the one that has its groups, often the same.
    done: the instruction that waits for it; None: `at` itself waits or, if is_async, an
    instruction of another computation. inputs: shapes of what a device gives.
    """

    kind: str
    at: Instruction
    inner: Instruction
    inputs: tuple[Shape, ...]
    is_async: bool
    done: Instruction | None


@dataclass(frozen=True)
class Traffic:
    """What a collective sends. size_bytes: as nccl-tests count it. sent_bytes: of a device.

    ranks, nodes: of the group that takes longest. time_ns: of one execution, alone.
    """

    groups: Groups
    size_bytes: int
    sent_bytes: float
    ranks: int
    nodes: int
    time_ns: float


class Sites:
    """The collectives of the computations of a module."""

    def __init__(self, module: Module) -> None:
        self._module = module
        self._inside: dict[str, list[Site]] = {}

    def of(self, computation: Computation) -> list[Site]:
        """Those of a computation, of its fusions and asynchronous calls, in their order."""
        ends = _ends(computation)
        found = []
        for one in computation.instructions:
            kind = one.opcode.removesuffix("-start")
            if kind in KINDS:
                is_async = one.opcode != kind or kind == "send"
                config = one.attributes.get("backend_config", "")
                is_async = is_async and not _IS_SYNC.search(config)
                if kind == "send" and one.attributes.get("is_host_transfer") == "true":
                    continue
                inputs = _inputs(one, kind, computation)
                found.append(Site(kind, one, one, inputs, is_async, ends.get(one.name)))
                continue
            is_async = one.opcode != "fusion"
            for inner in self.within(one):
                done = ends.get(one.name)
                found.append(Site(inner.kind, one, inner.inner, inner.inputs, is_async, done))
        return found

    def within(self, one: Instruction) -> list[Site]:
        """Those of the computation that a fusion or async-start calls."""
        attribute = called_by(one)
        return self._called(self._module.called(one, attribute), 0) if attribute else []

    def _called(self, computation: Computation, depth: int) -> list[Site]:
        if computation.name in self._inside:
            return self._inside[computation.name]
        check_depth(computation, depth)
        found = []
        for one in computation.instructions:
            if one.opcode in KINDS:
                inputs = _inputs(one, one.opcode, computation)
                found.append(Site(one.opcode, one, one, inputs, False, None))
            elif one.opcode in ("fusion", "call"):
                attribute = "calls" if one.opcode == "fusion" else "to_apply"
                found += self._called(self._module.called(one, attribute), depth + 1)
            if len(found) > CALLED_MAX:
                raise HloError(
                    f"line {computation.line}: a fusion with more than {CALLED_MAX} collectives"
                )
        self._inside[computation.name] = found
        return found


def called_by(one: Instruction) -> str:
    """The attribute that names the computation of a fusion or an async-start; "": neither."""
    if one.opcode == "call-start":
        return "to_apply"
    is_one = one.opcode == "fusion" or one.opcode.endswith("-start")
    return "calls" if is_one and "calls" in one.attributes else ""


def _inputs(one: Instruction, kind: str, within: Computation) -> tuple[Shape, ...]:
    """The shapes of the operands that are sent."""
    shapes = tuple(within.named[name].shape for name in one.operands)
    return shapes[:1] if kind in ("send", "ragged-all-to-all") else shapes


def _ends(computation: Computation) -> dict[str, Instruction]:
    """Name of each asynchronous start -> the instruction that waits for it."""
    begun: dict[str, str] = {}  # name of an update -> that of its start
    ends: dict[str, Instruction] = {}
    by_channel: dict[str, str] = {}
    for one in computation.instructions:
        if one.opcode == "send":
            by_channel[one.attributes.get("channel_id", "")] = one.name
        if not one.operands:
            continue
        first = begun.get(one.operands[0], one.operands[0])
        if one.opcode.endswith("-update"):
            begun[one.name] = first
        elif one.opcode == "recv-done":  # waits for the data, and so for the sender of the channel
            start = by_channel.get(one.attributes.get("channel_id", ""))
            if start is not None:
                ends.setdefault(start, one)
        elif one.opcode.endswith("-done"):
            ends.setdefault(first, one)
    return ends


class Wire:
    """What collectives send over a network."""

    def __init__(self, network: Network, devices: Devices) -> None:
        self.network, self.devices = network, devices
        self.is_uneven = False  # whether a group has more devices in one node than in another
        # By identity of the groups, which `devices` keeps, as comparing large groups takes long.
        self._spans: dict[tuple[int, str], list[tuple[int, int]]] = {}

    def traffic(self, site: Site) -> Traffic:
        """Bytes that a device sends, and the time of the slowest group."""
        groups = self.devices.groups(site.inner, site.kind)
        given = sum(map(bytes_of_shape, site.inputs))
        size, sent, slowest = given, 0.0, (1, 1, 0.0)
        same = id(groups), site.kind
        if same not in self._spans:
            self._spans[same] = self._spans_of(groups, site.kind)
        for ranks, nodes in self._spans[same]:
            whole = given * ranks if site.kind == "all-gather" else given
            part = (ranks - 1) / ranks
            factor = {"all-reduce": 2 * part, "collective-broadcast": 1.0}.get(site.kind, part)
            factor = 1.0 if KINDS[site.kind] == "send" else factor
            sent = max(sent, factor * whole)
            time_ns = estimate(self.network, KINDS[site.kind], whole, ranks, nodes=nodes).time_ns
            if time_ns > slowest[2]:
                size, slowest = whole, (ranks, nodes, time_ns)
        return Traffic(groups, size, sent, *slowest)

    def _spans_of(self, groups: Groups, kind: str) -> list[tuple[int, int]]:
        """(devices, nodes) of each kind of group of two devices or more."""
        each = self.network.gpus_per_node
        if kind == "send" and not groups and self.devices.count > 1:
            return [(2, min(self.network.nodes(self.devices.count), 2))]
        found = set()
        for one in groups:
            parts = Counter(device // each for device in set(one))
            found.add((parts.total(), len(parts)))
            self.is_uneven |= len(set(parts.values())) > 1
        return sorted(one for one in found if one[0] > 1)
