"""Tests the credit policies, interpreted: how much they grant, to which flow, and their timers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from congestion.registry import find

from .rig import MS, SEGMENT, US, Rig


def demand(rig: Rig, **fields: float) -> Mapping[str, Any]:
    return rig.call("on_demand", **({"now_ns": 10**9, "active_flows": 1} | fields))


def test_grant__shares_the_window_and_never_takes_back() -> None:
    rig = Rig(find("credit", "grant"))
    assert demand(rig, demand_bytes=1 << 30)["granted_bytes"] == 4 << 20
    assert demand(rig, demand_bytes=1 << 30, active_flows=4)["granted_bytes"] == 1 << 20
    kept = demand(rig, demand_bytes=1 << 30, active_flows=4, granted_bytes=2 << 20)
    assert kept["granted_bytes"] == 2 << 20
    assert kept["next_tick_ns"] > 10**9
    crowd = demand(rig, demand_bytes=1 << 30, active_flows=10**6)
    assert crowd["granted_bytes"] == 4 * SEGMENT


def test_grant__gives_no_more_than_was_asked_for() -> None:
    answer = demand(Rig(find("credit", "grant")), demand_bytes=5_000)
    assert answer == {"granted_bytes": 5_000, "next_tick_ns": -1}


def test_grant__marks_shrink_the_window_and_their_absence_restores_it() -> None:
    rig = Rig(find("credit", "grant"))
    for step in range(20):
        marked = demand(rig, now_ns=10**9 + step * 10**6, demand_bytes=1 << 30, ecn_segments=1)
    assert marked["granted_bytes"] == 1 << 20
    for step in range(40):
        calm = demand(rig, now_ns=2 * 10**9 + step * 10**6, demand_bytes=1 << 30)
    assert calm["granted_bytes"] == 4 << 20


def test_grant__a_mark_between_two_intervals_counts() -> None:
    rig = Rig(find("credit", "grant"))
    demand(rig, demand_bytes=1 << 30)
    demand(rig, now_ns=10**9 + 10 * US, demand_bytes=1 << 30, ecn_segments=1)
    assert demand(rig, now_ns=10**9 + MS, demand_bytes=1 << 30)["granted_bytes"] == 7 << 19


LINK = 12_500_000_000
PULL = 4 * SEGMENT  # bytes of one pull, which take 2.62 us on the link


class Sender:
    """A flow that sends all granted bytes at once and always has more to send."""

    def __init__(self, name: str, port: Rig | None = None, **params: Any) -> None:
        self.rig = Rig(find("credit", name), **params)
        if port is not None:
            self.rig.shared = port.shared
        self.granted, self.tick_ns, self.wants, self.events = 0, 0, 1 << 40, 0

    def ask(self, now_ns: int, marked: int = 0, **fields: Any) -> int:
        """Sends a credit request to the policy; returns how many bytes it grants."""
        self.events += 1
        given: dict[str, Any] = {"received_bytes": self.granted, "link_bytes_per_s": LINK}
        given["rand"] = self.events * 0.7548777 % 1.0
        answer = self.rig.call(
            "on_demand",
            now_ns=now_ns,
            demand_bytes=self.wants,
            granted_bytes=self.granted,
            active_flows=2,
            ecn_segments=marked,
            **(given | fields),
        )
        before, self.granted = self.granted, answer["granted_bytes"]
        self.tick_ns = max(answer["next_tick_ns"], now_ns + 10 * US)  # the core's shortest timer
        assert self.granted >= before
        return self.granted - before


def run(senders: list[Sender], from_ns: int, span_ns: int) -> list[int]:
    """Runs from tick to tick for `span_ns`; returns the bytes granted to each sender."""
    before = [sender.granted for sender in senders]
    now_ns = from_ns
    while now_ns < from_ns + span_ns:
        for sender in senders:
            if sender.tick_ns <= now_ns:
                sender.ask(now_ns)
        now_ns = min(sender.tick_ns for sender in senders)
    return [sender.granted - start for sender, start in zip(senders, before, strict=True)]


@pytest.mark.parametrize("name", ["eqds", "rccc"])
def test_pacer__the_first_product_is_granted_unasked(name: str) -> None:
    sender = Sender(name)
    sender.wants = 0
    share = 0.98
    assert sender.ask(10**9) == int(share * 1_250_000)


@pytest.mark.parametrize(("name", "share"), [("eqds", 0.98), ("rccc", 0.98)])
def test_pacer__grants_at_its_share_of_the_link(name: str, share: float) -> None:
    sender = Sender(name)
    sender.ask(10**9)
    (granted,) = run([sender], 10**9 + 10 * US, 10 * MS)
    assert granted / (LINK / 100) == pytest.approx(share, rel=0.01)


@pytest.mark.parametrize("name", ["eqds", "rccc"])
def test_pacer__flows_that_wait_take_turns(name: str) -> None:
    first = Sender(name)
    senders = [first, *(Sender(name, first.rig) for _ in range(4))]
    for sender in senders:
        sender.ask(10**9)
    granted = run(senders, 10**9 + 10 * US, 10 * MS)
    assert sum(granted) / (LINK / 100) == pytest.approx(1.0, rel=0.02)
    assert max(granted) - min(granted) <= 3 * PULL


@pytest.mark.parametrize("name", ["eqds", "rccc"])
def test_pacer__a_late_tick_catches_up_fifty_microseconds_and_no_more(name: str) -> None:
    sender = Sender(name)
    sender.ask(10**9)
    assert 19 * PULL <= sender.ask(10**9 + 20 * MS) <= 21 * PULL


@pytest.mark.parametrize("name", ["eqds", "rccc"])
def test_pacer__a_sender_that_does_not_send_is_granted_no_more(name: str) -> None:
    sender = Sender(name)
    for step in range(1_000):
        sender.ask(10**9 + step * 100 * US, received_bytes=0)
    assert sender.granted <= LINK * 500e-6


@pytest.mark.parametrize("name", ["eqds", "rccc"])
def test_pacer__an_unknown_link_counts_as_a_hundred_gigabits(name: str) -> None:
    sender = Sender(name)
    sender.wants = 0
    assert sender.ask(10**9, link_bytes_per_s=0) == pytest.approx(1_250_000, rel=0.021)


@pytest.mark.parametrize(("share", "granted"), [(0.0, 1.0), (0.1, 1.0), (0.6, 0.5), (1.0, 0.1)])
def test_eqds__skips_pulls_by_the_share_of_marks_above_a_tenth(
    share: float, granted: float
) -> None:
    sender = Sender("eqds")
    sender.ask(10**9)
    sender.rig.flow["marked_share"], sender.rig.flow["round_ns"] = share, 1 << 61
    (bytes_granted,) = run([sender], 10**9 + 10 * US, 10 * MS)
    assert bytes_granted / (LINK / 100) == pytest.approx(granted, abs=0.02)


def test_eqds__the_share_is_that_of_the_last_hundred_microseconds() -> None:
    sender = Sender("eqds")
    sender.rig.call("on_start", now_ns=10**9)
    for step in range(1, 5):
        sender.ask(10**9 + step * 30 * US, 3, received_bytes=step * 5 * SEGMENT)
    assert sender.rig.flow["marked_share"][0] == pytest.approx(12 / 20)
    for step in range(5, 9):
        sender.ask(10**9 + step * 30 * US, received_bytes=step * 5 * SEGMENT)
    assert sender.rig.flow["marked_share"][0] == 0


def test_rccc__idle_flows_are_pulled_ahead_while_nobody_waits() -> None:
    busy = Sender("rccc")
    idle = Sender("rccc", busy.rig)
    idle.wants = 0
    idle.ask(10**9)
    start = idle.granted
    idle.ask(10**9 + MS, received_bytes=start)
    assert idle.granted == start + PULL
    busy.ask(10**9 + MS)
    idle.ask(10**9 + MS + 10 * US, received_bytes=start)
    assert idle.granted == start + PULL  # no further pull, because the pacer is busy
    for step in range(200):
        idle.ask(10**9 + 2 * MS + step * 100 * US, received_bytes=start)
    assert idle.granted == start + int(0.98 * 1_250_000)


def test_rccc__marks_lower_the_port_by_half_of_what_exceeds_the_limit() -> None:
    sender = Sender("rccc", oversubscription=4.0)
    sender.ask(10**9, received_bytes=0)
    shares = []
    for step in range(1, 12):
        fields = {"received_bytes": step * 10 * SEGMENT, "rand": 0.5}
        sender.ask(10**9 + step * MS, 10, **fields)
        shares.append(sender.rig.shared["rate_share"][0].item())
    # The smoothed share g of marks is 1/2, 3/4, ...; each step multiplies by 1 - (g - 0.3) / 2.
    assert shares[:2] == pytest.approx([0.9, 0.9 * 0.775])
    assert shares[-1] == pytest.approx(0.225)


def test_rccc__calm_rounds_restore_it_faster_and_faster() -> None:
    sender = Sender("rccc", oversubscription=4.0)
    sender.ask(10**9, received_bytes=0)
    sender.rig.shared["rate_share"] = 0.5
    shares = []
    for step in range(1, 5):
        sender.ask(10**9 + step * MS, received_bytes=step * 10 * SEGMENT)
        shares.append(sender.rig.shared["rate_share"][0].item())
    assert shares == pytest.approx([0.51, 0.53, 0.57, 0.65])


def test_rccc__without_oversubscription_marks_change_nothing() -> None:
    sender = Sender("rccc")
    for step in range(20):
        sender.ask(10**9 + step * MS, 10)
    assert sender.rig.shared["rate_share"][0] == 1.0
