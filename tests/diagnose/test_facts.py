"""Tests the facts of programs without NCCL, whose messages take the place of operations."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("duckdb")

from transport.diagnose.facts import facts_of
from transport.trace.store import Store, new_store

PAIR = 2**64 - 3


def insert(store: Store, table: str, **values: Any) -> None:
    names, marks = ", ".join(values), ", ".join("?" * len(values))
    store.database.execute(f"INSERT INTO {table} ({names}) VALUES ({marks})", [*values.values()])


@pytest.fixture
def store() -> Iterator[Store]:
    """Process 7 sends messages 0 to 2 to process 3, the last of which failed, and gets one."""
    with new_store() as made:
        for process in (7, 3):
            insert(made, "processes", process=process, host="h", pid=process)
        insert(made, "connections", process=7, id=1, pair=PAIR, peer="10.0.0.3 port 9")
        insert(made, "connections", process=3, id=1, pair=PAIR, peer="10.0.0.7 port 9")
        insert(made, "connections", process=3, id=2, pair=5, peer="10.0.0.9 port 9")
        for process, sends in ((7, True), (3, False)):
            for message in range(3):
                insert(
                    made,
                    "messages",
                    process=process,
                    connection=1,
                    message=message,
                    sends=sends,
                    bytes=100 + message,
                    status=3 if message == 2 else 0,
                    posted_ns=1_000 * message + (10 if sends else 0),
                    end_ns=1_000 * message + 500,
                )
        back = {"connection": 1, "message": 0, "bytes": 8, "status": 0}
        insert(made, "messages", process=3, sends=True, posted_ns=600, end_ns=700, **back)
        insert(made, "messages", process=7, sends=False, posted_ns=5, end_ns=650, **back)
        # The other end of this connection has no trace, so nothing tells where it went.
        lone = {"connection": 2, "message": 0, "bytes": 8, "status": 0}
        insert(made, "messages", process=3, sends=True, posted_ns=1, end_ns=2, **lone)
        sent = {"process": 7, "connection": 1, "message": 1, "sends": True, "bytes": 101}
        insert(made, "stripes", segments=4, resent=1, first_ns=1_100, **sent)
        yield made


def test_messages__count_as_a_send_and_a_receive(store: Store) -> None:
    facts = facts_of(store)
    assert not facts.has_operations
    pid = [one.pid for one in facts.processes]
    calls = facts.calls
    columns = ("function", "sequence", "count", "begin_ns", "arrival_ns", "end_ns")
    rows = {
        (pid[process], *row)
        for process, *row in zip(
            calls["process"].tolist(), *(calls[name].tolist() for name in columns), strict=True
        )
    }
    assert rows == {
        (7, "Send", 0, 100, 10, 10, 500),
        (7, "Send", 1, 101, 1_010, 1_010, 1_500),
        (7, "Send", 2, 102, 2_010, 2_010, -1),
        (3, "Recv", 0, 100, 0, -1, 500),
        (3, "Recv", 1, 101, 1_000, -1, 1_500),
        (3, "Recv", 2, 102, 2_000, -1, -1),
        (3, "Send", 0, 8, 600, 600, 700),
        (7, "Recv", 0, 8, 5, -1, 650),
    }
    assert facts.instances == 4
    by_instance: dict[int, set[tuple[str, int, int]]] = {}
    for instance, *key in zip(
        *(calls[name].tolist() for name in ("instance", "function", "count", "process")),
        strict=True,
    ):
        by_instance.setdefault(instance, set()).add((key[0], key[1], pid[key[2]]))
    assert {("Send", 101, 7), ("Recv", 101, 3)} in by_instance.values()
    assert {("Send", 8, 3), ("Recv", 8, 7)} in by_instance.values()


def test_messages__edges_are_the_completed_sends(store: Store) -> None:
    facts = facts_of(store)
    pid = [one.pid for one in facts.processes]
    edges = facts.edges
    rows = sorted(
        (pid[source], pid[target], *row)
        for source, target, *row in zip(
            *(
                edges[name].tolist()
                for name in ("source", "target", "bytes", "latency_ns", "segments", "resent")
            ),
            strict=True,
        )
    )
    assert rows == [(3, 7, 8, 100, 0, 0), (7, 3, 100, 490, 0, 0), (7, 3, 101, 400, 4, 1)]
    calls = facts.calls
    sends = {
        instance
        for instance, function, end_ns in zip(
            *(calls[name].tolist() for name in ("instance", "function", "end_ns")), strict=True
        )
        if function == "Send" and end_ns >= 0
    }
    assert set(edges["instance"].tolist()) == sends
