"""Tests how a trace is cut into windows, and what counts as a rank's own time in a receive."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tests.diagnose.test_rules import STEP_NS, STEPS, facts_of_steps, usual
from transport.diagnose.measures import received_ns
from transport.diagnose.windows import WINDOW_MIN_NS, judged_windows_of, windows_of
from transport.ground.units import time_text

NOW_NS = 1_700_000_000_000_000_000


def test_windows__begin_at_a_collective() -> None:
    facts = facts_of_steps(*usual())
    windows = windows_of(facts)
    assert windows.count == STEPS
    sums = facts.calls["kind"] == "collective"
    moments = np.array(
        [np.median(facts.calls["arrival_ns"][sums][at::STEPS]) for at in range(STEPS)]
    )
    assert (abs(windows.starts_ns - moments) < 1_000).all()
    assert abs(np.diff(windows.starts_ns) - STEP_NS).max() < 10_000


def test_windows__of_a_real_job_are_a_quarter_of_a_second() -> None:
    facts = facts_of_steps(*usual())
    assert judged_windows_of(facts).count == STEPS, "times of a simulation"
    times = ("begin_ns", "arrival_ns", "end_ns")
    slower = {name: facts.calls[name] * 100 + NOW_NS for name in times}
    slower["arrival_ns"] = np.where(facts.calls["arrival_ns"] < 0, -1, slower["arrival_ns"])
    real = replace(facts, calls=facts.calls | slower, end_ns=NOW_NS + STEPS * STEP_NS * 100)
    windows = judged_windows_of(real)
    assert windows.iterations == 3
    assert (np.diff(windows.starts_ns) >= WINDOW_MIN_NS).all()
    assert windows.text_of(2) == (
        f"2 windows (3 iterations, about {time_text(windows.usual_ns)} each)"
    )
    assert windows.iteration_of(2) == f"7 of {3 * windows.count}"


def test_receive__waits_for_the_gpu_only_since_the_last_operation() -> None:
    calls = {
        "process": np.array([0, 0, 0, 1]),
        "function": np.array(["AllReduce", "Recv", "Recv", "Recv"]),
        "arrival_ns": np.array([5, -1, -1, -1]),
        "end_ns": np.array([10, 60, 70, -1]),
        "gpu_wait_ns": np.array([0, 30, 30, 30]),
    }
    assert received_ns(calls).tolist() == [-1, 30, 10, -1]
