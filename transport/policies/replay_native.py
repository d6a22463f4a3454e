"""Replays recorded decisions with compiled policies and compares the answers.

native/sim/replay.h replays and compares; this module finds the libraries of the policies.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from congestion.api import FAMILIES
from congestion.registry import SHIPPED
from transport import native
from transport.errors import InvalidArgumentError
from transport.policies.choice import PolicyName, resolve, split
from transport.policies.recording import RecordingError

_FOLDERS = {"paths": "path"}  # folder of congestion/ -> family, where the names differ


@dataclass(frozen=True)
class Replayed:
    """The results of replaying the decisions of one policy."""

    family: str
    name: str
    source_sha256: str
    decisions: int  # number of replayed decisions
    differ: int  # number of answers that differ from the recorded answers in any bit
    failed: int  # number of recorded decisions whose hook had failed
    skipped: int  # decisions not replayed: no recorded on_start before them, or unknown policy
    known: bool  # whether a library compiled from the recorded source was found
    by_hook: dict[str, int]


@dataclass(frozen=True)
class ReplayedRecordings:
    """The results of replaying all decisions of some recordings."""

    policies: tuple[Replayed, ...]
    lost: int  # decisions dropped while recording
    cut: bool  # a file ends within an entry
    damage: str
    first_difference: str

    @property
    def decisions(self) -> int:
        return sum(one.decisions for one in self.policies)

    @property
    def differ(self) -> int:
        return sum(one.differ for one in self.policies)

    @property
    def skipped(self) -> int:
        return sum(one.skipped for one in self.policies)

    @property
    def good(self) -> bool:
        """Whether every decision was replayed with an equal answer."""
        return not (self.differ or self.skipped or self.damage)


def shipped() -> list[tuple[str, str]]:
    """Family and name of each shipped policy."""
    parts = [module.split(".")[-2:] for module in SHIPPED]
    return [(_FOLDERS.get(folder, folder), name) for folder, name in parts]


def replay_files(
    files: Iterable[str | Path], policies: Sequence[tuple[str, PolicyName]] = ()
) -> ReplayedRecordings:
    """Replays recordings in order; `policies` adds (family, policy) pairs to the shipped ones."""
    replay = native.Replay()
    for family, policy in (*shipped(), *policies):
        if family not in FAMILIES:
            known = ", ".join(sorted(FAMILIES))
            raise InvalidArgumentError(f"no policy family {family!r}: choose one of {known}")
        name, _, _ = split(resolve(family, policy))
        try:
            replay.add(family, name, [str(native.POLICY_DIRECTORY)])
        except ValueError as error:
            raise InvalidArgumentError(str(error)) from None
    for file in files:
        _run(replay, Path(file))
    made = tuple(_replayed(one) for one in replay.policies)
    return ReplayedRecordings(made, replay.lost, replay.cut, replay.damage, replay.first_difference)


def _run(replay: native.Replay, file: Path) -> None:
    try:
        with (
            file.open("rb") as opened,
            mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as image,
        ):
            replay.run(image)
    except OSError as error:
        raise RecordingError(f"{file}: {error.strerror}") from None
    except ValueError as error:
        raise RecordingError(f"{file}: {error}; record it again") from None


def _replayed(one: native.ReplayedPolicy) -> Replayed:
    hooks = FAMILIES[one.family].hooks
    return Replayed(
        one.family,
        one.name,
        one.source_sha256,
        one.decisions,
        one.differ,
        one.failed,
        one.skipped,
        one.known,
        dict(zip(hooks, one.by_hook, strict=False)),
    )
