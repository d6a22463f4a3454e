"""Runs `bench stages` tiny: all payload arrives, and the kernel's answers about copies are read."""

import json
import os
from typing import Any

import pytest
from click.testing import CliRunner

from bench import stages
from bench.__main__ import bench
from bench.lib import loops
from bench.lib.record import seal_state
from bench.lib.stage_weft import filled, touched
from transport.lab import namespace


def reason_to_skip() -> str:
    """Why this host cannot make the wires; "" if it can."""
    pytest.importorskip("pyroute2")
    if os.geteuid() != 0:
        return "making network namespaces takes root"
    try:
        namespace.in_scratch(lambda: None)
    except OSError as error:
        return f"cannot make a network namespace: {error}"
    return ""


def rows_of(*words: str) -> list[dict[str, Any]]:
    if reason := reason_to_skip():
        pytest.skip(reason)
    done = CliRunner().invoke(bench, ["stages", "--tiny", *words, "--json", "-"])
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert (found["bench"], seal_state(found)) == ("stages", "whole")
    assert found["settings"] == {"bytes": 4 << 20, "buffer_bytes": 4 << 20}
    return list(found["rounds"])


@pytest.mark.namespaces
@pytest.mark.parametrize("wire", ["veth", "lo"])
def test_stages__payload_arrives_in_every_way(wire: str) -> None:
    rows = rows_of("--wire", wire)
    keys = [(row["mtu_bytes"], row["contender"]) for row in rows]
    assert keys == [
        (mtu, name) for mtu in stages.MTU_BYTES for name in (*stages.WAYS, *stages.WEFT)
    ]
    for row in rows:
        if row.get("missing"):
            continue  # an older kernel; the row says why
        assert row["wrong"] == 0
        copies = 2.0 if "copy" in row["contender"] or "weft" in row["contender"] else 1.0
        assert row["copies_received"] == copies
        # Between namespaces, and over lo, the kernel copies what the sender did not.
        assert row["copies_sent"] == 1.0
        if row["contender"] in ("GSO", "io_uring"):
            trains = (4 << 20) // (row["datagrams_per_message"] * (row["mtu_bytes"] - 28)) + 1
            assert trains <= row["messages"] <= trains + 4  # whole trains arrive


@pytest.mark.namespaces
def test_stages__nothing_is_copied_where_packets_end_before_the_stack() -> None:
    rows = rows_of("--wire", "dropped", "--mtu", "9000")
    assert [row["contender"] for row in rows] == list(stages.SENDERS)
    for row in rows:
        if row.get("missing"):
            continue
        assert row["copies_received"] is None
        assert row["copies_sent"] == (0.0 if "Z" in row["contender"] else 1.0)


def test_stages__copies_in_memory_are_right() -> None:
    source = filled(1 << 20)
    for kind in stages.COPIES.values():
        for piece_bytes in (1472, 8972, 1000, 1 << 20):
            target = touched((1 << 20) + 8)[1:]  # not at the begin of a cache line
            whole = (1 << 20) // piece_bytes * piece_bytes
            try:
                loops.bench_copy(kind, source, target, piece_bytes, whole)
            except ValueError as error:
                assert kind in str(error)  # noqa: PT017
                continue
            assert target.tobytes()[:whole] == source.tobytes()[:whole]
            assert target.tobytes()[whole:] == touched((1 << 20) - whole).tobytes()


@pytest.mark.namespaces
def test_stages__what_a_kernel_lacks_is_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    real = loops.bench_stages

    def lacking(way: tuple[str, str, str], *more: Any) -> dict[str, Any]:
        if way[0].startswith("ring"):
            return {"missing": "io_uring_setup: Operation not permitted"}
        found: dict[str, Any] = real(way, *more)
        return found

    monkeypatch.setattr(loops, "bench_stages", lacking, raising=False)
    only = ("--only", "io_uring", "--only", "MSG_ZEROCOPY")
    rows = rows_of("--wire", "dropped", "--mtu", "1500", *only)
    assert {row["contender"]: row.get("missing") for row in rows} == {
        "GSO": None,
        "MSG_ZEROCOPY": None,
        "io_uring": "not there: io_uring_setup: Operation not permitted",
    }


def test_stages__a_way_that_does_not_exist_is_refused() -> None:
    memory = touched(1 << 20)
    ends = (-1, "127.0.0.1")
    for way, datagram_bytes in (
        (("pigeon", "gro", "none"), 1472),
        (("gso", "ring", "plain"), 1472),
        (("gso_headers", "gro", "none"), 1472),
        (("gso", "gro", "none"), 8),
    ):
        with pytest.raises(ValueError, match="out of range"):
            loops.bench_stages(
                way, ends, ends, (-1, -1), memory, memory, datagram_bytes, 0, 1 << 20
            )


def test_stages__ratios_are_those_of_a_round() -> None:
    rows: list[dict[str, Any]] = [
        {"wire": "lo", "mtu_bytes": 1500, "contender": name, "round": at, "ns_per_byte": ns}
        for at, pair in enumerate(((1.0, 2.0), (2.0, 3.0)))
        for name, ns in zip(("GSO", "io_uring"), pair, strict=True)
    ]
    rows.append({"wire": "lo", "mtu_bytes": 1500, "contender": "x", "round": 0, "missing": "y"})
    assert [row.get("ratio") for row in stages.with_ratios(rows)] == [1.0, 2.0, 1.0, 1.5, None]
