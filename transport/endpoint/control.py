"""Slow control: a Python thread that reads counters and sets policy parameters periodically.

The caller supplies the step: plain Python, NumPy or PyTorch. The engines do not wait for it; they
continue with the parameters they have.
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

from transport.endpoint.connection import Connection
from transport.endpoint.endpoint import Endpoint
from transport.errors import InvalidArgumentError, WeftError
from transport.policies.choice import Parameter, PolicyState

Array: TypeAlias = np.ndarray[Any, Any]
# Policy family -> parameter -> its new value.
Updates: TypeAlias = Mapping[str, Mapping[str, Parameter]]
PACE_S_MIN = 0.0005


@dataclass(frozen=True)
class ConnectionTelemetry:
    """The counters of one connection. Totals count from its start, deltas from the last step.

    Arrays are int64, shape (paths,). Bytes and segments include retransmissions. `rtt_ns` is the
    smoothed round-trip time (0 before the first sample); `usable` is 1 or 0.
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
        """Loss rate by path since the last step: segments declared lost / segments sent."""
        return self.segments_lost_delta / np.maximum(self.segments_sent_delta, 1)


@dataclass(frozen=True)
class Telemetry:
    """The input of a step of the control loop."""

    step: int  # number of the step, from 0
    now_ns: int  # time.monotonic_ns()
    interval_ns: int  # time since the previous step; 0 at the first step
    connections: tuple[ConnectionTelemetry, ...]
    policies: Mapping[str, PolicyState]  # family -> its policy, with the current parameters


Step: TypeAlias = Callable[[Telemetry], Updates | None]


class ControlLoop:
    """Calls `step` every `pace_s` seconds in its own thread and sets the parameters it returns.

    `target` is a connection or an endpoint. For an endpoint a step sees every open connection;
    updates apply to connections that use the endpoint's policies. Use the loop in a `with`. An
    exception in a step ends the loop and is raised again at the end of the `with`; the policies
    keep their parameters.
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
            raise InvalidArgumentError(
                f"pace_s: must be finite and at least {PACE_S_MIN} s, not {pace_s}"
            )
        self._target, self._step, self._pace_s = target, step, pace_s
        self._on_error = on_error
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._before: dict[Connection, _Totals] = {}
        self._last_ns = 0
        self.steps = 0
        self.late = 0  # number of steps that ended after the next step was due
        self.error: BaseException | None = None

    def start(self) -> Self:
        """Starts the loop. RuntimeError if it was started before."""
        if self._thread is not None:
            raise RuntimeError("the control loop was started before: make a new one")
        self._thread = threading.Thread(target=self._run, name="weft-control", daemon=True)
        self._thread.start()
        return self

    def stop(self) -> None:
        """Waits for the current step and ends the loop; raises the error of a failed step."""
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
        """Runs one step in the calling thread, for tests and for callers with their own loop."""
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
                    due_s = now_s  # skip the missed steps
                self._stopping.wait(due_s - now_s)
        except BaseException as error:
            if self._target.closed and isinstance(error, WeftError):
                return  # the target was closed, so this error is expected
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
                continue  # the connection was closed after _connections() listed it
            seen.append(totals[connection].since(self._before.get(connection)))
        self._before = totals
        return Telemetry(self.steps, now_ns, interval_ns, tuple(seen), self._target.policies)

    def _connections(self) -> list[Connection]:
        if isinstance(self._target, Connection):
            self._target.check()
            return [self._target]
        return self._target.connections


def _checked(updates: Any) -> Updates:
    """Checks the value that a step returned; TypeError if it is no mapping of mappings."""
    if updates is None:
        return {}
    whole = isinstance(updates, Mapping)
    if whole and all(isinstance(params, Mapping) for params in updates.values()):
        return updates  # type: ignore[no-any-return]
    raise TypeError(
        "a step must return None or parameters by family, as in "
        f'{{"window": {{"window_bytes": 100_000}}}}; the step returned {updates!r:.80}'
    )


class _Totals:
    """Reads a connection's counters once."""

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
