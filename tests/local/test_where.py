"""Tests which processes' messages pass through shared memory, and which settings forbid it."""

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.api.support import LOCAL, PATIENCE_S, Log, pair, running
from tests.lab.support import reason_to_skip
from tests.local import hostile
from tests.local.support import (
    MODES,
    RING_BYTES,
    agree,
    alive,
    dialled,
    is_local,
    mappings,
    served,
    start,
    words,
)
from transport import Connection, Endpoint, telemetry
from transport.errors import InvalidArgumentError

NOBODY = "65534"
needs_root = pytest.mark.skipif(
    os.geteuid() != 0, reason="only root can start another user's process"
)


@needs_root
def test_user__another_ones_messages_go_over_the_network() -> None:
    before = mappings()
    with served("exchanges_as", NOBODY) as (_, handle), dialled(handle) as connection:
        agree(connection, [0, 5000, 3_000_000], [RING_BYTES, 1])
        assert connection.counters().segments_sent > 0
        assert mappings() == before


@needs_root
def test_user__another_one_that_dials_is_served_over_the_network() -> None:
    before = mappings()
    with (
        Endpoint(**words("auto")) as endpoint,
        endpoint.listen() as listener,
        running(start("dials_as", NOBODY, listener.handle.hex())),
        listener.accept(timeout_s=PATIENCE_S) as connection,
    ):
        agree(connection, [0, 5000, 3_000_000], [RING_BYTES, 1])
        assert connection.counters().segments_sent > 0
        assert mappings() == before


def unshared(*options: str) -> tuple[str, ...]:
    """A command that starts a process in namespaces of its own; skips if the host refuses."""
    command = ("unshare", *options, "--")
    try:
        tried = subprocess.run([*command, "true"], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("there is no unshare(1)")
    if tried.returncode != 0:
        pytest.skip(tried.stderr.strip())
    return command


def test_container__that_maps_no_user_takes_no_memory() -> None:
    """All users, its own too, have one number there: who the other process is cannot be told."""
    inside = unshared("--user")
    with (
        served("exchanges", launcher=inside, WEFT_LOG_LEVEL="info") as (there, handle),
        dialled(handle) as connection,
    ):
        agree(connection, [0, 5000, 3_000_000], [RING_BYTES, 1])
        assert connection.counters().segments_sent > 0
        assert mappings() == 0
        assert "one that is not mapped here" in Log(there).take("messages go over the network")


def test_container__that_maps_no_user_proposes_no_memory() -> None:
    inside = unshared("--user")
    with (
        Endpoint(**words("auto")) as endpoint,
        endpoint.listen() as listener,
        running(
            start("dials", listener.handle.hex(), launcher=inside, WEFT_LOG_LEVEL="info")
        ) as there,
        listener.accept(timeout_s=PATIENCE_S) as connection,
    ):
        agree(connection, [0, 5000, 3_000_000], [RING_BYTES, 1])
        assert connection.counters().segments_sent > 0
        assert mappings() == 0
        said = Log(there).take("messages go over the network")
        assert "stands for all that a user namespace does not map" in said


@pytest.mark.namespaces
@pytest.mark.parametrize("mode", MODES)
def test_container__with_its_own_process_ids(mode: str) -> None:
    if reason := reason_to_skip():
        pytest.skip(reason)
    inside = unshared("--pid", "--fork", "--kill-child", "--mount-proc")
    with (
        served("exchanges", mode=mode, launcher=inside) as (_, handle),
        dialled(handle, mode) as connection,
    ):
        out = [0, 1, 70_000, 5_000_000]
        agree(connection, out, [RING_BYTES, 3_000_000, 2])
        alive(connection)
        assert is_local(connection)
        # The process inside has no number for this one, so it gets all messages through the ring.
        memory = hostile.Memory()
        assert memory.word(hostile.SIDES + hostile.SIDE_BYTES + hostile.COPIES).value % 2 == 0
        assert memory.lane(0, hostile.LENT).value == 0
        assert memory.lane(0, hostile.PRODUCED).value >= sum(out)


@pytest.mark.namespaces
def test_container__with_its_own_interprocess_namespace_changes_nothing() -> None:
    if reason := reason_to_skip():
        pytest.skip(reason)
    inside = unshared("--ipc")
    with served("exchanges", launcher=inside) as (_, handle), dialled(handle) as connection:
        alive(connection)
        assert is_local(connection)


def test_descriptors__of_the_program_are_left_to_it() -> None:
    """Connections that would take the last ones, two each here, go over the network."""
    limit, count = 200, 100
    limited = ("sh", "-c", f'ulimit -n {limit}; exec "$@"', "sh")
    peer = start("opens_many", str(count), launcher=limited, WEFT_LOG_LEVEL="info")
    said, errors = peer.communicate(timeout=PATIENCE_S)
    assert peer.returncode == 0, errors
    found = json.loads(said)
    assert 0 < found["local"] < count
    assert found["left"] >= limit // 8
    assert "too few descriptors are left to this process; raise the limit" in errors


@pytest.mark.parametrize(("here", "there"), [("auto", "ring"), ("ring", "auto")])
def test_modes__of_two_ends_may_differ(here: str, there: str) -> None:
    with served("exchanges", mode=there) as (_, handle), dialled(handle, here) as connection:
        alive(connection)
        assert is_local(connection)


@pytest.mark.parametrize(("here", "there"), [("auto", "off"), ("off", "auto")])
def test_modes__of_one_end_off_means_the_network(here: str, there: str) -> None:
    with served("exchanges", mode=there) as (_, handle), dialled(handle, here) as connection:
        alive(connection)
        assert connection.counters().segments_sent > 0


KNOBS: dict[str, Any] = {
    "credit_policy": "grant",
    "datapath": "auto",
    "eager_bytes": 4096,
    "fault": {"loss": 0.01},
    "loss_policy": "fixed",
    "path_policy": "fixed",
    "paths": 4,
    "payload_crc": "on",
    "record_file": "",
    "segment_bytes": 1200,
    "stripes": 1,
    "traffic_classes": "",
    "window_policy": "cubic",
}


@pytest.mark.parametrize("name", sorted(KNOBS))
def test_knobs__of_the_network_turn_it_off(name: str, tmp_path: Path) -> None:
    given = {"record_file": str(tmp_path / "record"), "traffic_classes": "3 window=dctcp"}
    value = given.get(name, KNOBS[name])
    with pair(local="auto", **{name: value}) as (here, there):
        assert here._owner.summary().split(", local ")[1].startswith(f"off (WEFT_{name.upper()})")
        here.isend(b"over the network")
        assert there.recv(100, timeout_s=PATIENCE_S) == b"over the network"
        assert here.counters().segments_sent > 0
        assert mappings() == 0


@pytest.mark.parametrize(("mode", "text"), [("auto", "on"), ("ring", "ring"), ("off", "off")])
def test_summary__names_the_mode(mode: str, text: str) -> None:
    with Endpoint(**words(mode)) as endpoint:
        assert endpoint.summary().endswith(f", local {text}")


def test_default__is_memory_for_processes_of_one_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WEFT_LOCAL")
    with Endpoint(**LOCAL) as endpoint:
        assert endpoint.summary().endswith(", local on")


def test_flows__of_a_local_connection_are_one(tmp_path: Path) -> None:
    """A flow has a row once a message has used it: this one is long enough for three."""
    message = bytes(3 * 128 << 10)
    settings = words("auto") | {"engines": 3, "stripes": 0}
    with (
        Endpoint(**settings, telemetry=str(tmp_path)) as left,
        Endpoint(**settings, telemetry="off") as right,
        right.listen() as listens,
        right.listen(policies={"window": "cubic"}) as takes_no_memory,
    ):
        for listener, flows in ((listens, 1), (takes_no_memory, 3)):
            with (
                left.connect(listener.handle, timeout_s=PATIENCE_S) as here,
                listener.accept(timeout_s=PATIENCE_S) as there,
            ):
                send = here.isend(message)
                assert there.recv(len(message), timeout_s=PATIENCE_S) == message
                send.wait(PATIENCE_S)
                (path,) = telemetry.pages(tmp_path)
                connections = [row.state["connection"] for row in telemetry.read_page(path).flows]
                assert connections.count(max(connections)) == flows


def test_policies__of_one_connection_send_it_over_the_network() -> None:
    with (
        Endpoint(**words("auto")) as left,
        Endpoint(**words("auto")) as right,
        right.listen() as listener,
        left.connect(listener.handle, timeout_s=PATIENCE_S, policies={"window": "cubic"}) as here,
        listener.accept(timeout_s=PATIENCE_S) as there,
    ):
        here.isend(b"by cubic")
        assert there.recv(100, timeout_s=PATIENCE_S) == b"by cubic"
        assert here.counters().segments_sent > 0


@pytest.mark.parametrize("end", ["left", "right"])
@pytest.mark.parametrize(
    ("act", "why"),
    [
        (lambda endpoint, _: endpoint.set_policy("window", "cubic"), "a policy was changed"),
        (lambda endpoint, folder: endpoint.record(folder / "%p"), "decisions are recorded"),
    ],
)
def test_endpoints__whose_decisions_matter_use_the_network_from_then_on(
    act: Callable[[Endpoint, Path], object], why: str, end: str, tmp_path: Path
) -> None:
    with (
        Endpoint(**words("auto")) as left,
        Endpoint(**words("auto")) as right,
        right.listen() as listener,
    ):

        @contextmanager
        def opened() -> Iterator[tuple[Connection, Connection]]:
            with (
                left.connect(listener.handle, timeout_s=PATIENCE_S) as here,
                listener.accept(timeout_s=PATIENCE_S) as there,
            ):
                yield here, there

        endpoint = {"left": left, "right": right}[end]
        with opened() as (here, there):
            act(endpoint, tmp_path)
            here.isend(b"still in memory")
            assert there.recv(100, timeout_s=PATIENCE_S) == b"still in memory"
            assert is_local(here)
        assert endpoint.summary().endswith(f", local off ({why})")
        with opened() as (here, there):
            here.isend(b"by the network")
            assert there.recv(100, timeout_s=PATIENCE_S) == b"by the network"
            assert here.counters().segments_sent > 0


def test_policies__cannot_be_set_where_they_play_no_part() -> None:
    with pair(local="auto") as (here, there):
        with pytest.raises(InvalidArgumentError, match="WEFT_LOCAL=off"):
            here.set_policy("window", "cubic")
        with pytest.raises(InvalidArgumentError, match="WEFT_LOCAL=off"):
            there.set_params("path", flows=3)
        here.isend(b"goes on")
        assert there.recv(100, timeout_s=PATIENCE_S) == b"goes on"
        assert is_local(here)
