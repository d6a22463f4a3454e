"""Tests when lost packets are evidence of a lossy place."""

import re
from pathlib import Path

import numpy as np
import pytest

from tests.diagnose.support import as_real, tables, traced
from transport.diagnose.diagnosis import judged
from transport.diagnose.facts import facts_of
from transport.diagnose.finding import Finding, Place
from transport.diagnose.flapping import flapping
from transport.diagnose.lasting_losses import lossy_network
from transport.diagnose.losses import lossy_place
from transport.diagnose.measures import delays_of, lateness_of
from transport.diagnose.paths import paths_of
from transport.diagnose.report import findings_to_show
from transport.diagnose.risen_losses import risen_losses
from transport.diagnose.seen import Rule, Seen
from transport.diagnose.settings import Settings
from transport.diagnose.windows import windows_of
from transport.plan import routes
from transport.trace import open_store


def test_losses__of_a_real_job_must_be_seen_in_every_window(tmp_path: Path) -> None:
    """Two windows prove a lossy NIC in a simulation, whose hosts have no sockets that overflow.

    The routes name no addresses, as those that a user writes for a real job may.
    """
    short = {
        "kind": "lossy_link",
        "link": "leaf1-host13",
        "at_ns": 3_600_000,
        "until_ns": 5_500_000,
        "loss": 0.25,
    }
    known = routes.read(traced(tmp_path, short) / routes.FILE)
    assert not known.addresses
    with open_store(tmp_path) as store:
        facts = facts_of(store)
    for one, certain in ((facts, True), (as_real(facts), False)):
        first = judged(one, [], Settings(routes=known), []).findings[0]
        assert (first.kind, first.place.name) == ("network_loss", "NIC of rank 13")
        assert first.certain == certain


@pytest.mark.parametrize(("alone", "kind"), [(0.0, "congestion"), (1.0, "network_loss")])
def test_losses__of_a_real_network_all_the_time_are_a_finding(
    tmp_path: Path, alone: float, kind: str
) -> None:
    with open_store(traced(tmp_path)) as store:
        facts = as_real(facts_of(store))
    windows = windows_of(facts)
    paths = paths_of(facts, windows, None)
    seen = Seen(facts, windows, lateness_of(facts, windows), delays_of(facts, windows), paths)
    assert lossy_network(seen) is None
    paths.lost[:] = 0.02 * paths.sent
    paths.alone[:] = alone * paths.lost
    found = lossy_network(seen)
    assert found is not None
    assert (found.kind, found.place.kind, found.certain) == (kind, "network", True)
    assert ("mark ECN" in found.advice) == (kind == "congestion")
    assert ("error counters" in found.advice) == (kind == "network_loss")
    paths.lost[windows.count // 3 :] = 0  # a burst at the start is none
    assert lossy_network(seen) is None


@pytest.mark.parametrize(
    ("losses", "where"),
    [
        ([30], "NIC of rank 13"),
        ([0, 0, 90], None),  # as many, but not all the time: a full queue
        ([1], None),
    ],
)
def test_losses__that_grew_are_damage_if_each_packet_is_lost_by_itself(
    tmp_path: Path, losses: list[int], where: str | None
) -> None:
    workload = [{**one, "repeats": 12} for one in tables()["workload"]]
    with open_store(traced(tmp_path, workload=workload)) as store:
        facts = facts_of(store)
    windows = windows_of(facts)
    paths = paths_of(facts, windows, None)
    for part in (paths.lost, paths.alone):
        part[:] = 0
    mine = (paths.ends[:, :2] == 13).any(axis=1)
    paths.sent[:] = 1000.0 / mine.sum()
    each = np.resize(losses, len(paths.lost) - 3)
    paths.lost[3:, mine] = paths.alone[3:, mine] = (each / mine.sum())[:, None]
    seen = Seen(facts, windows, lateness_of(facts, windows), delays_of(facts, windows), paths)
    found = risen_losses(seen)
    assert (found.place.name if found is not None else None) == where


@pytest.mark.parametrize(("before", "certain"), [(0.0, True), (0.04, False)])
def test_losses__that_grew_on_a_crowded_link_may_be_another_job(
    tmp_path: Path, before: float, certain: bool
) -> None:
    workload = [{**one, "repeats": 12} for one in tables()["workload"]]
    folder = traced(tmp_path, workload=workload)
    with open_store(folder) as store:
        facts = facts_of(store)
    windows = windows_of(facts)
    paths = paths_of(facts, windows, routes.read(folder / routes.FILE))
    link = paths.names.index("leaf1>spine0")
    mine = np.array([link in one for one in paths.links])
    paths.lost[:] = paths.alone[:] = 0
    paths.sent[:] = 1000.0 / mine.sum()
    for part, rate in ((slice(3), before), (slice(3, None), before + 0.06)):
        paths.lost[part, mine] = paths.alone[part, mine] = rate * 1000 / mine.sum()
    seen = Seen(facts, windows, lateness_of(facts, windows), delays_of(facts, windows), paths)
    found = risen_losses(seen)
    assert found is not None
    assert (found.place.kind, found.place.name) == ("link", "leaf1-spine0")
    assert found.certain == certain


@pytest.mark.parametrize(("elsewhere", "certain"), [(0, True), (1, False)])
def test_losses__with_failed_paths_are_certain_only_at_one_place(
    tmp_path: Path, elsewhere: int, certain: bool
) -> None:
    """Long queues, too, lose packets and make paths unusable; then there are several of them."""
    fault = {"kind": "lossy_link", "link": "leaf1-host13", "at_ns": 3_600_000, "loss": 0.9}
    with open_store(traced(tmp_path, fault)) as store:
        facts = facts_of(store)
    windows = windows_of(facts)
    paths = paths_of(facts, windows, None)
    other = paths.ends[:, 0] == 20
    at = windows.count - 1
    paths.lost[:, other] = elsewhere * 0.9 * paths.sent[:, other]
    seen = Seen(facts, windows, lateness_of(facts, windows), delays_of(facts, windows), paths)
    found = lossy_place(seen, at, Rule())
    assert found is not None
    assert found.more["failed"]
    assert found.certain == certain


def test_flapping__loses_few_packets_for_each_path_that_fails(tmp_path: Path) -> None:
    """Of a full queue, a path becomes unusable now and then, after many lost packets."""
    fault = {"kind": "flapping", "link": "leaf1-host13", "at_ns": 2_000_000, "until_ns": 6_000_000}
    with open_store(traced(tmp_path, {**fault, "flap_ns": 500_000})) as store:
        facts = facts_of(store)
    windows = windows_of(facts)
    paths = paths_of(facts, windows, None)
    seen = Seen(facts, windows, lateness_of(facts, windows), delays_of(facts, windows), paths)
    found = flapping(seen)
    assert found is not None
    assert found.place.name == "NIC of rank 13"
    paths.lost[:] *= 100
    assert flapping(seen) is None


def test_report__shows_two_suspicions_of_each_class_and_all_findings() -> None:
    def made(kind: str, certain: bool) -> Finding:
        return Finding(kind, Place("nic", "NIC"), 0, 1, 0.6, certain, "", "", "")

    every = [made("congestion", False)] * 4 + [made("network_loss", False)]
    every += [made("congestion", True)] * 3
    shown = [(one.kind, one.certain) for one in findings_to_show(every)]
    assert (
        shown
        == [("congestion", False)] * 2 + [("network_loss", False)] + [("congestion", True)] * 3
    )


def test_losses__the_numbers_of_the_evidence_agree(tmp_path: Path) -> None:
    """Timeouts count as losses, also where more are lost than a window knows to have been sent."""
    with open_store(traced(tmp_path)) as store:
        facts = as_real(facts_of(store))
    windows = windows_of(facts)
    paths = paths_of(facts, windows, None)
    seen = Seen(facts, windows, lateness_of(facts, windows), delays_of(facts, windows), paths)
    paths.lost[:, ::2] = 0.5 * paths.sent[:, ::2]
    paths.lost[:, 1::2] = 1.5 * paths.sent[:, 1::2]
    paths.timeouts[:] = 0.25 * paths.sent
    found = lossy_place(seen, windows.count - 1, Rule(3, 3))
    assert found is not None
    assert found.kind == "congestion"
    numbers = re.search(r"lost (\d+) of about (\d+) segments \(([0-9.]+) %\)", found.evidence)
    assert numbers is not None, found.evidence
    lost, sent, share = map(float, numbers.groups())
    assert lost < sent
    assert share == pytest.approx(100 * lost / sent, rel=0.01)
