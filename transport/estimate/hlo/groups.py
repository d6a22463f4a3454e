"""Which devices take part in a collective: replica groups and pairs of an HLO program, expanded.

Groups are written as lists ({{0,1},{2,3}}), as a reshaped and transposed count of the devices
([2,4]<=[4,2]T(1,0)), or by axes of a mesh (mesh['x'=4,'y'=2] {'x'}). The forms, and what the
numbers mean with and without channel_id and use_global_device_ids, are those of XLA
(xla/hlo/ir/collective_device_list.h, xla/service/collective_ops_utils.h).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from math import prod
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from transport.estimate.hlo.text import HloError, Instruction, Module

# Global numbers of devices: replica times number of partitions, plus partition. Each group in the
# order in which it was written; for PAIRED operations, pairs of source and target.
Groups: TypeAlias = tuple[tuple[int, ...], ...]

DEVICES_MAX = 1 << 17
# Of these, replica groups without use_global_device_ids name replicas even with a channel.
REPLICAS_NAMED = {"all-reduce", "all-gather", "reduce-scatter"}
PAIRED = {"collective-permute", "send"}  # by pairs of source and target, not in groups

# Patterns of texts without blanks.
_LIST = re.compile(r"\{(?:\{[0-9,]*\},?)*\}")
_INNER = re.compile(r"\{([0-9,]*)\}")
_IOTA = re.compile(r"\[([0-9,]+)\]<=\[([0-9,]+)\](?:T\(([0-9,]+)\))?")
_MESH = re.compile(r"mesh\[([^\]]*)\](?:\{([^}]*)\})?")
_AXIS = re.compile(r"'([^']*)'=([0-9]{1,9})")
_PART = re.compile(r"'([^']*)'(?::\(([0-9]{1,9})\)([0-9]{1,9}))?")
_ORDER = re.compile(r"\((?:\[([0-9,]+)\]T\(([0-9,]+)\)|([0-9,]+))\)\{([^}]*)\}")
_PAIRS = re.compile(r"_xla_send_recv_source_target_pairs=\\?\"?(\{(?:\{[0-9,]*\},?)*\})")


class Devices:
    """The devices of a program, and the groups of its collectives.

    count: from the header or, if that has one device only, from the largest number in any group.
    """

    def __init__(self, module: Module, collectives: Iterable[Instruction]) -> None:
        self._partitions = module.partitions
        self._cache: dict[tuple[str, ...], Groups] = {}
        self.count = module.partitions * module.replicas
        self._is_said = self.count > 1
        if self.count > DEVICES_MAX:
            raise HloError(f"the program has {self.count} devices: at most {DEVICES_MAX} are read")
        if not self._is_said:
            numbers = [one for each in collectives for group in _written(each) for one in group]
            self.count = 1 + max(numbers, default=0)

    def groups(self, one: Instruction, kind: str) -> Groups:
        """The groups or pairs of a collective of a kind, such as all-reduce. HloError."""
        flags = (
            str("channel_id" in one.attributes),
            one.attributes.get("use_global_device_ids", ""),
            str(kind in REPLICAS_NAMED),
        )
        key = (*_texts(one), *flags)
        if key not in self._cache:
            self._cache[key] = self._expanded(one, kind)
        return self._cache[key]

    def _expanded(self, one: Instruction, kind: str) -> Groups:
        written = _written(one)
        if kind in PAIRED and not written:
            return ()
        parts, replicas = self._partitions, max(self.count // self._partitions, 1)
        has_channel = "channel_id" in one.attributes
        is_global = one.attributes.get("use_global_device_ids") == "true" or not self._is_said
        if is_global:
            found = written or (tuple(range(self.count)),)
        elif not has_channel:
            each = written or (tuple(range(replicas)),)
            found = tuple(tuple(r * parts + p for r in g) for g in each for p in range(parts))
        elif kind in REPLICAS_NAMED:
            each = written or (tuple(range(replicas)),)
            found = tuple(tuple(r * parts + p for r in g for p in range(parts)) for g in each)
        else:
            each = written or (tuple(range(parts)),)
            found = tuple(tuple(r * parts + p for p in g) for g in each for r in range(replicas))
        self._check(one, kind, found)
        return found

    def _check(self, one: Instruction, kind: str, groups: Groups) -> None:
        members = [device for group in groups for device in group]
        if any(device >= self.count for device in members):
            raise HloError(
                f"line {one.line}: device {max(members)} of {one.name}: the program has "
                f"{self.count} devices"
            )
        if kind in PAIRED:
            sources = [group[0] for group in groups]
            if any(len(group) != 2 for group in groups) or len(set(sources)) < len(sources):
                raise HloError(f"line {one.line}: {one.name} has wrong pairs of source and target")
        elif len(set(members)) < len(members):
            raise HloError(f"line {one.line}: a device is in two groups of {one.name}")


def _texts(one: Instruction) -> tuple[str, str]:
    """The text of the groups or pairs, and that of the order of a mesh's devices."""
    attributes = {name: "".join(text.split()) for name, text in one.attributes.items()}
    pairs = attributes.get("source_target_pairs")
    if pairs is None and "frontend_attributes" in attributes:
        match = _PAIRS.search(attributes["frontend_attributes"])
        pairs = match[1] if match is not None else ""
    if pairs is not None:
        return pairs, ""
    return attributes.get("replica_groups", ""), attributes.get("device_ids", "")


def _written(one: Instruction) -> Groups:
    """The groups as the text has them; (): all devices."""
    text, order = _texts(one)
    try:
        if text in ("", "{}", "{{}}"):
            return ()
        if text.startswith("{"):
            return _of_list(text)
        if text.startswith("mesh"):
            return _of_mesh(text, order)
        return _of_iota(text)
    except ValueError as error:
        reason = str(error) or "the form is not known"
        raise HloError(f"line {one.line}: groups of {one.name}: {reason}: {text[:60]!r}") from None


def _of_list(text: str) -> Groups:
    if _LIST.fullmatch(text) is None:
        raise ValueError
    found = tuple(tuple(_numbers(group)) for group in _INNER.findall(text, 1))
    if any(not group for group in found):
        raise ValueError("a group is empty")
    return found


def _of_iota(text: str) -> Groups:
    match = _IOTA.fullmatch(text)
    if match is None:
        raise ValueError
    shape, reshaped = _numbers(match[1]), _numbers(match[2])
    if len(shape) != 2:
        raise ValueError("expected [groups,devices]")
    devices = _counted(reshaped)
    if match[3] is not None:
        devices = _transposed(devices, _numbers(match[3]))
    if prod(shape) != devices.size:
        raise ValueError("the sizes do not agree")
    return _groups(devices.reshape(shape))


def _of_mesh(text: str, order: str) -> Groups:
    """Groups of the devices that differ in the named axes of a mesh only.

    An axis may be split: 'x':(2)4 is the part of 4 of an axis x, behind a part of 2.
    """
    match = _MESH.fullmatch(text)
    if match is None:
        raise ValueError
    axes = [_AXIS.fullmatch(one) for one in match[1].split(",") if one]
    sizes = {one[1]: int(one[2]) for one in axes if one is not None}
    if None in axes or len(sizes) < len(axes):
        raise ValueError
    devices = _counted(list(sizes.values())).reshape(-1)
    named = match[2]
    if order:
        ordered = _ORDER.fullmatch(order)
        if ordered is None or named is not None:
            raise ValueError
        named = ordered[4]
        devices = _reordered(devices.size, ordered[1], ordered[2], ordered[3])
    if named is None:
        raise ValueError
    return _by_axes(devices, sizes, [one for one in named.split(",") if one])


def _reordered(count: int, sizes: str | None, axes: str | None, listed: str) -> NDArray[np.int64]:
    """The order of a mesh's devices: ([2,4]T(1,0)) or (0,2,1,3)."""
    if sizes is not None and axes is not None:
        found = _transposed(_counted(_numbers(sizes)), _numbers(axes)).reshape(-1)
    else:
        found = np.array(_numbers(listed), np.int64)
    if found.size != count:
        raise ValueError("the mesh has another number of devices")
    return found


def _by_axes(devices: NDArray[np.int64], sizes: dict[str, int], named: list[str]) -> Groups:
    cuts: dict[str, list[tuple[int, int]]] = {axis: [] for axis in sizes}
    wanted: list[tuple[str, int]] = []
    for one in named:
        match = _PART.fullmatch(one)
        if match is None or match[1] not in sizes:
            raise ValueError("an axis is not in the mesh")
        before, size = (int(match[2]), int(match[3])) if match[2] else (1, sizes[match[1]])
        cuts[match[1]].append((before, size))
        wanted.append((match[1], before))
    dims: list[int] = []
    at: dict[tuple[str, int], int] = {}
    for axis, length in sizes.items():
        done = 1
        for before, size in sorted(cuts[axis]):
            if not before * size or before % done or length % (before * size):
                raise ValueError(f"axis {axis} has no such part")
            dims += [before // done, size]
            at[axis, before] = len(dims) - 1
            done = before * size
        dims.append(length // done)
    inner = [at[one] for one in wanted]
    outer = [one for one in range(len(dims)) if one not in set(inner)]
    if len(set(inner)) < len(inner):
        raise ValueError("an axis is named twice")
    members = prod(dims[one] for one in inner)
    return _groups(devices.reshape(dims).transpose([*outer, *inner]).reshape(-1, members))


def _counted(sizes: list[int]) -> NDArray[np.int64]:
    """The devices from 0 on, as an array of these sizes."""
    if len(sizes) > 32 or not 1 <= prod(sizes) <= DEVICES_MAX:
        raise ValueError(f"expected 1 to {DEVICES_MAX} devices")
    return np.arange(prod(sizes), dtype=np.int64).reshape(sizes)


def _transposed(devices: NDArray[np.int64], axes: list[int]) -> NDArray[np.int64]:
    if sorted(axes) != list(range(devices.ndim)):
        raise ValueError("wrong axes of a transposition")
    return devices.transpose(axes)


def _groups(devices: NDArray[np.int64]) -> Groups:
    return tuple(tuple(group) for group in devices.tolist())


def _numbers(text: str) -> list[int]:
    """Whole numbers that commas separate."""
    if not text:
        return []
    parts = text.removesuffix(",").split(",")
    if not all(re.fullmatch(r"[0-9]{1,9}", one) for one in parts):
        raise ValueError("expected numbers that commas separate")
    return [int(one) for one in parts]
