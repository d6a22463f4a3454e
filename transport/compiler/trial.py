"""Decides whether a policy behaves: the same interpreted and compiled, its answers in range.

Never touches a clock or a network: events are random, from a seed, plausible and at the edges.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from congestion.api import Policy
from transport.compiler.interpret import Interpreted
from transport.compiler.library import Library
from transport.compiler.trial_events import EventSource

EVENTS = 2_500
PATHS = 8


@dataclass(frozen=True)
class Finding:
    """The first thing that was wrong."""

    event: int
    hook: str
    what: str

    def __str__(self) -> str:
        return f"event {self.event}, {self.hook}: {self.what}"


class _Side:
    """One way to run a policy, with records of its own."""

    def __init__(self, policy: Policy, runner: Library | Interpreted) -> None:
        shared = PATHS if policy.family.shared == "path" else 1
        self.runner = runner
        self.flow = policy.flow.zeros()
        self.shared: Any = policy.shared.zeros(shared) if policy.family.shared else None
        self.params = policy.params.filled()
        self.result = policy.family.result.zeros()

    def call(self, hook: str, event: Any) -> int:
        self.result[:] = 0
        return self.runner.call(
            hook,
            flow=self.flow,
            shared=self.shared,
            params=self.params,
            event=event,
            result=self.result,
        )

    def records(self) -> list[bytes]:
        shared = b"" if self.shared is None else self.shared.tobytes()
        return [self.flow.tobytes(), shared, self.result.tobytes(), self.params.tobytes()]


def _out_of_range(policy: Policy, hook: str, side: _Side, event: Any) -> str:
    """What the core would have to correct, in words."""
    answer = {name: side.result[name][0].item() for name in policy.family.result.defaults}
    if not all(math.isfinite(value) for value in answer.values()):
        return f"the result is not finite: {answer}"
    if policy.family.name == "window" and not answer["window_bytes"] > 0:
        return f"a window of {answer['window_bytes']} bytes stops the flow"
    if policy.family.name == "window" and answer["pacing_bytes_per_s"] < 0:
        return f"a negative rate: {answer['pacing_bytes_per_s']}"
    if hook == "pick" and not 0 <= answer["path"] < PATHS:
        return f"path {answer['path']} of {PATHS}"
    if hook == "pick" and side.shared["usable"].any() and not side.shared["usable"][answer["path"]]:
        return f"path {answer['path']} is not usable, and others are"
    if hook == "pick" and answer["burst_bytes"] <= 0:
        return f"a burst of {answer['burst_bytes']} bytes"
    if policy.family.name == "loss" and answer["lost_sent_before_ns"] > event["now_ns"][0]:
        return "segments of the future are lost"
    return ""


def try_out(
    policy: Policy, runners: Sequence[Library | Interpreted], seed: int = 7, events: int = EVENTS
) -> Finding | None:
    """Runs the same events through every runner; the first is the one whose answers are judged."""
    sides = [_Side(policy, runner) for runner in runners]
    source, draw = EventSource(policy, seed, PATHS), random.Random(seed + 1)
    previous = policy.family.result.zeros()
    for step in range(events):
        hook = policy.family.hooks[0] if step == 0 else draw.choice(policy.family.hooks[1:])
        event = source.next(hook, previous)
        if policy.family.name == "path":
            heads = source.heads()
            for side in sides:
                for name in heads.dtype.names:
                    side.shared[name] = heads[name]
        before = event.tobytes()
        statuses = [side.call(hook, event) for side in sides]
        if any(statuses):
            return Finding(step, hook, f"the hook failed with status {statuses}")
        if event.tobytes() != before:
            return Finding(step, hook, "the event was written to")
        if any(side.records() != sides[0].records() for side in sides[1:]):
            return Finding(step, hook, "interpreted and compiled differ")
        wrong = _out_of_range(policy, hook, sides[0], event)
        if wrong and step > 0:  # of the answers to on_start only a window's is used
            return Finding(step, hook, wrong)
        previous = sides[0].result.copy()
    return None
