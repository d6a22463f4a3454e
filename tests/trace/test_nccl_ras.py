"""Tests the reader of statuses of NCCL's RAS, with statuses of the shape that NCCL 2.28.9 gives."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from tests.trace.ras import GREETING, all_reduces, comm, missing, rank, status, text
from transport.trace import beside, nccl_ras
from transport.trace.layout import TraceError
from transport.trace.nccl_ras import RasStatuses, is_status, statuses_in

TEXT_FORM = """SERVER PROTOCOL 2
OK
NCCL version 2.28.9 compiled with CUDA 13.0
CUDA runtime version 13000, driver version 13000

Job summary
===========
"""


def read(*texts: str) -> RasStatuses:
    reader = RasStatuses()
    for one in texts:
        reader.add(one, "ras.json")
    reader.finish()
    return reader


def test_ras__a_status_tells_ranks_counts_and_processes(tmp_path: Path) -> None:
    file = tmp_path / "ras.json"
    file.write_text(all_reduces([7, 8]))
    reader = RasStatuses()
    reader.read(file)
    reader.finish()
    (one,) = reader.statuses
    (only,) = one.comms
    assert (one.version, only.comm_id, only.size) == ("2.28.9", 0xABC0, 2)
    assert [(each.rank, each.process, each.launched) for each in only.ranks] == [
        (0, ("10.0.0.1", 500, 0), 7),
        (1, ("10.0.0.1", 501, 1), 8),
    ]


def test_ras__the_comma_that_nccl_leaves_out_is_mended() -> None:
    broken = all_reduces([7, None])
    with pytest.raises(ValueError, match="delimiter"):
        json.loads(broken.removeprefix(GREETING))
    (only,) = read(broken).statuses[0].comms
    assert [(one.rank, one.answers, one.dead) for one in only.missing] == [(1, False, False)]


def test_ras__json_with_all_commas_and_no_greeting_is_read() -> None:
    value = status([comm(1, [rank(0, 0, {})], [missing(1, 1, considered_dead=True)])])
    (only,) = read(json.dumps(value)).statuses[0].comms
    assert only.missing[0].dead


def test_ras__what_ncclras_says_before_a_status_is_passed_over() -> None:
    said = "Connecting to ::1:28028: Connection refused\nConnection timed out; retrying...\n"
    assert is_status(said.encode() + all_reduces([7, 8]).encode())
    assert len(read(said + all_reduces([7, 8])).statuses) == 1


def test_ras__statuses_are_put_in_the_order_of_their_times() -> None:
    reader = read(all_reduces([9, 9], "12:00:07") + all_reduces([2, 2], "12:00:01"))
    times = [one.time_ns for one in reader.statuses]
    assert times[1] - times[0] == 6 * 10**9
    assert [one.comms[0].ranks[0].launched for one in reader.statuses] == [2, 9]


def test_ras__the_same_status_twice_counts_once() -> None:
    assert len(read(all_reduces([2, 2]), all_reduces([2, 2])).statuses) == 1


def test_ras__statuses_of_another_job_are_left_out() -> None:
    other = all_reduces([2, 2]).replace('"pid": 50', '"pid": 77')
    reader = read(other, all_reduces([3, 3], "12:00:09"))
    assert [one.comms[0].ranks[0].launched for one in reader.statuses] == [3]
    assert reader.found.notes == [
        "1 of 2 statuses are of other processes than the last one: left out"
    ]


def test_ras__the_largest_communicator_gives_the_ranks_of_the_job() -> None:
    pair = comm(2, [rank(0, 1, {}), rank(1, 2, {})])
    whole = comm(1, [rank(2 - n, n, {}) for n in range(3)])
    one = read(text(status([pair, whole]))).statuses[0]
    assert {process[1]: number for process, number in one.world.items()} == {500: 2, 501: 1, 502: 0}
    assert one.world_size == 3


def test_ras__no_communicator_of_all_gives_no_ranks() -> None:
    pairs = [comm(n, [rank(0, n, {}), rank(1, n + 1, {})]) for n in (0, 2)]
    one = read(text(status(pairs))).statuses[0]
    assert (one.world, one.world_size) == ({}, None)


NONSENSE = [
    ({"size": 0}, "size of communicator 0x5 is 0"),
    ({"size": 1 << 40}, "size of communicator 0x5 is 1099511627776"),
    ({"hash": "5"}, "a communicator without a hash"),
    ({"missing_ranks": [missing(922_163_660, 0)]}, "a missing rank of communicator 0x5 is 9221636"),
    ({"missing_ranks": [missing(-7, 0)]}, "a missing rank of communicator 0x5 is -7"),
    ({"missing_ranks": [missing(0, 0)]}, "communicator 0x5 has a rank twice"),
    ({"ranks": [rank(0, 0, {"AllReduce": -1})]}, "AllReduce of rank 0 of communicator 0x5 is -1"),
    ({"ranks": 3}, "ranks of communicator 0x5 is no list of ranks"),
]


@pytest.mark.parametrize(("change", "why"), NONSENSE)
def test_ras__a_communicator_that_cannot_be_is_left_out(change: dict[str, Any], why: str) -> None:
    bad = comm(5, [rank(0, 0, {}), rank(1, 1, {})]) | change
    reader = read(json.dumps(status([bad, comm(6, [rank(0, 0, {}), rank(1, 1, {})])])))
    assert [one.comm_id for one in reader.statuses[0].comms] == [6]
    (note,) = reader.found.notes
    assert note.startswith("ras.json: left out, as no job has it: ")
    assert why in note


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (GREETING, "has no status: RAS did not answer in time"),
        ("", "has no status"),
        (TEXT_FORM, "record JSON with ncclras -f json -v > ras.json"),
        ("TimeoutError timed out", "is no status of RAS"),
        (all_reduces([1, 1])[:-40], "is no whole status of RAS"),
        ('{"communicators": 3}', "it has no communicators"),
        ("[" * 100_000, "is no status of RAS"),
    ],
)
def test_ras__what_is_no_status_is_refused(tmp_path: Path, content: str, why: str) -> None:
    file = tmp_path / "x.json"
    file.write_text(content)
    with pytest.raises(TraceError, match=why):
        RasStatuses().read(file)


def test_ras__a_file_that_is_too_large_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nccl_ras, "FILE_BYTES_MAX", 10)
    file = tmp_path / "x.json"
    file.write_text(all_reduces([1, 1]))
    with pytest.raises(TraceError, match="is larger than"):
        RasStatuses().read(file)


def test_ras__files_are_known_by_their_content(tmp_path: Path) -> None:
    for name, content in [
        ("a.json", all_reduces([1, 1])),
        ("b.json", all_reduces([1, 1]).removeprefix(GREETING)),
        ("c.txt", TEXT_FORM),
        ("d.txt", TEXT_FORM.partition("OK\n")[2]),
    ]:
        (tmp_path / name).write_text(content)
        assert beside.kind_of(tmp_path / name) == "nccl-ras", name
    for head in (b'{"communicators": 1}', b"NCCL version 2.28.9\n", b"", b"x"):
        assert not is_status(head)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=6,
)


@given(
    st.sampled_from(["hash", "secondary_hash", "size", "ranks", "missing_ranks"]),
    st.sampled_from(["rank", "host", "pid", "cuda_dev", "status", "collective_counts"]),
    JSON,
)
def test_ras__any_value_is_read_or_left_out(of_comm: str, of_rank: str, value: object) -> None:
    """Also of what is read every rank is below the size of its communicator."""
    odd = comm(5, [rank(0, 0, {}) | {of_rank: value}], [missing(1, 1) | {of_rank: value}])
    each = [comm(6, [rank(0, 0, {})]), odd, comm(7, [rank(0, 0, {})]) | {of_comm: value}]
    for one, _ in statuses_in(json.dumps(status(each)), "x"):
        assert one.comms
        assert all(0 <= member.rank < each.size for each in one.comms for member in each.every)
        assert one.world_size is None or one.world_size > 0
