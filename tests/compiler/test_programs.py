"""Tests that random programs give equal results and failures compiled and interpreted."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

pytest.importorskip("numba")

from transport.compiler import Interpreted, source
from transport.compiler.library import Library, jit

from .programs import Program

EVENTS = 60


@pytest.mark.parametrize("seed", [*range(20), 66])
def test_programs__compiled_equals_interpreted(seed: int, tmp_path: Path) -> None:
    path = tmp_path / "program.py"
    path.write_text(Program(seed).text())
    policy = source.load(path)
    runners: list[Library | Interpreted] = [jit(policy), Interpreted(policy)]
    flows = [policy.flow.zeros(), policy.flow.zeros()]
    event, result = policy.family.event.zeros(), policy.family.result.zeros()
    draw = random.Random(seed)
    for step in range(EVENTS):
        event["path"] = draw.randint(-5, 5)
        event["rtt_ns"] = draw.choice((0, 1, -7, 10**9, draw.randint(0, 10**6)))
        event["rand"] = draw.choice((0.0, draw.random(), -10 * draw.random(), 1e9 * draw.random()))
        statuses = [
            runner.call(
                "on_ack",
                flow=flow,
                shared=None,
                params=policy.params.filled(),
                event=event,
                result=result,
            )
            for runner, flow in zip(runners, flows, strict=True)
        ]
        assert statuses[0] == statuses[1], step
        if statuses[0] != 0:  # the records of a failed call are undefined
            flows = [policy.flow.zeros(), policy.flow.zeros()]
            continue
        for name in policy.flow.defaults:
            one, other = (flow[name].tobytes() for flow in flows)
            both_nan = all((flow[name] != flow[name]).all() for flow in flows)
            assert one == other or both_nan, (step, name)
