"""Says which processes of a trace recorded nothing, or not to their end."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from transport.trace.folder import ProcessFiles, number
from transport.trace.layout import TraceError
from transport.trace.segment import read_rows

FULL_BYTES = 64 << 10  # a disk with less free space counts as full


@dataclass(frozen=True, slots=True)
class Losses:
    """Processes whose records are missing.

    lost: number of processes without any record. cut: number of those whose trace has no end.
    ranks: of the lost processes, those that are known. is_full: whether the disk is full.
    """

    lost: int
    cut: int
    ranks: tuple[int, ...]
    is_full: bool


def losses(folder: Path, processes: Sequence[ProcessFiles], *, whole: bool = True) -> Losses:
    """The losses of the processes of this host that wrote below the folder.

    whole: the folder has the traces of all ranks; False: other hosts may write it, too.
    """
    is_full = _free_bytes(folder) < FULL_BYTES
    empty = sum(path.stat().st_size == 0 for path in folder.rglob("*.trace"))
    mine = [one for one in processes if one.host == os.uname().nodename]
    bare = [one for one in mine if _is_bare(one)]
    ranks = {one.rank for one in bare if one.rank is not None}
    if whole and is_full:
        missing = set(range(_world_size(processes))) - {one.rank for one in processes}
        empty = max(empty, len(missing))
        ranks |= missing
    cut = sum(not _is_bare(one) and not _has_end(one) for one in mine)
    return Losses(len(bare) + empty, cut, tuple(sorted(ranks)), is_full)


def _free_bytes(folder: Path) -> int:
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize


def _world_size(processes: Sequence[ProcessFiles]) -> int:
    """The largest number of ranks that a launcher told a process; 0: none did."""
    return max((number(one.identity, "WORLD_SIZE") or 0 for one in processes), default=0)


def _is_bare(process: ProcessFiles) -> bool:
    """Whether its files have headers and no records."""
    return all(path.stat().st_size <= header.bytes for path, header in process.paths.values())


def _has_end(process: ProcessFiles) -> bool:
    """Whether its last file says that the process closed its trace."""
    path, _ = process.paths[max(process.paths)]
    try:
        return read_rows(path).ended is not False
    except TraceError:
        return False
