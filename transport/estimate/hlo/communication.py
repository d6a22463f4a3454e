"""The collectives of an HLO program: which instruction sends how much among which devices.

A collective is an instruction of its own (all-reduce), a pair (all-reduce-start, all-reduce-done),
or in a computation that a fusion or async-start calls. A `send` counts with its `recv` as one.
XLA for TPUs has chains of fusions: the first one starts a collective, others compute beside it and
repeat it with the same channel, and the last one waits for it. It scatters sums by fusions of an
all-reduce with a slice of it.
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
from transport.estimate.hlo.tori import Part, part_of_group, part_of_pair
from transport.estimate.networks import Network
from transport.estimate.torus import Torus

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
CHAIN_START, CHAIN_DONE = "AsyncCollectiveStart", "AsyncCollectiveDone"
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


@dataclass(frozen=True)
class _Chains:
    """Chains of fusions. ends: name of the first one -> the last one; others: all but the first."""

    ends: dict[str, Instruction]
    others: set[str]


class Sites:
    """The collectives of the computations of a module."""

    def __init__(self, module: Module) -> None:
        self._module = module
        self._inside: dict[str, list[Site]] = {}
        self._chains: dict[str, _Chains] = {}

    def of(self, computation: Computation) -> list[Site]:
        """Those of a computation, of its fusions and asynchronous calls, in their order."""
        ends = _ends(computation)
        chains = self._chains_of(computation)
        found = []
        for one in computation.instructions:
            if one.name in chains.others:
                continue
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
            is_async = one.opcode != "fusion" or one.name in chains.ends
            for inner in self.within(one):
                done = chains.ends.get(one.name) or ends.get(one.name)
                found.append(Site(inner.kind, one, inner.inner, inner.inputs, is_async, done))
        return found

    def computes_beside(self, one: Instruction, computation: Computation) -> bool:
        """Whether a fusion belongs to a collective that another one has started."""
        return one.name in self._chains_of(computation).others

    def _chains_of(self, computation: Computation) -> _Chains:
        if computation.name not in self._chains:
            self._chains[computation.name] = self._found_chains(computation)
        return self._chains[computation.name]

    def _found_chains(self, computation: Computation) -> _Chains:
        starts: dict[str, str] = {}  # channel -> the fusion that started a collective on it
        chains = _Chains({}, set())
        for one in computation.instructions:
            inner = self.within(one) if one.opcode == "fusion" else []
            if len(inner) != 1:
                continue
            channel = inner[0].inner.attributes.get("channel_id", "")
            targets = self._targets(one)
            if CHAIN_START in targets:
                starts[channel] = one.name
            elif channel in starts:
                chains.others.add(one.name)
                if CHAIN_DONE in targets:
                    chains.ends[starts.pop(channel)] = one
        return chains

    def _targets(self, one: Instruction) -> set[str]:
        """The custom calls of the computation that a fusion calls."""
        called = self._module.called(one, "calls")
        return {each.attributes.get("custom_call_target", "") for each in called.instructions}

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
                kind = "reduce-scatter" if _is_scattered(one, computation) else one.opcode
                found.append(Site(kind, one, one, inputs, False, None))
            elif one.opcode in ("fusion", "call"):
                attribute = "calls" if one.opcode == "fusion" else "to_apply"
                found += self._called(self._module.called(one, attribute), depth + 1)
            if len(found) > CALLED_MAX:
                raise HloError(
                    f"line {computation.line}: a fusion with more than {CALLED_MAX} collectives"
                )
        self._inside[computation.name] = found
        return found


def _is_scattered(one: Instruction, computation: Computation) -> bool:
    """Whether a fusion of XLA for TPUs keeps only a slice of a sum."""
    root = computation.root
    return (
        one.opcode == "all-reduce"
        and computation.name.startswith("all-reduce-scatter")
        and root is not None
        and root.opcode == "dynamic-slice"
        and root.operands[:1] == (one.name,)
    )


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
        self.is_inexact = False  # whether a group does not fill axes of a torus
        torus = network.torus
        if torus is not None and torus.chips != devices.count:
            raise HloError(
                f"the program has {devices.count} devices, and the torus {torus} has "
                f"{torus.chips}: give the shape of its devices, --torus"
            )
        # By identity of the groups, which `devices` keeps, as comparing large groups takes long.
        self._spans: dict[tuple[int, str], list[tuple[int, int, Part | None]]] = {}

    def traffic(self, site: Site) -> Traffic:
        """Bytes that a device sends, and the time of the slowest group."""
        groups = self.devices.groups(site.inner, site.kind)
        given = sum(map(bytes_of_shape, site.inputs))
        size, sent, slowest = given, 0.0, (1, 1, 0.0)
        same = id(groups), site.kind
        if same not in self._spans:
            self._spans[same] = self._spans_of(groups, site.kind)
        for ranks, nodes, on_torus in self._spans[same]:
            whole = given * ranks if site.kind == "all-gather" else given
            part = (ranks - 1) / ranks
            factor = {"all-reduce": 2 * part, "collective-broadcast": 1.0}.get(site.kind, part)
            factor = 1.0 if KINDS[site.kind] == "send" else factor
            sent = max(sent, factor * whole)
            time_ns = self._time_ns(KINDS[site.kind], whole, ranks, nodes, on_torus)
            if time_ns > slowest[2]:
                size, slowest = whole, (ranks, nodes, time_ns)
        return Traffic(groups, size, sent, *slowest)

    def _time_ns(
        self, operation: str, whole: float, ranks: int, nodes: int, on_torus: Part | None
    ) -> float:
        if on_torus is not None:
            return on_torus.time_ns(self.network.between, operation, whole)
        return estimate(self.network, operation, whole, ranks, nodes=nodes).time_ns

    def _spans_of(self, groups: Groups, kind: str) -> list[tuple[int, int, Part | None]]:
        """(devices, nodes, part of a torus) of each kind of group of two devices or more."""
        each, torus = self.network.gpus_per_node, self.network.torus
        if torus is not None:
            return self._parts_of(torus, groups, kind)
        if kind == "send" and not groups and self.devices.count > 1:
            return [(2, min(self.network.nodes(self.devices.count), 2), None)]
        found = set()
        for one in groups:
            parts = Counter(device // each for device in set(one))
            found.add((parts.total(), len(parts)))
            self.is_uneven |= len(set(parts.values())) > 1
        return [(ranks, nodes, None) for ranks, nodes in sorted(found) if ranks > 1]

    def _parts_of(
        self, torus: Torus, groups: Groups, kind: str
    ) -> list[tuple[int, int, Part | None]]:
        """As _spans_of, on a torus."""
        if KINDS[kind] == "send":
            pairs = [part_of_pair(torus, *one) for one in groups if one[0] != one[1]]
            if not groups and self.devices.count > 1:
                pairs = [part_of_pair(torus, 0, 1)]
            return [(2, 1, max(pairs, key=lambda one: one.hops))] if pairs else []
        found: dict[Part, int] = {}
        for one in groups:
            part = part_of_group(torus, one)
            found[part] = max(found.get(part, 0), len(set(one)))
            self.is_inexact |= not part.is_exact
        return [(ranks, 1, part) for part, ranks in found.items() if ranks > 1]
