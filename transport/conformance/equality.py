"""Checks that a policy gives equal results interpreted, compiled in the process, and from a file.

Answers, statuses and records must be equal bit by bit, and a hook may write only to its own records
and its result. Interpreted and compiled results may differ if integers exceed 64 bits or have no
exact float value (see transport.compiler.lower); such events are counted and not compared.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from congestion.api import Policy
from transport.compiler.library import Library
from transport.conformance.answers import complaint
from transport.conformance.native_side import Guarded, NativeSide
from transport.conformance.records import Interpreter
from transport.conformance.streams import Chunk, Stream
from transport.conformance.tracked import Tally, Whole, tracked_hooks, tracked_row
from transport.conformance.witness import told

Progress = Callable[[int], None]


@dataclass
class Trial:
    """How the results of a policy differ: as Python, compiled in memory, and from a library."""

    events: int = 0
    beyond: int = 0  # events not compared, because interpreted and compiled results may differ
    failures: int = 0  # hook calls that returned status 1 in every form of the policy
    wrong: list[str] = field(default_factory=list)  # differences in the first chunk that has any
    unsound: list[str] = field(default_factory=list)  # out-of-range answers; the core corrects them

    def add(self, other: Trial) -> None:
        self.events += other.events
        self.beyond += other.beyond
        self.failures += other.failures
        self.wrong += other.wrong
        self.unsound += other.unsound

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


class Bout:
    """Runs a policy as Python, compiled in memory and from a library; compares the results."""

    def __init__(
        self, policy: Policy, libraries: dict[str, Library], seed: int, interpret: bool = True
    ) -> None:
        self.policy, self.seed = policy, seed
        self.stream = Stream(policy, seed)
        self.sides = {name: NativeSide(policy, library) for name, library in libraries.items()}
        self.interpreter = Interpreter(policy) if interpret else None
        self.tracked = Interpreter(policy, tracked_hooks(policy), Whole)
        self.trial = Trial()

    def run(self, events: int, progress: Progress = lambda _: None) -> Trial:
        for chunk in self.stream.chunks(events):
            self.play(chunk)
            progress(len(chunk.hooks))
            if self.trial.wrong:
                break
        return self.trial

    def play(self, chunk: Chunk) -> None:
        before = self.trial.events
        if chunk.extreme:
            self.step_by_step(chunk)
        else:
            self.at_once(chunk)
        self.trial.events = before + len(chunk.hooks)

    def fail(self, at: int, chunk: Chunk, what: str) -> None:
        hook = self.policy.family.hooks[chunk.hooks[at]]
        self.trial.wrong.append(f"seed {self.seed}, event {self.trial.events + at}, {hook}: {what}")

    # Chunks of plausible events: the policy runs a whole chunk interpreted, compiled and from a
    # file, then the results are compared.

    def at_once(self, chunk: Chunk) -> None:
        answers = {name: play_native(side, chunk) for name, side in self.sides.items()}
        first = next(iter(answers))
        for name, side in self.sides.items():
            if side.complaint():
                self.fail(0, chunk, f"{name}: {side.complaint()}")
            self.compare(chunk, (name, *answers[name]), (first, *answers[first]))
        if self.interpreter is not None:
            played = play_interpreted(self.interpreter, chunk)
            self.compare(chunk, ("interpreted", *played), (first, *answers[first]))
        statuses, results, _ = answers[first]
        self.trial.failures += int(statuses.sum())
        text = complaint(self.policy.family, chunk, statuses, results)
        if statuses.any() and self.interpreter is not None and self.interpreter.raised is not None:
            text = f"{told(self.interpreter.raised)}: {text}"
        if not text and not self.sides[first].finite():
            text = f"a record has become infinite after {len(chunk.hooks)} events"
        if text and not self.trial.unsound:
            self.trial.unsound.append(f"seed {self.seed}, {text}")

    def compare(self, chunk: Chunk, one: tuple[Any, ...], other: tuple[Any, ...]) -> None:
        if self.trial.wrong or one[0] == other[0]:
            return
        differ = np.flatnonzero(one[1] != other[1])
        if len(differ):
            at = int(differ[0])
            self.fail(at, chunk, f"status is {one[1][at]} {one[0]}, but {other[1][at]} {other[0]}")
            return
        words = [side[2].view(np.uint64).reshape(len(side[2]), -1) for side in (one, other)]
        differ = np.flatnonzero((words[0] != words[1]).any(axis=1))
        if len(differ):
            at = int(differ[0])
            said = [f"{side[0]} answers {side[2][at].tolist()}" for side in (one, other)]
            self.fail(at, chunk, ", ".join(said))
        elif one[3] != other[3]:
            self.fail(len(chunk.hooks) - 1, chunk, f"{one[0]} and {other[0]}: records differ")

    # Chunks of extreme values, compared event by event; tracked.py detects allowed differences.

    def step_by_step(self, chunk: Chunk) -> None:
        result = {name: Guarded(chunk.presets.dtype, 1) for name in self.sides}
        event = Guarded(chunk.events.dtype, 1)
        rows, presets = chunk.events.tolist(), chunk.presets.tolist()
        for at, hook in enumerate(chunk.hooks):
            event.records[:] = chunk.events[at]
            heads = None if chunk.heads is None else chunk.heads[at // chunk.heads_every]
            statuses: dict[str, int] = {}
            for name, side in self.sides.items():
                if hook == 0:
                    side.restart(chunk.shared)
                if heads is not None:
                    side.set_heads(heads)
                result[name].records[:] = chunk.presets[at]
                statuses[name] = side.call(hook, event.address, result[name].address)
                if side.complaint() or not (event.intact() and result[name].intact()):
                    self.fail(
                        at,
                        chunk,
                        f"{name}: {side.complaint() or 'bytes outside a record were written to'}",
                    )
            if event.records.tobytes() != chunk.events[at].tobytes():
                self.fail(at, chunk, "the hook wrote to its event, which is read only")
            self.step_tracked(chunk, at, (tracked_row(rows[at]), presets[at]), statuses, result)
            if self.trial.wrong:
                return

    def step_tracked(
        self,
        chunk: Chunk,
        at: int,
        given: tuple[tuple[Any, ...], tuple[Any, ...]],
        statuses: dict[str, int],
        result: dict[str, Guarded],
    ) -> None:
        tracked, first = self.tracked, next(iter(self.sides))
        if chunk.hooks[at] == 0:
            tracked.restart(chunk.shared)
        if chunk.heads is not None:
            tracked.set_heads(chunk.heads[at // chunk.heads_every].tolist())
        Tally.left = False
        status = tracked.call(chunk.hooks[at], *given)
        beyond = Tally.left
        self.trial.beyond += beyond
        self.trial.failures += bool(statuses[first])
        for name, side in self.sides.items():
            if name != first and statuses[name] != statuses[first]:
                self.fail(
                    at,
                    chunk,
                    f"status {statuses[name]} from {name}, but {statuses[first]} from {first}",
                )
            elif name != first and not statuses[first]:
                same = side.state() == self.sides[first].state()
                if not same or result[name].records.tobytes() != result[first].records.tobytes():
                    self.fail(at, chunk, f"answers or records of {name} and of {first} differ")
        if not beyond and status != statuses[first]:
            self.fail(at, chunk, f"status is {status} interpreted, but {statuses[first]} {first}")
        elif not beyond and not status:
            answer = np.array([tracked.answer()], chunk.presets.dtype)
            native = result[first].records
            if answer.tobytes() != native.tobytes() and not same_nan(answer, native):
                self.fail(at, chunk, f"answers: interpreted {answer[0]}, {first} {native[0]}")
            elif not same_state(tracked.state(), self.sides[first].state()):
                self.fail(at, chunk, f"interpreted and {first}: records differ")
        side = self.sides[first]
        if statuses[first] or status:
            # A policy that failed is restarted, as in the core.
            for one in self.sides.values():
                one.restart(chunk.shared)
            tracked.restart(chunk.shared)
        elif beyond:
            tracked.take_state(side.flow.records, side.shared.records)


def same_nan(one: np.ndarray[Any, Any], other: np.ndarray[Any, Any]) -> bool:
    """Whether the values are equal, ignoring the sign and payload of NaNs, which are undefined."""
    for name in one.dtype.names or ():
        same = one[name] == other[name]
        if one[name].dtype.kind == "f":
            same |= np.isnan(one[name]) & np.isnan(other[name])
            same &= np.signbit(one[name]) == np.signbit(other[name]) | np.isnan(one[name])
        if not same.all():
            return False
    return True


def same_state(one: bytes, other: bytes) -> bool:
    """Whether the records are equal bit by bit, except that all NaNs count as equal."""
    if one == other:
        return True
    words = [np.frombuffer(state, np.uint64) for state in (one, other)]
    nans = [np.isnan(state.view(np.float64)) for state in words]
    return bool(((words[0] == words[1]) | (nans[0] & nans[1])).all())


def play_native(side: NativeSide, chunk: Chunk) -> tuple[Any, Any, bytes]:
    """Runs a chunk compiled; returns statuses, answers and the final records."""
    count = len(chunk.hooks)
    events, results = Guarded(chunk.events.dtype, count), Guarded(chunk.presets.dtype, count)
    events.records[:], results.records[:] = chunk.events, chunk.presets
    granted = side.policy.family.name == "credit"
    statuses = np.zeros(count, np.int64)
    event_at, event_bytes = events.address, chunk.events.dtype.itemsize
    result_at, result_bytes = results.address, chunk.presets.dtype.itemsize
    last = 0
    side.restart(chunk.shared)
    bare, given = side.bound()
    for at, hook in enumerate(chunk.hooks):
        if chunk.heads is not None and at % chunk.heads_every == 0:
            side.set_heads(chunk.heads[at // chunk.heads_every])
        if granted:
            events.records["granted_bytes"][at] = results.records["granted_bytes"][at] = last
        status = bare[hook](*given, event_at, result_at)
        if status:
            statuses[at] = status
            side.restart(chunk.shared)
        elif granted:
            last = max(last, int(results.records["granted_bytes"][at]))
        event_at += event_bytes
        result_at += result_bytes
    if not (events.intact() and results.intact()):
        side.damage = "bytes beside the events or the results were written"
    asked = chunk.events.copy()
    if granted:
        asked["granted_bytes"] = events.records["granted_bytes"]
    if events.records.tobytes() != asked.tobytes():
        side.damage = "an event was written to"
    return statuses, results.records.copy(), side.state()


def play_interpreted(side: Interpreter, chunk: Chunk) -> tuple[Any, Any, bytes]:
    """Runs a chunk interpreted; returns statuses, answers and the final records."""
    statuses = np.zeros(len(chunk.hooks), np.int64)
    answers: list[tuple[Any, ...]] = []
    names = chunk.events.dtype.names or ()
    granted = names.index("granted_bytes") if side.policy.family.name == "credit" else -1
    last = 0
    side.restart(chunk.shared)
    given = zip(chunk.hooks, chunk.events.tolist(), chunk.presets.tolist(), strict=True)
    for at, (hook, row, preset) in enumerate(given):
        if chunk.heads is not None and at % chunk.heads_every == 0:
            side.set_heads(chunk.heads[at // chunk.heads_every].tolist())
        if granted >= 0:
            row = (*row[:granted], last, *row[granted + 1 :])
            preset = (last, -1)
        if side.call(hook, row, preset):
            statuses[at] = 1
            answers.append(preset)
            side.restart(chunk.shared)
            continue
        answers.append(side.answer())
        if granted >= 0:
            last = max(last, answers[-1][0])
    return statuses, np.array(answers, chunk.presets.dtype), side.state()
