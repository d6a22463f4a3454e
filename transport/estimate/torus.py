"""Collectives on a torus or mesh, whose accelerators have links to their neighbours only.

All-reduce, all-gather and reduce-scatter run as bidirectional rings on every axis at once: the
data is split among the orders in which the axes can follow each other, so that all links carry
equal shares ("How to Scale Your Model", jax-ml.github.io/scaling-book, parts 2 and 3). All-to-all
is limited by the links that the messages pass, as in Jouppi et al., "TPU v4" (ISCA 2023).
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from transport.estimate.collectives import Estimate, ShapeError, Terms
from transport.estimate.names import matched
from transport.estimate.networks import Link
from transport.estimate.twisted import CHIPS_MAX as TWISTED_MAX, is_possible, loads

AXES = "xyzw"
CHIPS_MAX = 1 << 20
OPERATIONS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send")
ROUNDS = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1}  # passes of the data on rings
_SHAPE = re.compile(r"(\d{1,7}(?:x\d{1,7}){0,3})(?:(:twisted)|(:open)(?:=([xyzw](?:,[xyzw])*))?)?")


@dataclass(frozen=True)
class Axis:
    """A line of accelerators. is_closed: its ends are linked, too, so that it is a ring."""

    name: str
    length: int
    is_closed: bool = True

    @property
    def ways(self) -> int:
        """Links by which an accelerator at the end of the axis sends along it."""
        if self.length < 2:
            return 0
        # Two neighbours have one link, whether the axis is closed or not.
        return 2 if self.is_closed and self.length > 2 else 1

    @property
    def hops(self) -> int:
        """Hops between the accelerators that are farthest apart."""
        return self.length // 2 if self.ways == 2 else self.length - 1

    @property
    def crossing(self) -> float:
        """What the busiest link carries of an all-to-all, in parts of what each sends to all.

        Open: of the middle link's two sides, each sends to the other one. Closed: the mean number
        of hops, over two ways.
        """
        half, other = self.length // 2, (self.length + 1) // 2
        return half * other / self.length / (2 if self.ways == 2 else 1)


@dataclass(frozen=True)
class Torus:
    """The axes, of which a collective may use some: it then runs in each line along them.

    is_twisted: wrap-around links of short axes also lead along the long ones (twisted.py).
    """

    axes: tuple[Axis, ...]
    is_twisted: bool = False

    @property
    def chips(self) -> int:
        return math.prod(one.length for one in self.axes)

    @property
    def hops(self) -> int:
        """Hops between the accelerators that are farthest apart."""
        if self.is_twisted:
            return self._loads[1]
        return sum(one.hops for one in self.axes)

    @property
    def crossing(self) -> float:
        """What the busiest link carries of an all-to-all, in parts of what each sends to all."""
        if self.is_twisted:
            return self._loads[0]
        return max(one.crossing for one in self.axes)

    @property
    def _loads(self) -> tuple[float, int]:
        return loads(tuple(one.length for one in self.axes))

    def along(self, names: str) -> Torus:
        """The torus of some axes, given as "x" or "x,y". ShapeError: it has no such axis."""
        if self.is_twisted:
            raise ShapeError(f"axes: {names}: the axes of a twisted torus cannot be used alone")
        found = {one.name: one for one in self.axes}
        chosen = [one.strip().lower() for one in names.split(",")]
        if not set(chosen) <= set(found) or len(set(chosen)) < len(chosen):
            raise ShapeError(f"axes: {names}: must be different ones of {','.join(found)}")
        return Torus(tuple(found[name] for name in chosen))

    def __str__(self) -> str:
        lengths = "x".join(str(one.length) for one in self.axes)
        opened = [one.name for one in self.axes if not one.is_closed]
        if self.is_twisted:
            return f"{lengths}:twisted"
        if not opened:
            return lengths
        return f"{lengths}:open" + (f"={','.join(opened)}" if len(opened) < len(self.axes) else "")


def parsed(text: str) -> Torus:
    """The torus of a text: 4x4x8, 4x4x8:open (a mesh), 4x4x8:open=z or 4x4x8:twisted.

    ShapeError: what is wrong, in one line.
    """
    match = _SHAPE.fullmatch(text.strip().lower())
    if match is None:
        raise ShapeError(
            f"torus: {text}: give up to 4 lengths, such as 4x4x8, and :open or :open=z for axes "
            "without wrap-around, or :twisted"
        )
    lengths = [int(one) for one in match[1].split("x")]
    names = AXES[: len(lengths)]
    opened = match[4].split(",") if match[4] else list(names if match[3] else "")
    if not set(opened) <= set(names):
        raise ShapeError(f"torus: {text}: its axes are {','.join(names)}")
    torus = Torus(
        tuple(Axis(*each, each[0] not in opened) for each in zip(names, lengths, strict=True)),
        is_twisted=match[2] is not None,
    )
    if not 1 <= torus.chips <= CHIPS_MAX:
        raise ShapeError(f"torus: {text}: {torus.chips:,} accelerators: give 1 to {CHIPS_MAX:,}")
    if torus.is_twisted and not (is_possible(lengths) and torus.chips <= TWISTED_MAX):
        raise ShapeError(
            f"torus: {text}: a twisted torus has the lengths k, k, 2k or k, 2k, 2k, with k of 3 or "
            f"more, and at most {TWISTED_MAX:,} accelerators"
        )
    return torus


def part_of(torus: Torus, ranks: int, stride: int) -> Torus:
    """The part of a torus that a group of accelerators is: `ranks`, each `stride` after the other.

    They are numbered along the first axis, then along the next one. A group has whole axes, and of
    the last one a part, which is open. ShapeError: it skips accelerators of an axis, or has no
    such shape.
    """
    left, axes = ranks, []
    for axis in torus.axes:
        if stride > 1:
            if stride % axis.length:
                break
            stride //= axis.length
        elif left > 1 and left % axis.length == 0:
            axes.append(axis)
            left //= axis.length
        elif left > 1 and axis.length % left == 0:
            axes.append(Axis(axis.name, left, is_closed=False))
            left = 1
    if stride > 1 or left > 1 or torus.is_twisted:
        raise ShapeError(
            f"torus: {torus}: {ranks} accelerators that share data do not fill its axes: give "
            "another shape, the axes of tensor parallel ones first, not twisted"
        )
    return Torus(tuple(axes) or (Axis(AXES[0], 1),))


def terms(torus: Torus, operation: str, size_bytes: float) -> Terms:
    """The hops that wait for each other, and the bytes that the busiest link carries one way.

    size_bytes: as for collectives.terms; a send goes to a neighbour.
    """
    if operation not in OPERATIONS:
        raise ShapeError(f"no {operation} on a torus: known are {', '.join(OPERATIONS)}")
    chips, ways = torus.chips, sum(one.ways for one in torus.axes)
    if chips == 1:
        return Terms(0, 0, 0, 0)
    if operation == "send":
        return Terms(1, 0, size_bytes, 0)
    if operation == "all_to_all":
        return Terms(torus.hops, 0, size_bytes * torus.crossing, 0)
    rounds = ROUNDS[operation]
    return Terms(rounds * torus.hops, 0, rounds * size_bytes * (chips - 1) / chips / ways, 0)


def check_link(name: str, link: Link) -> None:
    """ShapeError: the link leads to a switch: its rate is that of all links of an accelerator."""
    if not link.is_of_torus:
        raise ShapeError(
            f"{name} leads to a switch: give a link between neighbours of a torus, such as tpu-v4, "
            "or one of your own (--links-file, latency = torus)"
        )


def estimate(torus: Torus, link: Link, operation: str, size_bytes: float) -> Estimate:
    """The time of an operation among all accelerators of a torus. link: one to a neighbour."""
    operation = matched(operation, OPERATIONS)
    need = terms(torus, operation, size_bytes)
    made = []
    for protocol in link.protocols:
        waits = torus.chips > 1
        latency_ns = (protocol.base_ns + need.inside_steps * protocol.step_ns) * waits
        bytes_ns = need.inside_bytes / (link.bytes_per_s * protocol.share) * 1e9
        made.append(
            Estimate(
                operation,
                "axes",
                protocol.name,
                size_bytes,
                torus.chips,
                latency_ns + bytes_ns,
                latency_ns,
                bytes_ns,
                need,
                "latency" if latency_ns > bytes_ns else "links",
            )
        )
    return min(made, key=lambda one: one.time_ns)
