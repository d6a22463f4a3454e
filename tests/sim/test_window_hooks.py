"""Timers, send events, path records and delivery samples of window policies, in simulations."""

from pathlib import Path

import numpy as np
import pytest

from congestion.api import WINDOW_EVENT
from transport import native
from transport.compiler import compile_policy
from transport.compiler.emit import event_bytes, result_bytes
from transport.compiler.library import jit, load
from transport.compiler.source import load as load_source
from transport.conformance.equality import Bout
from transport.conformance.streams import Stream
from transport.policies.dumbbell import Flow, Link, Plan, Report, run as run_dumbbell
from transport.policies.recording import parse
from transport.policies.replay import replay
from transport.sim import run

from .support import judge, needs_fabric, scenario

pytest.importorskip("numba")
pytestmark = needs_fabric

LEAVES = "hosts = 4\nhosts_per_leaf = 2\nspines = 2\n"
RATE = 1_250_000_000

# Counts what it is told, in the flow's record and in those of the paths. It fails, so that `fixed`
# takes over and the run counts it, when the condition holds.
COUNTING = """
from congestion.api import record, window_policy

Flow = record(sent_bytes=int, sends=int, timers=int, due_ns=int)
Path = record(sent_bytes=int, acked_bytes=int)

def start(flow, paths, params, event, result):
    result.window_bytes = 64.0 * event.segment_bytes
    flow.due_ns = event.now_ns + 20_000
    result.next_timer_ns = flow.due_ns

def judged(flow, paths, event):
    if {condition}:
        raise ValueError("found")

def ack(flow, paths, params, event, result):
    paths[event.path].acked_bytes += event.acked_bytes
    judged(flow, paths, event)

def other(flow, paths, params, event, result):
    judged(flow, paths, event)

def timer(flow, paths, params, event, result):
    flow.timers += 1
    judged(flow, paths, event)
    flow.due_ns = event.now_ns + 20_000
    result.next_timer_ns = {next_timer}

def send(flow, paths, params, event, result):
    flow.sends += 1
    flow.sent_bytes += event.sent_bytes
    paths[event.path].sent_bytes += event.sent_bytes
    judged(flow, paths, event)

POLICY = window_policy(
    "counting", flow=Flow, path=Path, on_start=start, on_ack=ack, on_loss=other, on_timeout=other,
    on_timer=timer, on_send=send,
)
"""


def counting(folder: Path, condition: str, next_timer: str = "flow.due_ns") -> Path:
    file = folder / "counting.py"
    file.write_text(COUNTING.format(condition=condition, next_timer=next_timer))
    return file


def failures(folder: Path, condition: str, next_timer: str = "flow.due_ns") -> int:
    """How many flows of a permutation met the condition."""
    made = scenario(LEAVES, "[[workload]]\nsize_bytes = 10_000_000\n")
    result = run(made, {"window": str(counting(folder, condition, next_timer))})
    assert result.finished
    return int(result.totals["policies_failed"])


def test_hooks__sends_are_told_with_path_and_bytes(tmp_path: Path) -> None:
    wrong = (
        "event.kind == 4 and (event.sent_segments < 1 or event.sent_bytes < event.sent_segments)",
        "event.kind != 4 and event.sent_bytes + event.sent_segments != 0",
        "event.inflight_bytes < event.sent_bytes",
        "paths[event.path].acked_bytes > paths[event.path].sent_bytes",
        "event.delivered_bytes > flow.sent_bytes",
    )
    assert failures(tmp_path, " or ".join(wrong)) == 0
    assert failures(tmp_path, "flow.sent_bytes >= 10_000_000") == 4
    assert failures(tmp_path, "paths[1].acked_bytes > 0 and len(paths) > 2") == 4


def test_hooks__a_timer_fires_when_asked_and_not_before(tmp_path: Path) -> None:
    assert failures(tmp_path, "event.kind == 3 and event.now_ns < flow.due_ns") == 0
    assert failures(tmp_path, "event.kind == 3 and event.now_ns > flow.due_ns + 1_000") == 0
    assert failures(tmp_path, "flow.timers == 5") == 4
    # 0 keeps what is in force, and none is after a timer; a negative time ends it.
    for never in ("0", "-1"):
        assert failures(tmp_path, "flow.timers == 1", never) == 4
        assert failures(tmp_path, "flow.timers == 2", never) == 0


def dumbbell(source: Path, folder: Path, flow: Flow) -> Report:
    plan = Plan(
        paths=[Link(bytes_per_s=RATE, delay_ns=25_000)] * 2,
        flows=[flow],
        limit_ns=5_000_000,
        recording_bytes_max=1 << 26,
    )
    library = compile_policy(source, folder / "compiled.so")
    plan.choose("window", str(library), [])
    for family, name in (("path", "round_robin"), ("loss", "rack")):
        plan.choose(family, name, [str(native.POLICY_DIRECTORY)])
    report = run_dumbbell(plan)
    assert (report.violation, report.policies_failed) == ("", 0)
    return report


def test_hooks__a_recording_replays_with_timers_sends_and_path_records(tmp_path: Path) -> None:
    source = counting(tmp_path, "flow.sends < 0")
    report = dumbbell(source, tmp_path, Flow(from_host=0, to_host=1))
    steps = list(parse(report.recording).of("window"))
    assert {step.hook for step in steps} >= {0, 1, 4, 5}
    assert all(step.paths == 2 for step in steps)
    track = replay(load_source(source), steps)
    assert (track.differs, track.failures) == (0, 0)


def test_hooks__samples_of_the_delivery_rate_are_that_of_the_links(tmp_path: Path) -> None:
    source = judge(tmp_path, "event.delivery_bytes_per_s < 0.0")
    report = dumbbell(source, tmp_path, Flow(from_host=0, to_host=1))
    steps = parse(report.recording).of("window")
    events = np.concatenate([step.event for step in steps if step.hook == 1])
    samples = events["delivery_bytes_per_s"][len(events) // 4 :]
    assert (samples > 0).mean() > 0.9
    got = np.median(samples[samples > 0])
    growth = events["delivered_bytes"][len(events) // 4 :]
    times = events["now_ns"][len(events) // 4 :]
    rate = float(growth[-1] - growth[0]) * 1e9 / float(times[-1] - times[0])
    assert got == pytest.approx(rate, rel=0.05)
    assert samples.max() < 2.1 * RATE


def test_hooks__only_readers_pay(tmp_path: Path) -> None:
    fields = WINDOW_EVENT.dtype.fields
    assert fields is not None
    for condition, reads in (("event.kind > 9", 0), ("event.delivery_app_limited > 1", 1)):
        policy = load_source(judge(tmp_path, condition))
        library = load(compile_policy(policy, tmp_path / f"judge_{reads}.so"))
        assert (library.descriptor.reads, library.descriptor.hook_count) == (reads, 4)
        assert event_bytes(policy) == fields["hops"][1]
        assert result_bytes(policy) == library.descriptor.result_bytes == 24
    policy = load_source(counting(tmp_path, "flow.sends < 0"))
    library = load(compile_policy(policy, tmp_path / "counting.so"))
    assert (library.descriptor.hook_count, library.descriptor.result_bytes) == (6, 32)


def test_hooks__one_way_time_is_part_of_a_round_trip(tmp_path: Path) -> None:
    made = scenario(LEAVES, "[[workload]]\nsize_bytes = 500_000\n")

    def found(condition: str) -> int:
        result = run(made, {"window": str(judge(tmp_path, condition))})
        return int(result.totals["policies_failed"])

    assert found("event.kind == 0 and event.one_way_ns <= 0") == 0
    assert found("event.kind == 0 and event.one_way_ns >= event.rtt_ns") == 0
    assert found("event.one_way_ns > 2_000") == 4
    assert found("event.hops > 0 and event.one_way_ns == 0") == 0


def test_hooks__compiled_and_interpreted_agree(tmp_path: Path) -> None:
    """The streams of the conformance suite have timers, sends and several paths."""
    policy = load_source(counting(tmp_path, "flow.sends < 0", "event.now_ns + 20_000"))
    chunks = list(Stream(policy, 5).chunks(20_000))
    assert {hook for chunk in chunks for hook in chunk.hooks} == {0, 1, 2, 3, 4, 5}
    assert max(chunk.shared for chunk in chunks) > 1
    trial = Bout(policy, {"one": jit(policy)}, 5).run(20_000)
    assert not trial.wrong
