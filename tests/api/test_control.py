"""Tests control loops: they see traffic, set parameters at their pace, and disturb no flow."""

from __future__ import annotations

import subprocess
import sys
import threading
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from examples.learn_weights import Learner
from tests.api.support import PATIENCE_S, ROOT, content, pair
from tests.waiting import until
from transport import Connection, ControlLoop, Telemetry
from transport.errors import InvalidArgumentError

SIZE = 400_000


def traffic(here: Connection, there: Connection, until: threading.Event | None = None) -> int:
    """Sends messages in one direction until stopped, at least 4; returns their number."""
    count = 0
    while count < 4 or (until is not None and not until.is_set()):
        want = content(SIZE, count)
        into = np.zeros(SIZE, np.uint8)
        handle = there.irecv_into(into)
        here.send(want)
        handle.wait(PATIENCE_S)
        assert into.tobytes() == want
        count += 1
    return count


def test_step__sees_totals_and_what_changed_since() -> None:
    seen: list[Telemetry] = []
    with pair(paths=4) as (here, there):
        loop = ControlLoop(here, lambda telemetry: seen.append(telemetry))
        loop.once()
        traffic(here, there)
        loop.once()
        loop.once()
        assert loop.steps == 3
    first, second, third = (one.connections[0] for one in seen)
    assert seen[0].interval_ns == 0
    assert seen[1].interval_ns > 0
    assert first.bytes_sent.shape == (4,)
    assert second.bytes_sent_delta.sum() >= 4 * SIZE
    assert (second.bytes_sent - second.bytes_sent_delta == first.bytes_sent).all()
    assert third.bytes_sent_delta.sum() == 0
    assert (second.rtt_ns > 0).all()
    assert second.window_bytes > 0
    assert third.inflight_bytes == 0
    assert seen[0].policies["window"].name == "swift"


def test_updates__reach_live_flows_and_nothing_is_lost() -> None:
    wanted = iter(range(100_000, 10**9, 1_000))
    done = threading.Event()

    def step(telemetry: Telemetry) -> dict[str, dict[str, int]]:
        window_bytes = next(wanted)
        if window_bytes > 120_000:
            done.set()
        return {"window": {"window_bytes": window_bytes}}

    with pair(window_policy="fixed") as (here, there):
        endpoint = here._owner
        with ControlLoop(endpoint, step, pace_s=0.002) as loop:
            traffic(here, there, done)
        assert loop.steps > 20
        in_force = here.policies["window"].params["window_bytes"]
        assert in_force == 100_000 + (loop.steps - 1) * 1_000
        here.check()


def test_step__that_raises_ends_the_loop_and_not_the_traffic() -> None:
    told: list[BaseException] = []

    def step(telemetry: Telemetry) -> None:
        raise ZeroDivisionError("of mine")

    with pair() as (here, there):
        with (
            pytest.raises(ZeroDivisionError, match="of mine"),
            ControlLoop(here, step, pace_s=0.001, on_error=told.append) as loop,
        ):
            traffic(here, there)
        assert [type(one) for one in told] == [ZeroDivisionError]
        assert loop.steps == 1
        traffic(here, there)


def test_step__a_parameter_that_does_not_exist_is_an_error() -> None:
    with pair() as (here, _):
        loop = ControlLoop(here, lambda telemetry: {"window": {"speed": 1}}, pace_s=0.001)
        loop.start()
        until(lambda: loop.error is not None, "the loop continues")
        with pytest.raises(InvalidArgumentError, match="no parameter 'speed'"):
            loop.stop()


def test_loop__ends_quietly_with_what_it_looks_after() -> None:
    with pair() as (here, there):
        loop = ControlLoop(here, lambda telemetry: None, pace_s=0.001).start()
        traffic(here, there)
        here.close()
        until(lambda: loop._thread is None or not loop._thread.is_alive(), "the loop continues")
        loop.stop()
        assert loop.error is None


def test_loop__refuses_a_pace_that_would_starve_the_engines() -> None:
    with pair() as (here, _), pytest.raises(ValueError, match="pace_s"):
        ControlLoop(here, lambda telemetry: None, pace_s=0.0)


@pytest.mark.parametrize("pace_s", [float("inf"), float("nan"), -1.0])
def test_loop__a_pace_is_finite(pace_s: float) -> None:
    with pair() as (here, _), pytest.raises(ValueError, match="pace_s: must be"):
        ControlLoop(here, lambda telemetry: None, pace_s=pace_s)


@pytest.mark.parametrize("returned", [3, 0, [], "swift", {"window": 3}, [("window", {})]])
def test_step__that_returns_something_else_is_told_what_to_return(returned: Any) -> None:
    with pair() as (here, _):
        loop = ControlLoop(here, lambda telemetry: returned)
        with pytest.raises(TypeError, match="a step must return None or parameters by family"):
            loop.once()


def test_fault_paths__only_those_named_lose() -> None:
    with pair(fault={"loss": 1.0, "paths": "0+2"}, paths=4) as (here, there):

        def only_those_are_down() -> bool:
            traffic(here, there)
            return [bool(path.usable) for path in here.counters().paths] == [False, True] * 2

        until(only_those_are_down, lambda: str(here.counters().paths))


def test_example__weights_of_lossy_paths_fall() -> None:
    learner = Learner(paths=4)
    lossy: Any = SimpleNamespace(
        segments_sent_delta=np.full(4, 1_000), loss_share=np.array([0.2, 0.0, 0.2, 0.0])
    )
    for _ in range(100):
        learner(Telemetry(step=1, now_ns=0, interval_ns=0, connections=(lossy,), policies={}))
    assert (learner.weight[0::2] < 0.2).all()
    assert (learner.weight[1::2] == 1.0).all()


def test_example__weights_are_learned() -> None:
    command = [sys.executable, "-m", "examples.learn_weights"]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "the lossy paths carry " in done.stdout
