"""What an XLA program communicates, and how much of it is or could be hidden by computation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from transport.estimate.gpus import Gpu
from transport.estimate.hlo.communication import (
    KINDS,
    Site,
    Sites,
    Traffic,
    Wire,
    called_by,
)
from transport.estimate.hlo.costs import FUSIONS, Costs
from transport.estimate.hlo.duplicates import Duplicate, equal_sites
from transport.estimate.hlo.groups import Devices, Groups
from transport.estimate.hlo.loops import trips_of
from transport.estimate.hlo.schedule import Step, relate, run
from transport.estimate.hlo.shapes import Shape, bits_of, shape_text
from transport.estimate.hlo.text import (
    Computation,
    HloError,
    Instruction,
    Module,
    check_depth,
)
from transport.estimate.networks import Network
from transport.ground.units import counted, percent

TIMES_MAX = 1 << 62
WIDE = {"f32", "f64", "c64", "c128"}
# In configurations and targets of custom calls: partitions of loops for threads, and libraries.
CPU_MARKS = ("outer_dimension_partitions", "__ynn", "__onednn", "__eigen")
NAMES_SHOWN_MAX = 6  # in one note


@dataclass(frozen=True)
class Collective:
    """A collective of the program.

    times: executions in one run of the program. Other numbers are of one execution: size_bytes as
    nccl-tests count it; sent_bytes of the device that sends most; ranks, nodes of the group that
    takes longest. hidden_ns, exposed_ns, hideable_ns (of the exposed time, by another order of
    instructions, at most): None: not judged.
    """

    name: str
    operation: str
    computation: str
    line: int
    shape: str
    groups: Groups
    times: int
    is_async: bool
    size_bytes: int
    sent_bytes: float
    ranks: int
    nodes: int
    time_ns: float
    hidden_ns: float | None
    exposed_ns: float | None
    hideable_ns: float | None


@dataclass(frozen=True)
class Totals:
    """Times of one run of the program. hideable_ns: None: not judged.

    not_judged_ns: of collectives whose end is not known.
    """

    computation_ns: float
    communication_ns: float
    hidden_ns: float
    exposed_ns: float
    hideable_ns: float | None
    not_judged_ns: float
    sent_bytes: float

    @property
    def step_ns(self) -> float:
        return self.computation_ns + self.exposed_ns


@dataclass(frozen=True)
class Program:
    """The communication of a program, in the order of the text. flops: of products, by type."""

    name: str
    devices: int
    nodes: int
    collectives: tuple[Collective, ...]
    duplicates: tuple[Duplicate, ...]
    totals: Totals
    flops: dict[str, int]
    notes: tuple[str, ...]


@dataclass
class _Part:
    """A computation, executed once. calls: (computation, times) of those that it calls.

    runs: how often the innermost of them runs.
    """

    runs: int = 1
    compute_ns: float = 0.0
    communication_ns: float = 0.0
    hideable_ns: float | None = 0.0
    flops: Counter[str] = field(default_factory=Counter)
    found: list[tuple[Site, Traffic, Step]] = field(default_factory=list)
    equal: list[list[Site]] = field(default_factory=list)
    calls: list[tuple[str, int]] = field(default_factory=list)


class _Reader:
    """Reads the computations of a module that are executed, each once."""

    def __init__(self, module: Module, network: Network, gpu: Gpu) -> None:
        self.module = module
        self.costs = Costs(module, gpu)
        self.sites = Sites(module)
        every = [
            one
            for each in module.computations.values()
            for one in each.instructions
            if one.opcode.removesuffix("-start") in KINDS
        ]
        self.devices = Devices(module, every)
        self.wire = Wire(network, self.devices)
        self.parts: dict[str, _Part] = {}
        self.order: list[str] = []  # each computation behind those that it calls
        # For notes: loops and branches that are not known, computations that are too large.
        self.uncounted: list[str] = []
        self.branched: list[str] = []
        self.unrelated: list[str] = []

    def part(self, computation: Computation, depth: int = 0) -> _Part:
        if computation.name in self.parts:
            return self.parts[computation.name]
        check_depth(computation, depth)
        part = _Part()
        costs_ns = [self._cost(one, computation, part, depth) for one in computation.instructions]
        part.compute_ns = sum(costs_ns)
        places = {one.name: place for place, one in enumerate(computation.instructions)}
        for site in self.sites.of(computation):
            traffic = self.wire.traffic(site)
            begin = places[site.at.name]
            end = begin if not site.is_async else places[site.done.name] if site.done else None
            part.found.append((site, traffic, Step(begin, end, traffic.time_ns)))
            part.communication_ns += traffic.time_ns
        steps = [step for _, _, step in part.found]
        run(steps, costs_ns)
        beside_ns = relate(steps, costs_ns, computation)
        could_ns = sum(step.hideable_ns or 0.0 for step in steps)
        hidden_ns = sum(step.hidden_ns or 0.0 for step in steps)
        if beside_ns is None:
            self.unrelated.append(computation.name)
        part.hideable_ns = (
            None if beside_ns is None else min(could_ns, max(beside_ns - hidden_ns, 0.0))
        )
        known = [(site, traffic.groups) for site, traffic, _ in part.found]
        part.equal = equal_sites(known, computation, self.module)
        self.parts[computation.name] = part
        self.order.append(computation.name)
        return part

    def _cost(self, one: Instruction, within: Computation, part: _Part, depth: int) -> float:
        """The computation of an instruction, with that of the computations that it executes."""
        called = self._called(one, within, depth)
        total_ns = 0.0
        for computation, times in called:
            inner = self.part(computation, depth + 1)
            part.calls.append((computation.name, times))
            part.runs = max(part.runs, times * inner.runs)
            if part.runs > TIMES_MAX:
                raise HloError(f"line {one.line}: {one.name} runs a part more than 2^62 times")
            part.communication_ns += times * inner.communication_ns
            part.flops.update({kind: times * count for kind, count in inner.flops.items()})
            total_ns += times * inner.compute_ns
        if called or one.opcode.removesuffix("-start") in KINDS or self.sites.within(one):
            return total_ns + self._beside_ns(one, within, part)
        part.flops.update(self.costs.flops(one, within))
        return self.costs.ns(one, within)

    def _beside_ns(self, one: Instruction, within: Computation, part: _Part) -> float:
        """The products of a fusion that computes beside a collective; it passes its data on."""
        if not self.sites.computes_beside(one, within):
            return 0.0
        flops = self.costs.flops(one, within)
        part.flops.update(flops)
        return self.costs.products_ns(flops)

    def _called(
        self, one: Instruction, within: Computation, depth: int
    ) -> list[tuple[Computation, int]]:
        """The computations that an instruction executes, and how often."""
        if one.opcode == "while":
            trips = trips_of(one, within, self.module)
            body, test = (self.module.called(one, name) for name in ("body", "condition"))
            if trips is None:
                self.uncounted.append(one.name)
                return [(body, 1), (test, 1)]
            return [(body, trips), (test, trips + 1)]
        if one.opcode == "call":
            return [(self.module.called(one, "to_apply"), 1)]
        if one.opcode == "conditional":
            return [(self._branch(one, depth), 1)]
        attribute = "" if one.opcode in FUSIONS or self.sites.within(one) else called_by(one)
        return [(self.module.called(one, attribute), 1)] if attribute else []

    def _branch(self, one: Instruction, depth: int) -> Computation:
        """The branch that communicates longest or, if none does, computes longest."""
        names = one.attributes.get("branch_computations", "").strip("{}").split(",")
        if "true_computation" in one.attributes:
            names = [one.attributes.get(f"{way}_computation", "") for way in ("true", "false")]
        branches = [self.module.computation(name.strip().removeprefix("%"), one) for name in names]
        parts = [self.part(each, depth + 1) for each in branches]
        sizes = [(each.communication_ns, each.compute_ns) for each in parts]
        if any(each != sizes[0] for each in sizes):
            chosen = branches[sizes.index(max(sizes))]
            self.branched.append(f"{one.name} ({chosen.name})")
            return chosen
        return branches[0]

    def times(self) -> dict[str, int]:
        """How often each computation is executed in one run of the program."""
        times = Counter({self.module.entry.name: 1})
        for name in reversed(self.order):
            for called, count in self.parts[name].calls:
                times[called] += times[name] * count
                if times[called] > TIMES_MAX:
                    raise HloError(f"computation {called} runs more than 2^62 times")
        return times


def program_of(module: Module, network: Network, gpu: Gpu) -> Program:
    """The communication of a program on a network, and the computation of a GPU beside it.

    Devices fill nodes in the order of their numbers. HloError: a part of the program is wrong.
    """
    reader = _Reader(module, network, gpu)
    reader.part(module.entry)
    times = reader.times()
    executed = [(reader.parts[name], times[name], name) for name in reader.order if times[name]]
    collectives = [
        _collective(site, traffic, step, count, name)
        for part, count, name in executed
        for site, traffic, step in part.found
    ]
    totals = _totals(collectives, reader.parts[module.entry.name].compute_ns)
    parts_ns = [(count, part.hideable_ns) for part, count, _ in executed]
    if any(ns is None for _, ns in parts_ns):
        totals = replace(totals, hideable_ns=None)
    else:
        could_ns = sum(count * (ns or 0.0) for count, ns in parts_ns)
        totals = replace(totals, hideable_ns=min(could_ns, totals.exposed_ns))
    flops = dict(reader.parts[module.entry.name].flops)
    return Program(
        module.name,
        reader.devices.count,
        network.nodes(reader.devices.count),
        tuple(sorted(collectives, key=lambda one: one.line)),
        tuple(_duplicates(executed)),
        totals,
        flops,
        (*_notes(reader, collectives), *_notes_on_computation(reader, flops)),
    )


def _collective(site: Site, traffic: Traffic, step: Step, times: int, within: str) -> Collective:
    return Collective(
        site.at.name,
        site.kind,
        within,
        site.at.line,
        shape_text(_shape(site)),
        traffic.groups,
        times,
        site.is_async,
        traffic.size_bytes,
        traffic.sent_bytes,
        traffic.ranks,
        traffic.nodes,
        traffic.time_ns,
        step.hidden_ns,
        step.exposed_ns,
        step.hideable_ns,
    )


def _totals(collectives: list[Collective], computation_ns: float) -> Totals:
    def total_ns(name: str) -> float:
        return sum((one.times * (getattr(one, name) or 0.0) for one in collectives), 0.0)

    return Totals(
        computation_ns,
        total_ns("time_ns"),
        total_ns("hidden_ns"),
        total_ns("exposed_ns"),
        total_ns("hideable_ns"),
        sum((one.times * one.time_ns for one in collectives if one.exposed_ns is None), 0.0),
        sum((one.times * one.sent_bytes for one in collectives), 0.0),
    )


def _duplicates(executed: list[tuple[_Part, int, str]]) -> Iterator[Duplicate]:
    for part, times, _ in executed:
        traffic = {site.at.name: each for site, each, _ in part.found}
        for sites in part.equal:
            others = [traffic[site.at.name] for site in sites[1:]]
            yield Duplicate(
                tuple(site.at.name for site in sites),
                sites[0].kind,
                times,
                times * sum(one.sent_bytes for one in others),
                times * sum(one.time_ns for one in others),
            )


def _notes(reader: _Reader, collectives: list[Collective]) -> Iterator[str]:
    if reader.uncounted:
        yield f"trip count unknown: counted once: {_few(reader.uncounted)}"
    if reader.branched:
        yield f"counted with the largest branch: {_few(reader.branched)}"
    if reader.unrelated:
        yield f"too large to say what another order could hide: {_few(reader.unrelated)}"
    if not reader.module.is_scheduled:
        yield (
            "the program is not scheduled (is_scheduled): it is not what runs, and the order of "
            "its text stands for the schedule: take compile().as_text()"
        )
    if reader.module.partitions * reader.module.replicas == 1 < reader.devices.count:
        yield f"the header names one device: {reader.devices.count} by the numbers in groups"
    if any(one.exposed_ns is None for one in collectives):
        yield "?: not judged: no instruction of the same computation waits for it"
    if any(one.operation == "ragged-all-to-all" for one in collectives):
        yield "sizes of ragged-all-to-all are known at run time only: counted with all of its input"
    if reader.wire.is_uneven:
        yield "groups with unequal parts in their nodes are estimated as if the parts were equal"
    if (torus := reader.wire.network.torus) is not None:
        yield (
            f"device numbers run along the axes of the torus {torus}, the first one first: the "
            "last axis of a mesh lies along its first axes"
        )
    if reader.wire.is_inexact:
        yield (
            "groups that do not fill axes of the torus count with the smallest part that has all "
            "of their devices; other groups that share its links are not in the times"
        )
    if any(one.operation == "send" and not one.groups for one in collectives):
        yield "a send without pairs of source and target is estimated as one between nodes"
    if _is_for_cpu(reader):
        yield (
            "compiled for the CPU: gradients are all-reduces where XLA for GPUs and TPUs makes "
            "reduce-scatters, bf16 is gathered and summed as f32, and all collectives are "
            "synchronous: bytes are up to 4 times too many and nothing is hidden. Compile for the "
            "target, which also works without it: devices of jax.experimental.topologies."
            "get_topology_desc in the mesh, then jax.jit(f).lower(...).compile().as_text()"
        )


def _notes_on_computation(reader: _Reader, flops: dict[str, int]) -> Iterator[str]:
    if reader.costs.unknown:
        yield (
            "custom calls whose operations are not known count with their bytes: "
            + _few(sorted(reader.costs.unknown))
        )
    if broken := Counter(kind for kind, _, _ in reader.costs.broken):
        kinds = ", ".join(counted(count, kind) for kind, count in sorted(broken.items()))
        names = _few(sorted({name for _, _, name in reader.costs.broken}))
        yield (
            f"{kinds} not understood (the dimension numbers do not fit the operands): their FLOPs "
            f"are missing: {names}"
        )
    total = sum(flops.values())
    wide = sum(count for kind, count in flops.items() if kind in WIDE)
    narrow = sum(count for kind, count in flops.items() if bits_of(kind) <= 8)
    if wide:
        yield (
            f"{percent(wide / total, 0)} of FLOPs are of 32 bits or more: they take longer than "
            "estimated, as the GPU's rate is that of bf16"
        )
    if narrow:
        yield (
            f"{percent(narrow / total, 0)} of FLOPs are of 8 bits or less: they may take half as "
            "long as estimated, as the GPU's rate is that of bf16"
        )


def _is_for_cpu(reader: _Reader) -> bool:
    """Whether XLA's backend for CPUs wrote the program, by what only it writes."""
    if any("promoted" in one.attributes.get("to_apply", "") for one in _inner(reader)):
        return True
    return any(
        mark in one.attributes.get("backend_config", "")
        or mark in one.attributes.get("custom_call_target", "")
        for computation in reader.module.computations.values()
        for one in computation.instructions
        for mark in CPU_MARKS
    )


def _few(names: list[str]) -> str:
    """The first names, and whether there are more."""
    return ", ".join(names[:NAMES_SHOWN_MAX]) + ", ..." * (len(names) > NAMES_SHOWN_MAX)


def _inner(reader: _Reader) -> Iterator[Instruction]:
    return (site.inner for part in reader.parts.values() for site, _, _ in part.found)


def _shape(site: Site) -> Shape:
    """The shape of the result or, if that is not known, of the input."""
    if site.done is not None and site.kind != "send":
        return site.done.shape
    if not site.is_async:
        return site.inner.shape
    return site.inputs[0] if len(site.inputs) == 1 else site.inputs
