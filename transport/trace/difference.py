"""Compares two traces: the cells of their matrices, and their operations."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from transport.trace.matrix import Matrix
from transport.trace.profile import Profile


@dataclass(frozen=True, slots=True)
class Change:
    """One of the numbers that are compared, such as the bytes of a matrix cell, in both traces.

    share_before, share_after: the number divided by the sum of all compared numbers of its trace.
    ratio: after divided by before; None: before is 0, or one of them is not wholly known.
    unknown: whether the trace before, or after, does not tell the number, or only a part of it.
    """

    what: tuple[str, ...]
    before: float
    after: float
    share_before: float
    share_after: float
    unknown: tuple[bool, bool] = (False, False)

    @property
    def ratio(self) -> float | None:
        return self.after / self.before if self.before and not any(self.unknown) else None

    @property
    def share_change(self) -> float:
        return self.share_after - self.share_before


Unknown = Callable[[tuple[str, ...]], bool]  # whether the number of this name is unknown


def _known(what: tuple[str, ...]) -> bool:
    return False


def changes(
    before: Mapping[tuple[str, ...], float],
    after: Mapping[tuple[str, ...], float],
    unknown: tuple[Unknown, Unknown] = (_known, _known),
) -> list[Change]:
    """Compares named numbers of two traces, such as the bytes of each cell of a matrix.

    unknown: of the trace before and after, which numbers are unknown, or only known in part.
    Sorted by how much a number's share of the total changed, most first.
    """
    totals = sum(before.values()) or 1.0, sum(after.values()) or 1.0
    found = []
    for what in {**before, **after}:
        a, b = before.get(what, 0.0), after.get(what, 0.0)
        vague = unknown[0](what), unknown[1](what)
        found.append(Change(what, a, b, a / totals[0], b / totals[1], vague))
    return sorted(found, key=lambda one: (-abs(one.share_change), -abs(one.after - one.before)))


def cells(matrix: Matrix) -> dict[tuple[str, ...], float]:
    """(label of the sender, of the receiver) -> value."""
    return {
        (matrix.labels[a], matrix.labels[b]): value
        for a, b, value in zip(
            matrix.sources.tolist(), matrix.targets.tolist(), matrix.values.tolist(), strict=True
        )
    }


def unknown_cells(matrix: Matrix) -> Unknown:
    """Whether a cell's value is unknown, by its labels."""
    groups = [{matrix.labels[row] for row in group} for group in matrix.unknown]
    return lambda what: any(what[0] in one and what[1] in one for one in groups)


def unknown_operations(profile: Profile, of: str) -> Unknown:
    """Whether the attribute of some calls is unknown, by the keys of operations()."""
    found = {
        (one.function, one.algorithm, one.protocol, one.datatype)
        for one in profile.operations
        if getattr(one, of) is None or (of == "bytes" and one.unsized)
    }
    return found.__contains__


def operations(profile: Profile, of: str) -> dict[tuple[str, ...], float]:
    """(function, algorithm, protocol, datatype) -> an attribute such as time_ns."""
    return {
        (one.function, one.algorithm, one.protocol, one.datatype): float(getattr(one, of) or 0)
        for one in profile.operations
    }


def labels_differ(before: Matrix, after: Matrix) -> str:
    """Text about how the rows of the two matrices differ; "": they are equal."""
    if before.what != after.what:
        return f"the first matrix is by {before.what}, the second by {after.what}"
    only = [_only(before.labels, after.labels), _only(after.labels, before.labels)]
    if not any(only):
        return ""
    return f"{only[0]} rows are only in the first trace, {only[1]} only in the second"


def _only(these: Sequence[str], those: Sequence[str]) -> int:
    return len(set(these) - set(those))
