"""Tests the measures of a run with hand-made arrays."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.sim.support import needs_fabric, scenario
from transport.policies.fairness import jain
from transport.sim import Result, Scenario, run, tables
from transport.sim.result import fingerprint, spread
from transport.sim.sweep import Case, cases_of, summarised

TOTALS: dict[str, int | bool] = {
    "ended_ns": 1_000_000,
    "packet_hops": 1_000,
    "data_packets": 250,
    "segments": 240,
    "windows": 1,
    "transfers_done": 0,
    "violations": 0,
    "policies_failed": 0,
    "storage_bytes": 0,
    "fingerprint": 1,
    "finished": True,
}
STREAM = ("bytes_sent", "segments_sent", "segments_resent", "spurious_resends")
PORT = (
    *("packets", "bytes", "data_packets", "marked", "trimmed", "dropped", "lost", "pauses"),
    *("busy_ns", "queue_bytes_p50", "queue_bytes_p95", "queue_bytes_p99", "queue_bytes_max"),
)


def result(own: Scenario, **columns: Any) -> Result:
    """Makes a result with the given columns, and zeros in all other columns."""
    count = len(own.work.transfers)
    transfers = np.zeros(count, [(one, np.int64) for one in ("ready_ns", "received_ns", "sent_ns")])
    streams = np.zeros(count, [(one, np.int64) for one in STREAM])
    ports = np.zeros(len(own.network.ports), [(one, np.int64) for one in PORT])
    for array in (transfers, streams, ports):
        for name in array.dtype.names or ():
            if name in columns:
                array[name] = columns[name]
    totals = {**TOTALS, **columns.get("totals", {})}
    return Result(own, {}, {}, totals, transfers, streams, ports)


def test_result__quantiles_and_jain() -> None:
    found = spread(np.arange(1, 101))
    assert found["p50"] == pytest.approx(50.5)
    assert found["max"] == 100
    assert spread(np.zeros(0)) == {}
    assert jain(np.array([3, 3, 3])) == pytest.approx(1)
    assert jain(np.array([1, 0, 0, 0])) == pytest.approx(0.25)


def test_result__a_job() -> None:
    own = scenario("hosts = 8", '[[workload]]\npattern = "all_reduce_ring"\nsize_bytes = 8_000\n')
    count = len(own.work.transfers)
    received = 100 + np.arange(count)
    found = result(own, ready_ns=100, received_ns=received + 1_000, sent_ns=received + 2_000)
    (row,) = found.jobs
    assert row["completion_ns"] == 1_000 + count - 1
    assert row["algbw_bytes_per_s"] == pytest.approx(8_000 / (row["completion_ns"] / 1e9))
    assert row["busbw_bytes_per_s"] == pytest.approx(row["algbw_bytes_per_s"] * 2 * 7 / 8)
    assert row["fct_ns_max"] == 1_000 + count - 1
    assert found.good


def test_result__what_is_not_done_is_counted_and_not_judged() -> None:
    own = scenario("hosts = 4")
    found = result(
        own, ready_ns=[0, 0, 0, 5], received_ns=[10, -1, 30, -1], totals={"finished": False}
    )
    assert found.fct_ns.tolist() == [10, 30]
    assert len(found.slowdown) == 2
    assert not found.good
    row = found.summary()
    assert (row["done"], row["transfers"]) == (2, 4)
    assert any("2 of 4 transfers did not finish" in one for one in tables.remarks(found))
    nothing = result(own, ready_ns=-1, received_ns=-1, totals={"finished": False})
    assert nothing.summary()["done"] == 0
    assert tables.jobs({"": nothing})[1] == [["permutation", "4", "0/4"]]


def test_result__ports_by_tier() -> None:
    own = scenario("hosts = 8\nhosts_per_leaf = 4\nspines = 2")
    net = own.network
    busy = np.zeros(len(net.ports), np.int64)
    carried = np.zeros(len(net.ports), np.int64)
    ups = net.tier_ports["leaf>spine"]
    busy[ups] = [500_000, 0, 250_000, 250_000]
    carried[ups] = [300, 100, 50, 50]
    depth = np.where(net.ports["from"] < 8, 999, 7)
    found = result(own, busy_ns=busy, bytes=carried, queue_bytes_p99=depth, marked=1, received_ns=9)
    rows = {row["tier"]: row for row in found.tiers}
    assert list(rows) == ["host>leaf", "leaf>spine", "spine>leaf", "leaf>host"]
    assert rows["leaf>spine"]["utilisation"] == pytest.approx(0.25)
    assert rows["leaf>spine"]["utilisation_max"] == pytest.approx(0.5)
    assert rows["leaf>spine"]["imbalance"] == pytest.approx(1.5)
    assert rows["spine>leaf"]["imbalance"] is None
    assert found.summary()["queue_bytes_p99"] == 7, "a host's own queue is no switch's"


def test_result__retransmits_are_per_packet_sent_first() -> None:
    own = scenario("hosts = 4")
    found = result(own, received_ns=9, segments_sent=[10, 10, 10, 20], segments_resent=[0, 5, 5, 0])
    assert found.summary()["retransmits_per_packet"] == pytest.approx(10 / 40)


@needs_fabric
def test_result__the_docs_have_every_column_of_the_arrays() -> None:
    small = "hosts = 8\nhosts_per_leaf = 4\nspines = 4"
    samples = "[samples]\nevery_ns = 1_000\nlinks = 'leaf0>spine*'\ntransfers = 3\n"
    found = run(scenario(small, samples + "[[workload]]\n"))
    page = (Path(__file__).resolve().parents[2] / "docs" / "SIMULATOR.md").read_text()
    _, _, section = page.partition("### Columns of the arrays\n")
    section = section.partition("\n### ")[0]
    columns = [*(found.transfers.dtype.names or ()), *(found.ports.dtype.names or ())]
    for name in (*columns, *found.samples):
        assert f"`{name}`" in section, name
    work = found.scenario.work.transfers
    assert found.streams["from"].tolist() == work["from"].tolist()
    text = repr(found)
    assert text.count("\n") == 2
    assert found.fingerprint in text
    assert max(len(line) for line in text.splitlines()) < 200


def test_result__fingerprints_differ_where_anything_does() -> None:
    own = scenario("hosts = 4")
    base = fingerprint(1, own, {"window": "a"})
    assert len(base) == 16
    others = [
        fingerprint(2, own, {"window": "a"}),
        fingerprint(1, own.changed({"seed": 2}), {"window": "a"}),
        fingerprint(1, own, {"window": "b"}),
    ]
    assert len({base, *others}) == 4
    assert fingerprint(1, own.changed({"name": "x"}), {"window": "a"}) == base


def test_sweep__cases_and_what_they_come_to() -> None:
    own = scenario("hosts = 4")
    made = cases_of(own, [1, 2, 3], {"network.hosts": [4, 8], "policies.window": ["swift"]}, {})
    assert len(made) == 6
    assert made[0] == Case({"network.hosts": 4, "policies.window": "swift"}, {}, 1)
    rows = {
        number: {"good": True, "fct_ns_p99": one, "busbw_bytes_per_s": one}
        for number, one in enumerate([5, 1, 3, 10, 20])
    }
    small, large = summarised(made, rows)
    assert (small["fct_ns_p99"], small["fct_ns_p99_worst"]) == (3, 5)
    assert (small["busbw_bytes_per_s"], small["busbw_bytes_per_s_worst"]) == (3, 1)
    assert (large["seeds"], large["fct_ns_p99"]) == (2, 15)
    with pytest.raises(ValueError, match=r"network\.hosts"):
        cases_of(own, [1], {"network.hosts": [4, 0]}, {})
