"""Replays recorded events through another policy and compares its answers with the recorded ones.

The replay is open-loop: events stay as recorded, except for the fields that repeat the policy's own
last answer, the current window and the bytes granted.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from congestion.api import MAX_PATHS, PATH_HEAD, Policy
from transport.compiler.source import sha256
from transport.errors import InvalidArgumentError
from transport.policies.recording import RecordedPolicy, Step

_INT64 = np.iinfo(np.int64)


class Runner(Protocol):
    """Compiled or interpreted hooks."""

    def call(
        self, hook: str, *, flow: Any, shared: Any, params: Any, event: Any, result: Any
    ) -> int: ...


@dataclass
class Track:
    """The answers of one policy to a sequence of events; the lists have one entry per event."""

    name: str
    family: str
    now_ns: list[int] = field(default_factory=list)
    owners: list[int] = field(default_factory=list)
    hooks: list[str] = field(default_factory=list)
    answers: list[tuple[float, ...]] = field(default_factory=list)
    differs: int = 0  # number of answers that differ from the recorded answers in any bit
    failures: int = 0
    # True: the recorded policy has the same name, but other source, so its parameters don't apply.
    other_version: bool = False

    def column(self, index: int) -> np.ndarray[Any, Any]:
        """One field of every answer, as float64."""
        return np.array([answer[index] for answer in self.answers], np.float64)


def recorded(steps: Iterable[Step]) -> Track:
    """The recorded answers. InvalidArgumentError if there are none."""
    track: Track | None = None
    for step in steps:
        if track is None:
            track = Track(f"{step.policy.name} (recorded)", step.policy.family.name)
        _note(track, step, step.result)
    if track is None:
        raise InvalidArgumentError("the recording has no decisions to show")
    return track


def _note(track: Track, step: Step, result: np.ndarray[Any, Any]) -> None:
    track.now_ns.append(int(step.event["now_ns"][0]))
    track.owners.append(step.owner)
    track.hooks.append(step.policy.family.hooks[step.hook])
    track.answers.append(tuple(result[0].item()))


class _Owner:
    """The records of a flow or peer under the replayed policy."""

    def __init__(self, policy: Policy, shared: Any, step: Step) -> None:
        self.flow = policy.flow.zeros()
        self.shared = shared
        self.answered: np.ndarray[Any, Any] | None = None
        self.window_bytes = 0
        self.recorded, self.paths = step.policy, step.paths  # recorded policy, number of paths

    def outlives(self, step: Step) -> bool:
        """Whether a recorded start is of a new policy on an old flow, and not of a new flow."""
        names = step.event.dtype.names or ()
        if "hint_window_bytes" in names:
            return float(step.event["hint_window_bytes"][0]) > 0
        if "granted_bytes" in names:
            return int(step.event["granted_bytes"][0]) > 0
        then, now = self.recorded, step.policy
        # A policy that restarts on an idle flow, perhaps with new parameters, is not replaced.
        same = (then.name, then.source_sha256) == (now.name, now.source_sha256)
        return not same and self.paths == step.paths


class Replay:
    """Runs a policy over recorded events.

    Given parameters override the defaults. If none are given and the policy is the recorded one (by
    name and source), the recorded parameters are used, with their changes. The recorded policy
    restarts wherever the recording shows a start; another policy continues when the recording
    replaces the policy of an existing flow.
    """

    def __init__(
        self, policy: Policy, runner: Runner, params: dict[str, Any] | None = None
    ) -> None:
        self.policy, self.runner = policy, runner
        self.params = policy.params.filled()
        self.follows = params is None
        for name, value in (params or {}).items():
            if name not in policy.params.defaults:
                there = ", ".join(policy.params.defaults) or "none"
                raise InvalidArgumentError(
                    f"{policy.name} has no parameter {name!r}; it has: {there}"
                )
            self.params[name] = value
        self.owners: dict[int, _Owner] = {}
        self.ports: dict[int, Any] = {}
        self.source_sha256 = sha256(policy)

    def run(self, steps: Iterable[Step]) -> Track:
        """The policy's answers; events of other families, and of hooks it lacks, are skipped."""
        track = Track(self.policy.name, self.policy.family.name)
        for step in steps:
            own = step.policy.family is self.policy.family
            if not own or step.hook not in self.policy.hook_numbers:
                continue
            track.other_version |= self.is_another_version(step.policy)
            result = self.step(step, track)
            track.differs += result.tobytes() != step.result.tobytes()
            _note(track, step, result)
        return track

    def step(self, step: Step, track: Track) -> np.ndarray[Any, Any]:
        """The policy's answer to one event. Adds 1 to `track.failures` if the hook fails."""
        hook = self.policy.family.hooks[step.hook]
        self.follow(step)
        owner = self.owners.get(step.owner)
        if owner is not None and step.hook == 0 and self.goes_on(owner, step):
            owner.recorded = step.policy
            if owner.answered is not None:
                return owner.answered
        if owner is None or step.hook == 0:
            owner = self.owners[step.owner] = _Owner(self.policy, self.shared_of(step), step)
            if step.hook != 0:
                self.begin(owner, step)
        owner.recorded = step.policy
        event = step.event.copy()
        result = self.standing(owner, event, hook)
        self.show_paths(owner, step)
        if self.call(owner, hook, event, result) != 0:
            track.failures += 1
        self.remember(owner, event, result)
        return result

    def decided(self, then: RecordedPolicy) -> bool:
        """Whether the replayed policy is the recorded one."""
        return (then.family, then.name, then.source_sha256, len(then.params)) == (
            self.policy.family,
            self.policy.name,
            self.source_sha256,
            self.params.nbytes,
        )

    def is_another_version(self, then: RecordedPolicy) -> bool:
        return then.name == self.policy.name and not self.decided(then)

    def goes_on(self, owner: _Owner, step: Step) -> bool:
        """Whether the replayed policy ignores that another one was started in its place.

        A recorded swap of policies starts the new one on a live flow or peer. The replayed policy
        then stays with its records and its last answer.
        """
        return owner.outlives(step) and not (self.follows and self.decided(step.policy))

    def follow(self, step: Step) -> None:
        then = step.policy
        if self.follows and then.params and self.decided(then):
            self.params = np.frombuffer(then.params, self.params.dtype).copy()

    def show_paths(self, owner: _Owner, step: Step) -> None:
        if step.heads.size:
            for name in PATH_HEAD.defaults:
                owner.shared[name][: step.heads.size] = step.heads[name]

    def begin(self, owner: _Owner, step: Step) -> None:
        """Starts the policy on a flow whose start was not recorded, with the window of `step`."""
        event = step.event.copy()
        event["kind"] = -1
        names = event.dtype.names or ()
        if "hint_window_bytes" in names:
            event["hint_window_bytes"] = event["window_bytes"]
            owner.window_bytes = int(event["window_bytes"][0])
        result = self.standing(owner, event, "on_start")
        self.show_paths(owner, step)
        self.call(owner, "on_start", event, result)
        self.remember(owner, event, result)

    def shared_of(self, step: Step) -> Any:
        if self.policy.shares == "path":
            return self.policy.shared.zeros(step.paths or MAX_PATHS)
        if self.policy.family.shared == "port":
            return self.ports.setdefault(step.owner >> 24, self.policy.shared.zeros(1))
        return None

    def standing(self, owner: _Owner, event: Any, hook: str) -> np.ndarray[Any, Any]:
        """Makes the initial result record, and sets event fields that repeat the last answer."""
        family = self.policy.family.name
        result = self.policy.family.result.zeros()
        if family == "window":
            if owner.answered is not None:
                event["window_bytes"] = owner.window_bytes
            result["window_bytes"] = float(event["window_bytes"][0])
        elif family == "loss":
            result[["lost_below_seq", "lost_sent_before_ns", "next_check_ns"]] = (-1, -1, -1)
        elif family == "credit":
            if owner.answered is not None:
                event["granted_bytes"] = owner.answered["granted_bytes"]
            result["granted_bytes"] = event["granted_bytes"]
            result["next_tick_ns"] = -1
        elif hook == "pick":
            result["path"] = -1
        return result

    def remember(self, owner: _Owner, event: Any, result: np.ndarray[Any, Any]) -> None:
        """Stores the answer as the core would apply it (native/core/window_control.cc)."""
        if self.policy.family.name == "window":
            low = 2 * int(event["segment_bytes"][0])
            high = max(int(event["window_bytes_max"][0]), low)
            window = float(result["window_bytes"][0])
            if np.isfinite(window):
                owner.window_bytes = int(min(max(window, low), high))
        if self.policy.family.name == "credit" and owner.answered is not None:
            granted = max(int(result["granted_bytes"][0]), int(owner.answered["granted_bytes"][0]))
            result["granted_bytes"] = granted
        owner.answered = result

    def call(self, owner: _Owner, hook: str, event: Any, result: Any) -> int:
        return self.runner.call(
            hook,
            flow=owner.flow,
            shared=owner.shared,
            params=self.params,
            event=event,
            result=result,
        )


def replay(policy: Policy, steps: Iterable[Step], params: dict[str, Any] | None = None) -> Track:
    """Replays the events of the policy's family, compiled in this process."""
    from transport.compiler.library import jit

    return Replay(policy, jit(policy), params).run(steps)


@dataclass(frozen=True)
class Summary:
    """Statistics of one policy's answers; figures() lists their units."""

    name: str
    decisions: int
    differs: int
    failures: int
    figures: dict[str, float]
    path_shares: tuple[float, ...] = ()


def summarize(track: Track) -> Summary:
    """Statistics of one policy's answers; which ones depends on the policy's family."""
    figures: dict[str, float] = {}
    shares: tuple[float, ...] = ()
    if track.family == "window":
        window, rate = track.column(0), track.column(1)
        figures = {
            "window_bytes_min": float(window.min()),
            "window_bytes_median": float(np.median(window)),
            "window_bytes_max": float(window.max()),
            "pacing_bytes_per_s_median": float(np.median(rate)),
        }
    elif track.family == "path":
        picks = [
            int(answer[0])
            for answer, hook in zip(track.answers, track.hooks, strict=True)
            if hook == "pick"
        ]
        counts = np.bincount(np.maximum(picks, 0), minlength=1) if picks else np.zeros(1)
        shares = tuple(float(count) / max(len(picks), 1) for count in counts)
        figures = {"picks": float(len(picks)), "share_max": max(shares), "share_min": min(shares)}
    elif track.family == "loss":
        by_time, by_seq = track.column(1), track.column(0)
        figures = {
            "cutoffs": float(np.count_nonzero((by_time >= 0) | (by_seq >= 0))),
            "probes": float(np.count_nonzero(track.column(3))),
        }
    else:
        granted = track.column(0)
        figures = {"granted_bytes_max": float(granted.max())}
    return Summary(track.name, len(track.answers), track.differs, track.failures, figures, shares)
