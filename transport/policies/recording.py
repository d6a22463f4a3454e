"""Controls recordings of policy decisions of an endpoint, and reads the files as arrays.

The file format is defined in native/core/recording.h.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from congestion.api import FAMILIES, MAX_PATHS, PATH_HEAD, Family, Record
from transport.errors import OK, InvalidArgumentError, WeftError, error_for

if TYPE_CHECKING:
    from transport import native

MAGIC = b"weftrec2"
_ANY_VERSION = MAGIC[:-1]
_HEAD = struct.Struct("<IBBBBIHH")  # bytes, type, family, hook, status, owner, path_count, policy
_POLICY = struct.Struct("<IIII48s72s")
_NO_PATHS = np.zeros(0, PATH_HEAD.dtype)
_BY_CODE = {family.code: family for family in FAMILIES.values()}


BYTES_MAX = 1 << 30  # limit of a recording that sets no limit of its own
BYTES_MIN = 1 << 16
OTHER_VERSION = "recorded by another version of weft; record it again"


class RecordingError(InvalidArgumentError):
    """A file is not a recording, or was made by another version of weft."""


class RecordingEndedError(WeftError):
    """A recording ended before it was stopped; the file is valid up to that point."""

    status = "internal_error"


class LiveRecording:
    """A running recording; leaving its `with`, stop() or closing the endpoint ends it."""

    def __init__(self, runtime: native.Runtime, path: str, bytes_max: int) -> None:
        if bytes_max < BYTES_MIN:
            raise InvalidArgumentError(f"bytes_max is {bytes_max}: it must be at least {BYTES_MIN}")
        status, error, written = runtime.start_recording(path, bytes_max)
        if status != OK:
            raise error_for(status, "record", error)
        self._runtime: native.Runtime | None = runtime
        self.path = Path(written)
        self.decisions = 0  # number of decisions in the file; set when the recording ends
        self.lost = 0  # decisions dropped because the buffer was full; the file notes each gap
        self.size_bytes = 0

    def stop(self) -> None:
        """Writes the remaining decisions and closes the file; may be called more than once."""
        runtime, self._runtime = self._runtime, None
        if runtime is None:
            return
        status, error, (self.decisions, self.lost, self.size_bytes, why) = runtime.stop_recording()
        if status != OK:
            raise error_for(status, f"recording into {self.path}", error)
        if why:
            raise RecordingEndedError(f"{self.path}: {why}; {self.lost} decisions are missing")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *reason: object) -> None:
        self.stop()


@dataclass(frozen=True)
class RecordedPolicy:
    """A policy with the parameters that it had when it decided."""

    family: Family
    name: str
    source_sha256: str
    params: bytes
    # Sizes of its event and result records: less than the family's if it was compiled before a
    # field was added.
    event_bytes: int
    result_bytes: int


@dataclass(frozen=True)
class Step:
    """One recorded decision."""

    policy: RecordedPolicy
    hook: int  # index in family.hooks
    owner: int  # the highest 8 bits: the engine; the others: flow, or peer for path policies
    failed: bool
    event: np.ndarray[Any, Any]  # shape (1,), an event record of the family
    result: np.ndarray[Any, Any]  # shape (1,), the result record after the hook
    heads: np.ndarray[Any, Any]  # shape (paths,), PATH_HEAD; empty except for path policies
    paths: int = 0  # number of paths, for path and loss policies


@dataclass
class Recording:
    """The decisions in a file.

    steps: in the order of the file.
    lost: the number of decisions that the engines could not write.
    cut: the file ends within an entry.
    damage: why reading ended early; the decisions are those before the damage.
    """

    path: Path
    steps: list[Step] = field(default_factory=list)
    lost: int = 0
    cut: bool = False
    damage: str = ""

    def of(self, family: str) -> list[Step]:
        """The decisions of one family, in order."""
        return [step for step in self.steps if step.policy.family.name == family]

    def policies(self) -> dict[str, list[str]]:
        """The names of the recorded policies, by family."""
        names: dict[str, list[str]] = {}
        for step in self.steps:
            known = names.setdefault(step.policy.family.name, [])
            if step.policy.name not in known:
                known.append(step.policy.name)
        return names


def read(path: str | Path, limit: int | None = None) -> Recording:
    """Reads a file's decisions (the first `limit`); RecordingError if it is not a recording."""
    path = Path(path)
    try:
        image = path.read_bytes()
    except OSError as error:
        raise RecordingError(f"{path}: {error.strerror}") from None
    return parse(image, path, limit)


def parse(image: bytes, path: str | Path = "memory", limit: int | None = None) -> Recording:
    """Like `read`, but from a recording in memory, which begins with MAGIC."""
    if image[: len(MAGIC)] != MAGIC:
        if image.startswith(_ANY_VERSION):
            raise RecordingError(f"{path}: {OTHER_VERSION}")
        raise RecordingError(
            f"{path}: not a recording of policy decisions; WEFT_RECORD_FILE=FILE, "
            "Endpoint.record() and weft policy try --record write one"
        )
    parser = _Parser(image, Recording(Path(path)))
    try:
        parser.run(limit)
    except _DamageError as damage:
        parser.recording.damage = str(damage)
    return parser.recording


class _DamageError(Exception):
    """Raised if an entry is invalid, so that later entries cannot be found."""


class _Parser:
    """Parses the entries of one file."""

    def __init__(self, image: bytes, recording: Recording) -> None:
        self.image, self.recording = image, recording
        self.policies: dict[tuple[int, int], RecordedPolicy] = {}  # by (engine, policy number)

    def damaged(self, at: int) -> _DamageError:
        return _DamageError(f"damaged at byte {at}")

    def run(self, limit: int | None) -> None:
        at, end = len(MAGIC), len(self.image)
        while at < end and (limit is None or len(self.recording.steps) < limit):
            if end - at < _HEAD.size:
                self.recording.cut = True
                return
            head = _HEAD.unpack_from(self.image, at)
            if head[0] < _HEAD.size or head[0] % 8 or head[1] not in (1, 2, 3):
                raise self.damaged(at)
            if at + head[0] > end:
                self.recording.cut = True  # the process ended while writing the file
                return
            self.entry(at, head)
            at += head[0]

    def entry(self, at: int, head: tuple[int, ...]) -> None:
        size, kind, code, hook, status, owner, paths, number = head
        body = at + _HEAD.size
        if kind == 1:
            self.policies[owner >> 24, number] = self.policy(at, size, code)
        elif kind == 2:
            policy = self.policies.get((owner >> 24, number))
            if policy is None or hook >= len(policy.family.hooks):
                raise self.damaged(at)
            family = policy.family
            results = body + policy.event_bytes
            heads = results + policy.result_bytes
            shown = paths if family.shared_head.size_bytes else 0
            if heads + shown * PATH_HEAD.size_bytes != at + size or paths > MAX_PATHS:
                raise self.damaged(at)
            event = self.record(family.event, body, policy.event_bytes)
            result = self.record(family.result, results, policy.result_bytes)
            seen = np.frombuffer(self.image, PATH_HEAD.dtype, shown, heads) if shown else _NO_PATHS
            step = Step(policy, hook, owner, status != 0, event, result, seen, paths)
            self.recording.steps.append(step)
        else:
            self.recording.lost += int.from_bytes(self.image[body : body + 8], "little")

    def record(self, layout: Record, at: int, size_bytes: int) -> np.ndarray[Any, Any]:
        """A record at a place of the file; fields that were added since it was written are 0."""
        if size_bytes == layout.size_bytes:
            return np.frombuffer(self.image, layout.dtype, 1, at)
        grown = self.image[at : at + size_bytes].ljust(layout.size_bytes, b"\0")
        return np.frombuffer(grown, layout.dtype, 1)

    def policy(self, at: int, size: int, code: int) -> RecordedPolicy:
        start = at + _HEAD.size + _POLICY.size
        if start > at + size:
            raise self.damaged(at)
        fields = _POLICY.unpack_from(self.image, at + _HEAD.size)
        event_bytes, result_bytes, params_bytes, _, name, digest = fields
        family = _BY_CODE.get(code)
        if family is None or not (
            _is_part(event_bytes, family.event) and _is_part(result_bytes, family.result)
        ):
            raise RecordingError(f"{self.recording.path}: {OTHER_VERSION}")
        if start + params_bytes != at + size:
            raise self.damaged(at)
        return RecordedPolicy(
            family,
            name.split(b"\0")[0].decode("ascii", "replace"),
            digest.split(b"\0")[0].decode("ascii", "replace"),
            self.image[start : start + params_bytes],
            event_bytes,
            result_bytes,
        )


def _is_part(size_bytes: int, layout: Record) -> bool:
    """Whether a recorded record is one that this version knows, or the beginning of one."""
    return 0 < size_bytes <= layout.size_bytes and size_bytes % 8 == 0
