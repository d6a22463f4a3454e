"""Which ranks the process groups of a graph have: of a file, or by their number of ranks."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transport.estimate.hlo.groups import DEVICES_MAX, Groups
from transport.estimate.hlo.text import HloError

FILE_BYTES_MAX = 16 << 20
WORLD = "0"  # name of the default process group in PyTorch
EXPECTED = 'expected {"name of a group": [ranks]}'
NAME_SHOWN_MAX = 40
NAMES_SHOWN_MAX = 8


class Members:
    """Ranks of process groups by name. devices: of the job; None: not given.

    `notes` says what was assumed.
    """

    def __init__(self, devices: int | None = None, named: Mapping[str, Groups] | None = None):
        self._named = dict(named or {})
        self._sizes: dict[str, int] = {}
        self._used: set[str] = set()
        self._given = devices
        self.notes: dict[str, None] = {}
        for name, groups in self._named.items():
            self._check(1 + max(max(group) for group in groups), f"group {name[:NAME_SHOWN_MAX]}")

    @property
    def devices(self) -> int:
        """Ranks of the job, at least those that groups name."""
        listed = [1 + max(group) for groups in self._named.values() for group in groups]
        return self._given or max([*listed, *self._sizes.values()], default=1)

    def sized(self, name: str, size: object, where: str) -> None:
        """Notes the size of a group, which an operation states."""
        if type(size) is not int or not 1 <= size <= DEVICES_MAX:
            raise HloError(f"{where}: a group of {str(size)[:20]} ranks: 1 to {DEVICES_MAX}")
        if self._sizes.setdefault(name, size) != size:
            raise HloError(
                f"{where}: group {name[:NAME_SHOWN_MAX]!r} has {size} ranks here and "
                f"{self._sizes[name]} elsewhere"
            )
        listed = {len(group) for group in self._named.get(name, ())} - {size}
        if listed:
            raise HloError(
                f"{where}: group {name[:NAME_SHOWN_MAX]!r} has {size} ranks here and "
                f"{min(listed)} in --groups: correct the file"
            )
        self._check(size, f"group {name[:NAME_SHOWN_MAX]!r}")

    def all_notes(self) -> list[str]:
        """What was assumed, and the groups of the file that nothing used."""
        unused = [repr(name[:NAME_SHOWN_MAX]) for name in self._named if name not in self._used]
        if not unused:
            return list(self.notes)
        more = ", ..." * (len(unused) > NAMES_SHOWN_MAX)
        names = ", ".join(unused[:NAMES_SHOWN_MAX]) + more
        return [*self.notes, f"no collective uses these groups of --groups: {names}"]

    def _check(self, least: int, what: str) -> None:
        if self._given is not None and least > self._given:
            raise HloError(f"{what} needs {least} devices, and --devices is {self._given}")

    def text(self, name: str, where: str) -> str:
        """The groups as HLO text has them, such as {{0,1},{2,3}}."""
        return _text(self._groups(name, where))

    def _groups(self, name: str, where: str) -> Groups:
        self._used.add(name)
        if name in self._named:
            return self._named[name]
        shown, devices = repr(name[:NAME_SHOWN_MAX]), self.devices
        size = self._sizes.get(name)
        if size is None and self._given is None:
            raise HloError(
                f"{where}: the ranks of group {shown} are not known: give --groups FILE or, if it "
                "has all ranks, --devices"
            )
        if size is None or size == devices:
            if name != WORLD and size is None:
                self.notes[f"group {shown} is taken as all {devices} devices: --groups"] = None
            return (tuple(range(devices)),)
        self.notes[
            f"group {shown}: {size} of {devices} devices, taken as next to each other: --groups"
        ] = None
        count = devices // size
        return tuple(tuple(range(at * size, (at + 1) * size)) for at in range(count))


def _text(groups: Groups) -> str:
    return "{" + ",".join(f"{{{','.join(map(str, group))}}}" for group in groups) + "}"


def members_of(file: Path | None, devices: int | None) -> Members:
    """The members that a JSON file lists: {"name": [0, 1]}, or several groups [[0, 1], [2, 3]]."""
    if file is None:
        return Members(devices)
    try:
        with file.open("rb") as opened:
            data = opened.read(FILE_BYTES_MAX + 1)
        if len(data) > FILE_BYTES_MAX:
            raise HloError(f"{file} is larger than {FILE_BYTES_MAX >> 20} MiB")
        found = json.loads(data)
    except OSError as error:
        raise HloError(f"cannot read {file}: {error.strerror}") from None
    except (ValueError, RecursionError):
        raise HloError(f"{file} is no JSON: {EXPECTED}") from None
    if not isinstance(found, dict):
        raise HloError(f"{file}: {EXPECTED}")
    return Members(devices, {name: _listed(one, name, file) for name, one in found.items()})


def _listed(value: Any, name: str, file: Path) -> Groups:
    groups = value if isinstance(value, list) and value and isinstance(value[0], list) else [value]
    ranks = [rank for group in groups if isinstance(group, list) for rank in group]
    if (
        any(not isinstance(group, list) or not group for group in groups)
        or any(type(rank) is not int or not 0 <= rank < DEVICES_MAX for rank in ranks)
        or len(set(ranks)) < len(ranks)
    ):
        raise HloError(
            f"{file}: group {name[:NAME_SHOWN_MAX]!r}: expected different ranks from 0 to "
            f"{DEVICES_MAX - 1}, as a list or as several lists"
        )
    return tuple(tuple(group) for group in groups)
