"""Decides that what policies decide on live flows is written down whole, and replays bit for bit.

Never judges a policy.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.api.support import LOCAL, PATIENCE_S, content, pair
from transport import Endpoint
from transport.errors import InvalidArgumentError
from transport.recording import (
    MAGIC,
    Recording,
    RecordingEndedError,
    RecordingError,
    parse,
    read,
)


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
    """Both ends of a lossy transfer, every family, from the first decision on."""
    path = tmp_path_factory.mktemp("recording") / "run-%p.weftrec"
    with pair(fault_loss=0.01, credit_policy="grant", record_file=path) as (here, there):
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
    assert all(step.heads.size == 8 for step in picks)


@pytest.mark.parametrize("family", ["window", "path", "loss", "credit"])
def test_replay__of_the_same_policy_decides_the_same_bit_for_bit(
    recorded: list[Recording], family: str
) -> None:
    pytest.importorskip("numba")
    from transport.compiler import Interpreted
    from transport.replay import Replay, named, replay

    steps = max((one.of(family) for one in recorded), key=len)
    assert len(steps) > 20
    policy = named(steps[0].policy.name, family)
    track = replay(policy, steps)
    assert (track.differs, track.failures) == (0, 0)
    assert Replay(policy, Interpreted(policy)).run(steps[:500]).differs == 0


def test_record__a_part_of_a_life(tmp_path: Path) -> None:
    with pair(fault_loss=0.01) as (here, there):
        traffic(here, there, messages=2)
        endpoint = here._endpoint
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
        with here._endpoint.record(tmp_path / "swap.weftrec") as live:
            traffic(here, there, messages=1)
            for limit in range(40):  # more than the encoder remembers, and addresses that come back
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
    from transport.replay import named, replay

    with pair(window_policy="swift:start_divisor=64,increase_segments=9") as (here, there):
        with here._endpoint.record(tmp_path / "params.weftrec") as live:
            traffic(here, there, messages=2)
            here.set_params("window", increase_segments=2)
            traffic(here, there, messages=2)
        steps = read(live.path).of("window")
    swift = named("swift", "window")
    assert replay(swift, steps).differs == 0
    assert replay(swift, steps, params={}).differs > 0  # the defaults


def test_record__two_of_a_process_have_files_of_their_own(tmp_path: Path) -> None:
    with pair() as (here, there):
        name = tmp_path / "%p" / "both-%p"
        (tmp_path / str(os.getpid())).mkdir()
        with here._endpoint.record(name) as one, there._endpoint.record(name) as other:
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
    with pytest.raises(InvalidArgumentError, match="cannot record into"):
        Endpoint(**LOCAL, record_file=str(tmp_path / "absent" / "x"))


def test_record__a_full_file_ends_and_traffic_goes_on(tmp_path: Path) -> None:
    with pair(record_bytes_max=65_536) as (here, there):
        live = here._endpoint.record(tmp_path / "small.weftrec")
        traffic(here, there, messages=12)
        with pytest.raises(RecordingEndedError, match="has reached WEFT_RECORD_BYTES_MAX"):
            live.stop()
        found = read(live.path)
        assert not found.cut
        assert live.decisions == len(found.steps) > 0
        assert live.lost == found.lost > 0
        assert live.path.stat().st_size == live.size_bytes <= 65_536 + 24  # and the gap's entry


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
    says = ""
    try:
        found = parse(bytes(image))
    except RecordingError as error:
        says = str(error)
    else:
        assert all(step.event.shape == (1,) for step in found.steps)
    assert says == "" or "damaged" in says or "another version" in says
