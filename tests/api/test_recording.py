"""Tests that decisions of live flows are recorded completely and replay bit for bit."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from congestion.registry import find
from tests.api.support import LOCAL, PATIENCE_S, content, pair
from tests.waiting import until
from transport import Endpoint
from transport.compiler.source import load as load_source
from transport.errors import InvalidArgumentError
from transport.policies.recording import (
    MAGIC,
    Recording,
    RecordingEndedError,
    RecordingError,
    parse,
    read,
)
from transport.policies.replay import replay


def traffic(here: Any, there: Any, messages: int = 6, size: int = 1_500_000) -> None:
    for number in range(messages):
        want = content(size, number)
        into = np.zeros(size, np.uint8)
        handle = there.irecv_into(into)
        here.send(want)
        handle.wait(PATIENCE_S)
        assert into.tobytes() == want


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> list[Recording]:
    """Recordings of both ends of a lossy transfer: all policy families, from the first decision."""
    path = tmp_path_factory.mktemp("recording") / "run-%p.weftrec"
    with pair(fault={"loss": 0.01}, credit_policy="grant", record_file=path) as (here, there):
        traffic(here, there)
    files = sorted(path.parent.iterdir())
    assert [file.name for file in files] == [
        f"run-{os.getpid()}.weftrec",
        f"run-{os.getpid()}.weftrec.2",
    ]
    return [read(file) for file in files]


def test_recording__holds_every_family_in_order(recorded: list[Recording]) -> None:
    sender = max(recorded, key=lambda one: len(one.of("window")))
    receiver = max(recorded, key=lambda one: len(one.of("credit")))
    assert sender.policies()["window"] == ["swift"]
    assert {"path", "window", "loss"} <= set(sender.policies())
    assert receiver.policies()["credit"] == ["grant"]
    for one in recorded:
        assert (one.lost, one.cut) == (0, False)
        for family in one.policies():
            times = [int(step.event["now_ns"][0]) for step in one.of(family)]
            assert times == sorted(times)
    starts = [step for step in sender.of("window") if step.hook == 0]
    assert len(starts) == 1
    assert sender.of("window")[0] is starts[0]
    picks = [step for step in sender.of("path") if step.hook == 1]
    assert all(step.heads.size == 32 for step in picks)


@pytest.mark.parametrize("family", ["window", "path", "loss", "credit"])
def test_replay__of_the_same_policy_decides_the_same_bit_for_bit(
    recorded: list[Recording], family: str
) -> None:
    pytest.importorskip("numba")
    from transport.compiler import Interpreted
    from transport.policies.replay import Replay, replay

    steps = max((one.of(family) for one in recorded), key=len)
    assert len(steps) > 20
    policy = find(family, steps[0].policy.name)
    track = replay(policy, steps)
    assert (track.differs, track.failures) == (0, 0)
    assert Replay(policy, Interpreted(policy)).run(steps[:500]).differs == 0


COUNTING = """
from congestion.api import loss_policy, record

Flow = record(calls=int)
Path = record(calls=int)


def decide(flow, paths, params, event, result):
    total = 0
    for index in range(len(paths)):
        total += paths[index].calls
    paths[event.path].calls += 1
    result.next_check_ns = event.now_ns + 1_000_000 * len(paths) + total


POLICY = loss_policy("counting", flow=Flow, path=Path, on_ack=decide, on_timer=decide)
"""


def test_replay__a_loss_policy_has_the_paths_it_had(tmp_path: Path) -> None:
    pytest.importorskip("numba")
    from transport.compiler import Interpreted
    from transport.compiler.source import load
    from transport.policies.replay import Replay

    file = tmp_path / "counting.py"
    file.write_text(COUNTING)
    with pair(loss_policy=str(file), paths=3, record_file=tmp_path / "loss-%p") as (here, there):
        traffic(here, there, messages=2)
    steps = max((read(one).of("loss") for one in tmp_path.glob("loss-*")), key=len)
    assert {step.paths for step in steps} == {3}
    policy = load(file)
    assert Replay(policy, Interpreted(policy)).run(steps).differs == 0


CALLS = """
from congestion.api import record, window_policy

Flow = record(calls=int)


def count(flow, params, event, result):
    flow.calls += 1
    result.window_bytes = 1_000_000.0 + flow.calls


POLICY = window_policy(
    "calls", flow=Flow, on_start=count, on_ack=count, on_loss=count, on_timeout=count
)
"""


def test_replay__through_a_swap_the_recorded_restarts_and_others_go_on(tmp_path: Path) -> None:
    pytest.importorskip("numba")
    from transport.compiler.source import load
    from transport.policies.replay import replay

    file = tmp_path / "calls.py"
    file.write_text(CALLS)

    with pair() as (here, there):
        with here._owner.record(tmp_path / "swap.weftrec") as live:
            for policy in ("swift", "fixed", "bbr", "swift"):
                here.set_policy("window", policy)
                traffic(here, there, messages=2)
        steps = read(live.path).of("window")
    starts = [index for index, step in enumerate(steps) if step.hook == 0]
    assert len(starts) == 4
    swift = replay(find("window", "swift"), steps)
    for from_, end in ((starts[0], starts[1]), (starts[3], len(steps))):
        told = [tuple(step.result[0].item()) for step in steps[from_:end]]
        assert swift.answers[from_:end] == told
    calls = 0
    for index, answer in enumerate(replay(load(file), steps).answers):
        calls += index not in starts[1:]  # the replayed policy ignores a recorded restart
        assert answer[0] == 1_000_000.0 + calls


def test_replay__other_code_of_the_same_name_keeps_its_own_parameters(tmp_path: Path) -> None:
    pytest.importorskip("numba")
    from transport.compiler.source import load
    from transport.policies.replay import replay

    text = (Path(__file__).parents[2] / "examples" / "my_policy.py").read_text()
    then, now = tmp_path / "then.py", tmp_path / "now.py"
    then.write_text(text)
    # The new source has as many parameters, but with other meanings.
    now.write_text(
        text.replace("window_bytes_min=131_072.0, factor=0.5", "factor=0.5, floor=1.0").replace(
            "params.window_bytes_min", "params.floor"
        )
    )
    with pair(window_policy=f"{then}:factor=0.9", record_file=tmp_path / "run") as (here, there):
        traffic(here, there, messages=1)
    steps = read(tmp_path / "run").of("window")
    other = replay(load(now), steps)
    assert (other.other_version, other.failures) == (True, 0)
    assert not replay(load(then), steps).other_version
    assert replay(load(then), steps).differs == 0
    assert replay(load(now), steps).answers == replay(load(now), steps, params={}).answers


def test_record__a_part_of_a_life(tmp_path: Path) -> None:
    with pair(fault={"loss": 0.01}) as (here, there):
        traffic(here, there, messages=2)
        endpoint = here._owner
        with endpoint.record(tmp_path / "part.weftrec") as live:
            traffic(here, there, messages=2)
            with pytest.raises(InvalidArgumentError, match=r"already recording into .*part"):
                endpoint.record(tmp_path / "other.weftrec")
        traffic(here, there, messages=2)
        found = read(live.path)
        assert live.decisions == len(found.steps) > 0
        assert live.size_bytes == live.path.stat().st_size
        assert live.lost == found.lost == 0
        live.stop()
        with endpoint.record(tmp_path / "again.weftrec"):
            traffic(here, there, messages=1)
        assert read(tmp_path / "again.weftrec").steps


def test_record__parameters_and_swaps_are_in_the_file(tmp_path: Path) -> None:
    with pair() as (here, there):
        with here._owner.record(tmp_path / "swap.weftrec") as live:
            traffic(here, there, messages=1)
            for limit in range(40):  # more flows than the encoder remembers
                here.set_policy("window", "fixed", window_bytes=200_000 + limit)
                traffic(here, there, messages=1, size=100_000)
                here.set_params("window", window_bytes=300_000 + limit)
                traffic(here, there, messages=1, size=100_000)
        steps = read(live.path).of("window")
    used = [int.from_bytes(s.policy.params, "little") for s in steps if s.policy.name == "fixed"]
    assert set(used) == {base + limit for base in (200_000, 300_000) for limit in range(40)}
    answers = {int(step.result["window_bytes"][0]) for step in steps if step.policy.name == "fixed"}
    assert answers == set(used)


def test_replay__follows_the_parameters_that_were_in_force(tmp_path: Path) -> None:
    pytest.importorskip("numba")
    from transport.policies.replay import replay

    with pair(window_policy="swift:start_divisor=64,increase_segments=9") as (here, there):
        with here._owner.record(tmp_path / "params.weftrec") as live:
            traffic(here, there, messages=2)
            here.set_params("window", increase_segments=2)
            traffic(here, there, messages=2)
        steps = read(live.path).of("window")
    swift = find("window", "swift")
    assert replay(swift, steps).differs == 0
    assert replay(swift, steps, params={}).differs > 0  # replayed with default parameters


def test_record__two_of_a_process_have_files_of_their_own(tmp_path: Path) -> None:
    with pair() as (here, there):
        name = tmp_path / "%p" / "both-%p"
        (tmp_path / str(os.getpid())).mkdir()
        with here._owner.record(name) as one, there._owner.record(name) as other:
            traffic(here, there, messages=1)
        assert str(other.path) == f"{one.path}.2"
        assert str(os.getpid()) in one.path.name
        assert read(one.path).of("window")
        assert not read(other.path).of("window")


def test_record__a_place_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    with Endpoint(**LOCAL) as endpoint:
        with pytest.raises(InvalidArgumentError, match=r"cannot record into .*/absent/x: No such"):
            endpoint.record(tmp_path / "absent" / "x")
        with endpoint.record(tmp_path / "fine"):
            pass
        with pytest.raises(InvalidArgumentError, match="it must be at least 65536"):
            endpoint.record(tmp_path / "small", bytes_max=65_535)
    with pytest.raises(InvalidArgumentError, match="cannot record into"):
        Endpoint(**LOCAL, record_file=str(tmp_path / "absent" / "x"))


def test_record__a_full_file_ends_and_traffic_goes_on(tmp_path: Path) -> None:
    with pair() as (here, there):
        live = here._owner.record(tmp_path / "small.weftrec", bytes_max=65_536)
        empty_bytes = live.path.stat().st_size

        def some_are_written() -> bool:
            traffic(here, there, messages=1, size=1)
            return bool(live.path.stat().st_size > empty_bytes)

        # All decisions since the last write may be too many for the file, if its thread comes late.
        until(some_are_written, "no decision was written")
        traffic(here, there, messages=12)
        with pytest.raises(RecordingEndedError, match="has reached its limit of 65536 bytes"):
            live.stop()
        found = read(live.path)
        assert not found.cut
        assert live.decisions == len(found.steps) > 0
        assert live.lost == found.lost > 0
        assert (
            live.path.stat().st_size == live.size_bytes <= 65_536 + 24
        )  # 24 bytes: the entry that marks the gap


def test_read__what_is_cut_keeps_what_came_before(recorded: list[Recording]) -> None:
    image = recorded[0].path.read_bytes()
    whole = parse(image)
    cut = parse(image[:-7])
    assert cut.cut
    assert len(cut.steps) == len(whole.steps) - 1
    assert len(read(recorded[0].path, limit=5).steps) == 5


def test_read__what_is_no_recording_is_refused(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_bytes(b"something else")
    for path, says in ((other, "not a recording"), (tmp_path / "absent", "No such file")):
        with pytest.raises(RecordingError, match=says):
            read(path)
    assert parse(MAGIC).steps == []


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_read__damage_is_an_error_or_a_shorter_recording(
    recorded: list[Recording], data: st.DataObject
) -> None:
    image = bytearray(recorded[0].path.read_bytes()[:20_000])
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(len(MAGIC), len(image) - 1))
        image[at] = data.draw(st.integers(0, 255))
    try:
        found = parse(bytes(image))
    except RecordingError as error:
        says = str(error)
    else:
        says = found.damage
        assert all(step.event.shape == (1,) for step in found.steps)
    assert says == "" or "damaged at byte" in says or "another version" in says


def test_read__what_came_before_damage_is_there(recorded: list[Recording]) -> None:
    image = recorded[0].path.read_bytes()
    whole = parse(image)
    damaged = parse(image[:40_000] + b"\xff" * 2000 + image[42_000:])
    assert "damaged at byte" in damaged.damage
    assert 0 < len(damaged.steps) < len(whole.steps)
    first = [step.event.tobytes() for step in whole.steps[: len(damaged.steps) - 1]]
    assert [step.event.tobytes() for step in damaged.steps[:-1]] == first


def test_read__a_recording_of_another_version_is_refused() -> None:
    with pytest.raises(RecordingError, match="another version of weft; record it again"):
        parse(b"weftrec1" + bytes(64))


@pytest.mark.parametrize("name", ["hpcc", "poseidon", "powertcp"])
def test_recording__sockets_bring_no_telemetry_and_its_policies_work(
    name: str, tmp_path: Path
) -> None:
    path = tmp_path / "run-%p.weftrec"
    with pair(window_policy=name, record_file=path) as (here, there):
        traffic(here, there, messages=3)
    steps = [step for file in sorted(tmp_path.iterdir()) for step in read(file).of("window")]
    assert {step.policy.name for step in steps} == {name}
    assert any(step.hook == 1 for step in steps)
    assert not any(step.failed or step.event["hops"].any() for step in steps)


# A window policy that fails if a hook is told what it must not be; it reads the delivery rate.
HOOKS = """
from congestion.api import record, window_policy

Flow = record(sent_bytes=int, due_ns=int)
Path = record(sent_bytes=int, acked_bytes=int)

def start(flow, paths, params, event, result):
    result.window_bytes = 64.0 * event.segment_bytes
    flow.due_ns = event.now_ns + 50_000
    result.next_timer_ns = flow.due_ns

def ack(flow, paths, params, event, result):
    paths[event.path].acked_bytes += event.acked_bytes
    if paths[event.path].acked_bytes > paths[event.path].sent_bytes:
        raise ValueError("acknowledged more than was sent on the path")
    if event.delivery_bytes_per_s < 0.0:
        raise ValueError("a negative rate")

def other(flow, paths, params, event, result):
    pass

def timer(flow, paths, params, event, result):
    if event.now_ns < flow.due_ns:
        raise ValueError("too early")
    flow.due_ns = event.now_ns + 50_000
    result.next_timer_ns = flow.due_ns

def send(flow, paths, params, event, result):
    flow.sent_bytes += event.sent_bytes
    paths[event.path].sent_bytes += event.sent_bytes
    if event.inflight_bytes < event.sent_bytes or event.delivered_bytes > flow.sent_bytes:
        raise ValueError("the bytes in flight do not add up")

POLICY = window_policy(
    "hooks", flow=Flow, path=Path, on_start=start, on_ack=ack, on_loss=other, on_timeout=other,
    on_timer=timer, on_send=send,
)
"""


def test_recording__timers_sends_and_path_records_work_over_sockets(tmp_path: Path) -> None:
    pytest.importorskip("numba")
    (policies := tmp_path / "policies").mkdir()
    (source := policies / "hooks.py").write_text(HOOKS)
    (files := tmp_path / "files").mkdir()
    knobs = {"window_policy": source, "record_file": files / "run-%p.weftrec", "paths": 4}
    with pair(**knobs, fault={"loss": 0.01}) as (here, there):
        traffic(here, there, messages=4)
    steps = [step for file in sorted(files.iterdir()) for step in read(file).of("window")]
    assert {step.hook for step in steps} >= {0, 1, 4, 5}
    assert {step.paths for step in steps} == {4}
    assert not any(step.failed for step in steps)
    assert any(step.event["delivery_bytes_per_s"][0] > 0 for step in steps)
    for file in sorted(files.iterdir()):
        track = replay(load_source(source), read(file).steps)
        assert (track.differs, track.failures) == (0, 0)
