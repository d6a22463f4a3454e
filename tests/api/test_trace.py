"""Tests the trace of messages between two processes that use the Python API."""

from collections import defaultdict
from pathlib import Path

import pytest

from tests.waiting import in_order
from transport import Endpoint
from transport.trace import Record, Segment, read_segment

from .support import LOCAL, PATIENCE_S, content, pair

SIZES = (0, 1, 8192, 100_000, 3_000_000)


def segments(folder: Path) -> list[Segment]:
    return [read_segment(path) for path in sorted(folder.iterdir())]


def of(segment: Segment, kind: str) -> list[Record]:
    return [record for record in segment.records if record.kind == kind]


def exchange(**knobs: object) -> None:
    with pair(**knobs) as (left, right):
        for number, size in enumerate(SIZES):
            send = left.isend(content(size, number))
            assert right.recv(size, timeout_s=PATIENCE_S) == content(size, number)
            send.wait(timeout_s=PATIENCE_S)


@pytest.mark.parametrize("engines", [1, 2])
def test_trace__every_message_and_stripe_has_both_ends(tmp_path: Path, engines: int) -> None:
    exchange(trace=str(tmp_path), engines=engines)
    (segment,) = segments(tmp_path)
    assert (segment.damage, segment.dropped) == ("", 0)
    pairs: dict[object, list[Record]] = defaultdict(list)
    for connection in of(segment, "connection"):
        pairs[connection.fields["pair"]].append(connection)
        assert connection.fields["datapath"] == "udp"
        assert int(connection.fields["flows"]) >= 1
    ((one, other),) = pairs.values()
    ends = {one.id, other.id}
    assert {each.id for each in of(segment, "connection_end")} == ends

    for sends in (0, 1):
        messages = [m for m in of(segment, "message") if m.fields["sends"] == sends]
        messages.sort(key=lambda each: each.fields["message"])
        assert [m.fields["bytes"] for m in messages] == list(SIZES)
        assert [m.fields["message"] for m in messages] == list(range(len(SIZES)))
        (carrier,) = {m.fields["connection"] for m in messages}
        assert carrier in ends
        stripes: dict[int, int] = defaultdict(int)
        for stripe in (s for s in of(segment, "stripe") if s.fields["sends"] == sends):
            fields = {name: int(value) for name, value in stripe.fields.items()}
            stripes[fields["message"]] += fields["bytes"]
            assert fields["connection"] == carrier
            first_ns = fields["first_ns"] or fields["posted_ns"]  # 0: data came before the post
            assert in_order(fields["posted_ns"], first_ns, fields["last_ns"], stripe.time_ns)
            if sends:
                whole = sum(v for n, v in fields.items() if n.startswith("path_"))
                assert whole == pytest.approx(255, abs=16)  # each path's part of 255 is rounded
                assert fields["segments"] >= 1
        assert stripes == dict(enumerate(SIZES))
        for message in messages:
            assert in_order(int(message.fields["posted_ns"]), message.time_ns)


def test_trace__many_short_messages_drop_nothing(tmp_path: Path) -> None:
    """Receives are posted on every flow, and short messages arrive on the first one only."""
    count = 2500  # messages on three flows each: more than the engine's table holds
    with pair(trace=str(tmp_path), stripes=4) as (left, right):
        for number in range(count):
            send = left.isend(content(8, number))
            assert right.recv(1_000_000, timeout_s=PATIENCE_S) == content(8, number)
            send.wait(timeout_s=PATIENCE_S)
            del send  # the last reference, so that the whole trace is written at the end
    (segment,) = segments(tmp_path)
    assert (segment.damage, segment.dropped) == ("", 0)
    received = [s for s in of(segment, "stripe") if not s.fields["sends"] and s.fields["bytes"]]
    assert [int(s.fields["message"]) for s in received] == list(range(count))


def test_trace__resent_segments_are_counted(tmp_path: Path) -> None:
    faults = {"fault": {"loss": 0.05}}
    exchange(trace=str(tmp_path), **faults)
    (segment,) = segments(tmp_path)
    sent = [s.fields for s in of(segment, "stripe") if s.fields["sends"]]
    assert sum(int(s["resent"]) for s in sent) > 0
    assert all(int(s["resent"]) < int(s["segments"]) for s in sent if s["resent"])
    assert "loss" in {each.fields["what"] for each in of(segment, "event")}


def test_trace__a_failed_message_has_a_status(tmp_path: Path) -> None:
    with pair(trace=str(tmp_path)) as (left, right):
        waiting = right.irecv(100)
        left.close()
        with pytest.raises(Exception, match="closed"):
            waiting.wait(timeout_s=PATIENCE_S)
        del waiting  # the last reference, so that the whole trace is now written
    (segment,) = segments(tmp_path)
    (message,) = of(segment, "message")
    assert message.fields["status"] != 0
    assert (message.fields["bytes"], message.fields["sends"]) == (0, 0)


def test_trace__the_last_folder_of_its_path_is_made(tmp_path: Path) -> None:
    with Endpoint(**LOCAL, trace=str(tmp_path / "new")) as endpoint:
        assert endpoint.listen() is not None
    assert len(segments(tmp_path / "new")) == 1


def test_trace__a_directory_that_cannot_be_made_is_only_a_warning(tmp_path: Path) -> None:
    with Endpoint(**LOCAL, trace=str(tmp_path / "missing" / "deeper")) as endpoint:
        assert endpoint.listen() is not None
    assert not (tmp_path / "missing").exists()
