"""Collectives of an HLO program that do the same work twice: same kind, data and groups."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias

from transport.estimate.hlo.communication import Site
from transport.estimate.hlo.groups import Groups
from transport.estimate.hlo.shapes import NESTING_MAX, shape_text
from transport.estimate.hlo.text import Computation, Instruction, Module, number_of

# The instruction that made the data, and the elements that are taken of its tuple.
Origin: TypeAlias = tuple[str, tuple[int, ...]]

COPIES = {"copy", "opt-barrier", "copy-start", "copy-done", "add-dependency"}
# Operations whose result does not depend on the order of the devices in a group.
UNORDERED = {"all-reduce"}


@dataclass(frozen=True)
class Duplicate:
    """Collectives of one computation that one could replace. saved_*: of all executions.

    saved_ns: the time of the others, as if nothing hid them.
    """

    names: tuple[str, ...]
    operation: str
    times: int
    saved_bytes: float
    saved_ns: float


def equal_sites(
    sites: Iterable[tuple[Site, Groups]], within: Computation, module: Module
) -> list[list[Site]]:
    """The collectives of a computation that are equal, as lists of two or more."""
    origins = _origins(within, module)
    found: dict[tuple[object, ...], list[Site]] = {}
    numbers: dict[Groups, int] = {}  # equal groups have one number
    numbered: dict[tuple[int, str], int] = {}  # by identity, as comparing large groups takes long
    for site, groups in sites:
        if site.at is not site.inner or site.kind == "send":
            continue
        same = id(groups), site.kind
        if same not in numbered:
            numbered[same] = numbers.setdefault(_sorted(groups, site.kind), len(numbers))
        attributes = site.inner.attributes
        key = (
            *(site.kind, tuple(origins[name] for name in site.at.operands), numbered[same]),
            *(tuple(map(shape_text, site.inputs)), attributes.get("dimensions")),
            *(attributes.get("split_dimension"), _reduction(site.inner, module)),
        )
        found.setdefault(key, []).append(site)
    return [each for each in found.values() if len(each) > 1]


def _sorted(groups: Groups, kind: str) -> Groups:
    if kind in UNORDERED:
        groups = tuple(tuple(sorted(one)) for one in groups)
    return tuple(sorted(groups))


def _reduction(one: Instruction, module: Module) -> str:
    """The operation of a reduction, such as add or maximum."""
    body = module.computations.get(one.attributes.get("to_apply", "").removeprefix("%"))
    return "" if body is None or body.root is None else body.root.opcode


def _origins(within: Computation, module: Module) -> dict[str, Origin]:
    """Name of each instruction -> where its data was made, behind copies."""
    origins: dict[str, Origin] = {}
    for one in within.instructions:
        origin: Origin = one.name, ()
        if one.operands and _is_copy(one, module):
            origin = origins[one.operands[0]]
        elif one.operands and one.opcode == "get-tuple-element":
            name, elements = origins[one.operands[0]]
            place = number_of(one.attributes.get("index", ""))
            parts = within.named[name].operands
            if place is not None and len(elements) < NESTING_MAX:
                origin = name, (*elements, place)
                if within.named[name].opcode == "tuple" and not elements and place < len(parts):
                    origin = origins[parts[place]]
        origins[one.name] = origin
    return origins


def _is_copy(one: Instruction, module: Module) -> bool:
    """Whether an instruction only copies its first operand, maybe to another layout."""
    if one.opcode != "fusion" or len(one.operands) > 1:
        return one.opcode in COPIES
    body = module.called(one, "calls")
    root = body.root
    if root is None or root.opcode != "copy" or not root.operands:
        return False
    return body.named[root.operands[0]].opcode == "parameter"
