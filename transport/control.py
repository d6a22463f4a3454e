"""Slow control: a loop beside the engines that reads telemetry and writes parameters at its pace.

A step is the caller's, in plain Python, NumPy or PyTorch. The engines never wait for it; they go on
with the parameters they have.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self, TypeAlias

import numpy as np

from transport.connection import Connection
from transport.endpoint import Endpoint
from transport.errors import InvalidArgumentError, WeftError
from transport.policy_choice import Parameter, PolicyState

Array: TypeAlias = np.ndarray[Any, Any]
# By family: parameters of the policy in force that are to change.
Updates: TypeAlias = Mapping[str, Mapping[str, Parameter]]
PACE_S_MIN = 0.0005


@dataclass(frozen=True)
class ConnectionTelemetry:
    """One connection. Totals count from its beginning, deltas from the step before.

    Arrays have one entry a path, int64: `bytes_sent` and so on with resends included, `rtt_ns`
    smoothed (0 before the first sample), `usable` 1 or 0.
    """

    connection: Connection
    bytes_sent: Array
    segments_sent: Array
    segments_lost: Array
    rtt_ns: Array
    usable: Array
    bytes_sent_delta: Array
    segments_sent_delta: Array
    segments_lost_delta: Array
    segments_resent: int
    segments_resent_delta: int
    window_bytes: int
    inflight_bytes: int

    @property
    def loss_share(self) -> Array:
        """Share of the segments sent on each path since the last step that were judged lost."""
        return self.segments_lost_delta / np.maximum(self.segments_sent_delta, 1)


@dataclass(frozen=True)
class Telemetry:
    """What a step sees."""

    step: int  # counts from 0
    now_ns: int  # the loop's clock, monotonic
    interval_ns: int  # since the step before; 0 at the first
    connections: tuple[ConnectionTelemetry, ...]
    policies: Mapping[str, PolicyState]  # by family, with the parameters in force


Step: TypeAlias = Callable[[Telemetry], Updates | None]


class ControlLoop:
    """Calls `step` every `pace_s` seconds, in a thread of its own, and applies what it returns.

    `target`: an endpoint (every open connection; updates go to those without a choice of their
    own) or one connection. Use it in a `with`. A step that raises ends the loop: the error is
    raised when the `with` is left, and the policies go on with what they have.
    """

    def __init__(
        self,
        target: Endpoint | Connection,
        step: Step,
        *,
        pace_s: float = 0.01,
        on_error: Callable[[BaseException], None] | None = None,
    ) -> None:
        if not (math.isfinite(pace_s) and pace_s >= PACE_S_MIN):
            raise InvalidArgumentError(f"pace_s: finite and at least {PACE_S_MIN} s, not {pace_s}")
        self._target, self._step, self._pace_s = target, step, pace_s
        self._on_error = on_error
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._before: dict[Connection, _Totals] = {}
        self._last_ns = 0
        self.steps = 0
        self.late = 0  # steps that began after the next one was due
        self.error: BaseException | None = None

    def start(self) -> Self:
        """Starts the loop; once."""
        if self._thread is not None:
            raise RuntimeError("a control loop starts once")
        self._thread = threading.Thread(target=self._run, name="weft-control", daemon=True)
        self._thread.start()
        return self

    def stop(self) -> None:
        """Waits for the step under way and ends; raises what ended the loop before."""
        self._stopping.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
        if self.error is not None:
            raise self.error

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stopping.set()
        if error is None:
            self.stop()
        elif self._thread is not None:
            self._thread.join()

    def once(self) -> None:
        """One step now, in this thread: for tests and for callers with a loop of their own."""
        telemetry = self._observe()
        self.steps += 1
        for family, params in _checked(self._step(telemetry)).items():
            self._target.set_params(family, **params)

    def _run(self) -> None:
        due_s = time.monotonic()
        try:
            while not self._stopping.is_set():
                self.once()
                due_s += self._pace_s
                now_s = time.monotonic()
                if now_s > due_s:
                    self.late += 1
                    due_s = now_s  # what was missed is not made up for
                self._stopping.wait(due_s - now_s)
        except BaseException as error:
            if self._target.closed and isinstance(error, WeftError):
                return  # what it looked after is gone: nothing left to do
            self.error = error
            if self._on_error is not None:
                self._on_error(error)

    def _observe(self) -> Telemetry:
        now_ns = time.monotonic_ns()
        interval_ns = now_ns - self._last_ns if self._last_ns else 0
        self._last_ns = now_ns
        seen, totals = [], {}
        for connection in self._connections():
            try:
                totals[connection] = _Totals(connection)
            except WeftError:
                continue  # closed meanwhile
            seen.append(totals[connection].since(self._before.get(connection)))
        self._before = totals
        return Telemetry(self.steps, now_ns, interval_ns, tuple(seen), self._target.policies)

    def _connections(self) -> list[Connection]:
        if isinstance(self._target, Connection):
            self._target.check()
            return [self._target]
        return self._target.connections


def _checked(updates: Any) -> Updates:
    """What a step returned; TypeError when it is nothing of the kind."""
    if updates is None:
        return {}
    whole = isinstance(updates, Mapping)
    if whole and all(isinstance(params, Mapping) for params in updates.values()):
        return updates  # type: ignore[no-any-return]
    raise TypeError(
        "a step returns None or parameters by family, as in "
        f'{{"window": {{"window_bytes": 100_000}}}}; this one returned {updates!r:.80}'
    )


class _Totals:
    """A connection's counters at one moment."""

    FIELDS = ("bytes_sent", "segments_sent", "segments_lost", "rtt_ns", "usable")
    DELTAS = FIELDS[:3]

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.counters = connection.counters()
        paths = self.counters.paths
        self.by_path = {
            name: np.array([getattr(path, name) for path in paths], np.int64)
            for name in self.FIELDS
        }

    def since(self, before: _Totals | None) -> ConnectionTelemetry:
        deltas: dict[str, Array] = {}
        for name in self.DELTAS:
            now = self.by_path[name]
            then = np.zeros_like(now) if before is None else before.by_path[name]
            deltas[f"{name}_delta"] = now - (then if then.size == now.size else 0)
        resent = self.counters.segments_resent
        return ConnectionTelemetry(
            connection=self.connection,
            **self.by_path,
            **deltas,
            segments_resent=resent,
            segments_resent_delta=resent - (before.counters.segments_resent if before else 0),
            window_bytes=self.counters.window_bytes,
            inflight_bytes=self.counters.inflight_bytes,
        )
