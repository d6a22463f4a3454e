"""Tests that the equality check finds differences, and that its interpreter is correct."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("numba")

from congestion.api import PATH_HEAD, Policy, record, window_policy
from congestion.registry import find, policies
from transport.compiler.interpret import Interpreted
from transport.compiler.library import jit
from transport.conformance.answers import complaint
from transport.conformance.equality import Bout, play_interpreted
from transport.conformance.native_side import GUARD_BYTES, Guarded, NativeSide
from transport.conformance.records import Interpreter
from transport.conformance.streams import CHUNK, Chunk, Stream

every_policy = pytest.mark.parametrize(
    "policy",
    [entry.policy for entry in policies().values()],
    ids=[f"{family}-{name}" for family, name in policies()],
)


def slowly(policy: Policy, chunk: Chunk) -> tuple[list[int], list[bytes], bytes]:
    """Runs events with transport.compiler.interpret, whose results records.py must reproduce."""
    runner, params = Interpreted(policy), policy.params.filled()
    flow, shared = policy.flow.zeros(), policy.shared.zeros(chunk.shared)
    statuses, answers, last = [], [], 0
    for at, hook in enumerate(chunk.hooks):
        event, result = chunk.events[at : at + 1].copy(), chunk.presets[at : at + 1].copy()
        if chunk.heads is not None and at % chunk.heads_every == 0:
            for name in PATH_HEAD.defaults:
                shared[name] = chunk.heads[at // chunk.heads_every][name]
        if policy.family.name == "credit":
            event["granted_bytes"] = result["granted_bytes"] = last
        status = runner.call(
            policy.family.hooks[hook],
            flow=flow,
            shared=shared if policy.family.shared else None,
            params=params,
            event=event,
            result=result,
        )
        if status:
            flow, shared = policy.flow.zeros(), policy.shared.zeros(chunk.shared)
        elif policy.family.name == "credit":
            last = max(last, int(result["granted_bytes"][0]))
        statuses.append(status)
        answers.append(result.tobytes())
    return statuses, answers, (flow.tobytes() + shared.tobytes())


@every_policy
def test_records__mean_what_the_interpreter_means(policy: Policy) -> None:
    chunk = Stream(policy, 11).chunk(extreme=False)
    part = replace(chunk, hooks=chunk.hooks[:400], events=chunk.events, presets=chunk.presets)
    statuses, answers, state = slowly(policy, part)
    fast = Interpreter(policy)
    found, results, fast_state = play_interpreted(
        fast, replace(part, events=chunk.events[:400], presets=chunk.presets[:400])
    )
    assert found.tolist() == statuses
    assert [one.tobytes() for one in results] == answers
    assert fast_state == state


def hold(flow: Any, params: Any, event: Any, result: Any) -> None:
    result.window_bytes = 1e6


def double(flow: Any, params: Any, event: Any, result: Any) -> None:
    flow.seen = event.acked_segments
    result.window_bytes = 2.0 * event.acked_bytes + 1.0


def nearly(flow: Any, params: Any, event: Any, result: Any) -> None:
    flow.seen = event.acked_segments
    result.window_bytes = 2.0000000000000004 * event.acked_bytes + 1.0


def forgets(flow: Any, params: Any, event: Any, result: Any) -> None:
    flow.seen = 0
    result.window_bytes = 2.0 * event.acked_bytes + 1.0


def policy_of(hook: Any) -> Policy:
    return window_policy(
        "one", flow=record(seen=int), on_start=hold, on_ack=hook, on_loss=hold, on_timeout=hold
    )


@pytest.mark.parametrize(
    ("other", "words"), [(nearly, "other answers"), (forgets, "records differ")]
)
def test_equality__one_bit_of_an_answer_or_a_record_is_seen(other: Any, words: str) -> None:
    libraries = {"one": jit(policy_of(double)), "other": jit(policy_of(other))}
    trial = Bout(policy_of(double), libraries, 3).run(40_000)
    assert "seed 3, event" in trial.wrong[0]
    assert words in trial.wrong[0]
    against = Bout(policy_of(other), {"one": libraries["one"]}, 3).run(40_000)
    assert "interpreted" in against.wrong[0]


def test_equality__the_same_seed_is_the_same_stream() -> None:
    policy = find("loss", "rack")
    one, other = (list(Stream(policy, 5).chunks(6_000)) for _ in range(2))
    assert [a.events.tobytes() for a in one] == [b.events.tobytes() for b in other]
    assert Stream(policy, 6).chunk(False).events.tobytes() != one[0].events.tobytes()


def edge(flow: Any, params: Any, event: Any, result: Any) -> None:
    flow.seen += 1
    result.window_bytes = 1e6 + (event.acked_bytes * event.rtt_ns) % 7


def test_equality__what_leaves_64_bits_is_counted_and_not_compared() -> None:
    policy = window_policy(
        "edge", flow=record(seen=int), on_start=hold, on_ack=edge, on_loss=edge, on_timeout=edge
    )
    bout = Bout(policy, {"compiled": jit(policy)}, 1)
    for _ in range(3):
        bout.play(bout.stream.chunk(extreme=True))
    assert bout.trial.wrong == []
    assert 100 < bout.trial.beyond < 3 * CHUNK


def test_guards__a_byte_beside_a_record_is_seen() -> None:
    guarded = Guarded(find("window", "swift").flow.dtype, 1)
    assert guarded.intact()
    guarded.records["window_bytes"] = 1.0
    assert guarded.intact()
    for where in (GUARD_BYTES - 1, len(guarded._memory) - 1):
        guarded._memory[where] ^= 1
        assert not guarded.intact()
        guarded._memory[where] ^= 1


def test_native_side__parameters_stay_as_they_are() -> None:
    policy = find("window", "swift")
    side = NativeSide(policy, jit(policy))
    assert side.complaint() == ""
    side.params.records["decrease_gain"] = 0.0
    assert side.complaint() == "the parameters were written"


def answers_of(family: str, name: str, **wrong: float) -> str:
    """The text of complaint() about one wrong answer among plausible answers."""
    policy = find(family, name)
    chunk = Stream(policy, 2).chunk(extreme=False)
    statuses, results, _ = play_interpreted(Interpreter(policy), chunk)
    assert complaint(policy.family, chunk, statuses, results) == ""
    at = next(i for i, hook in enumerate(chunk.hooks) if hook == 1 and i > 5)
    for field, value in wrong.items():
        results[field][at] = value
    return complaint(policy.family, chunk, statuses, results)


def test_answers__out_of_range_is_named() -> None:
    assert "stops the flow" in answers_of("window", "fixed", window_bytes=-1.0)
    assert "not finite" in answers_of("window", "fixed", window_bytes=np.nan)
    assert "negative rate" in answers_of("window", "fixed", pacing_bytes_per_s=-1.0)
    assert "paths" in answers_of("path", "fixed", path=1_000)
    assert "empty burst" in answers_of("path", "fixed", burst_bytes=0)
    assert "future" in answers_of("loss", "fixed", lost_sent_before_ns=1 << 62)
    assert "taken back" in answers_of("credit", "fixed", granted_bytes=-5)


def test_example__passes_the_suite_and_promises_nothing(tmp_path: Path) -> None:
    from transport.compiler.source import load
    from transport.conformance import Settings, check_policy, unpromised

    policy = load(Path(__file__).parents[2] / "examples" / "my_policy.py")
    report = check_policy(policy, Settings(5_000, quick=True))
    assert report.passed, report.failures
    assert "fairness_min" in unpromised(policy)
    assert unpromised(find("window", "cubic")) == []
    assert "reorder_segments" not in unpromised(find("loss", "go_back_n"))  # go_back_n declares 0


def test_convergence__a_promise_that_is_not_kept_fails_and_says_what_was_measured() -> None:
    from dataclasses import replace

    from transport.conformance import Settings, check_policy

    policy = find("window", "dctcp")
    hasty = replace(policy, promises=replace(policy.promises, convergence_rtts=5))
    report = check_policy(hasty, Settings(5_000, quick=True))
    assert [outcome.check for outcome in report.failures] == ["converges"]
    assert "until a newcomer has half its share" in report.failures[0].measured
