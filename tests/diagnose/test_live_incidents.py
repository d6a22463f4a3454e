"""Tests the state machine of incidents: when they open and end, and what only becomes a note."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from transport.cli.diagnose_live import NUMBERS_MAX, counted
from transport.diagnose.finding import Finding, Place
from transport.diagnose.live.incidents import (
    BESIDE,
    HOLD_LOOKS,
    HOLD_NS,
    HOLD_TIMES_MAX,
    HOLD_WINDOWS,
    INCIDENTS_MAX,
    SLOW_NS_MAX,
    Incidents,
    Look,
    State,
)

RANKS = 8
WINDOW_NS = 1_000_000_000
WINDOWS = 5  # windows of a look
LOOK_NS = WINDOWS * WINDOW_NS
# Looks after which a fault that does not come back has ended.
HOLD = max(HOLD_LOOKS, -(-HOLD_WINDOWS // WINDOWS), -(-HOLD_NS // LOOK_NS))
SLOW, HANG = "non_communication_slow", "non_communication_hang"
Told = tuple[str, str, str]


def place(*ranks: int, kind: str = "rank") -> Place:
    return Place(kind, f"{kind} {', '.join(map(str, ranks))}", ranks)


class Job:
    """Eight ranks in one communicator, whose looks are five windows of a second each."""

    def __init__(self) -> None:
        self.machine, self.at = Incidents(), 0

    def sees(self, *ranks: int, certain: bool = True, kind: str = SLOW, **look: Any) -> list[Told]:
        """One look that finds each of the ranks by itself."""
        return self.finds([(kind, place(rank), certain) for rank in ranks], **look)

    def finds(self, found: Sequence[tuple[str, Place, bool]], **look: Any) -> list[Told]:
        self.at += 1
        now_ns = self.at * LOOK_NS
        every = frozenset(range(RANKS))
        findings = [
            Finding(kind, where, now_ns - LOOK_NS, now_ns, 0.9, certain, "", "", "")
            for kind, where, certain in found
        ]
        one = Look(
            now_ns, findings, WINDOWS, WINDOW_NS, every, every, parts=dict.fromkeys(every, 0)
        )
        events = self.machine.step(replace(one, **look))
        return [
            (each.what, each.incident.finding.kind, each.incident.finding.place.name)
            for each in events
        ]

    def opened(self, rank: int = 3) -> Job:
        """The job with an open incident of a straggler."""
        assert self.sees(rank) == []
        assert self.sees(rank) == [("finding", SLOW, f"rank {rank}")]
        return self

    def until_ended(self, most: int = 100, **look: Any) -> int:
        """The number of looks without findings until an incident ends."""
        for many in range(1, most + 1):
            if any(what == "ended" for what, _, _ in self.sees(**look)):
                return many
        raise AssertionError("no incident has ended")


def test_opens__when_later_windows_show_it_again() -> None:
    job = Job().opened()
    (one,) = job.machine.open.values()
    assert (one.number, one.state, job.machine.found) == (1, State.OPEN, 1)


def test_opens__a_hang_at_once() -> None:
    assert Job().sees(3, kind=HANG) == [("finding", HANG, "rank 3")]


@pytest.mark.parametrize(
    ("certain", "what", "after"), [(True, "finding", 0), (False, "suspicion", 1)]
)
def test_opens__a_report_of_a_driver_for_as_long_as_it_is_told(
    certain: bool, what: str, after: int
) -> None:
    """The report keeps its time while its host repeats it."""
    machine, every = Incidents(), frozenset(range(RANKS))
    told = Finding("hardware_fault", place(5, kind="gpu"), 0, 0, 0.9, certain, "", "", "")
    repeated, seen = 2 * HOLD, []
    for at in range(2 * repeated):
        findings = [told] if at < repeated else []
        look = Look(at * LOOK_NS, findings, WINDOWS, WINDOW_NS, every, every)
        seen += [(at, each.what) for each in machine.step(look)]
    assert seen[0] == (after, what)
    assert [each for _, each in seen] == [what, "ended"]
    assert seen[1][0] >= repeated


def test_opens__a_report_of_a_driver_at_once_beside_another_incident() -> None:
    job = Job().opened()
    found = [("hardware_fault", place(5, kind="gpu"), True)]
    assert job.finds(found) == [("finding", "hardware_fault", "gpu 5")]


def test_suspicion__is_reported_when_it_repeats() -> None:
    job = Job()
    assert job.sees(3, certain=False) == []
    assert job.sees(3, certain=False) == [("suspicion", SLOW, "rank 3")]
    assert job.sees(3, certain=False) == []
    assert job.sees(3) == [("finding", SLOW, "rank 3")]
    assert job.machine.found == 1


def test_suspicion__of_one_interval_is_only_counted() -> None:
    job = Job()
    for rank in (1, 2, 5):
        assert job.sees(rank, certain=False) == []
    assert [job.sees() for _ in range(HOLD + 1)] == [[]] * (HOLD + 1)
    assert (job.machine.unrepeated, job.machine.open) == (3, {})


def test_suspicion__that_only_old_windows_repeat_is_not_reported() -> None:
    """The windows of two looks overlap."""
    job = Job()
    old = Finding(SLOW, place(3), 0, LOOK_NS, 0.9, True, "", "", "")
    every = frozenset(range(RANKS))
    for at in range(3):
        now_ns = (at + 1) * LOOK_NS
        look = Look(now_ns, [old], WINDOWS, WINDOW_NS, every, every)
        assert job.machine.step(look) == []
    assert job.machine.open == {}


def test_ends__after_the_hold_and_once() -> None:
    job = Job().opened()
    job.sees()
    (one,) = job.machine.open.values()
    states = [one.state]
    assert job.until_ended() == HOLD - 1
    assert [*states, one.state] == [State.QUIET, State.ENDED]
    assert [job.sees() for _ in range(HOLD)] == [[]] * HOLD


def test_ends__not_while_nothing_is_judged() -> None:
    job = Job().opened()
    nobody: frozenset[int] = frozenset()
    for look in (
        {"windows": 0},  # no iteration has passed
        {"ranks": frozenset({0, 1})},  # others went on, and rank 3 called nothing
        {"ranks": nobody, "followed": frozenset({0}), "missing": True},  # its host is left out
    ):
        assert [job.sees(**look) for _ in range(50)] == [[]] * 50, look
    assert job.until_ended() == HOLD


def test_ends__not_while_the_job_stands_still() -> None:
    """A job that hangs is not searched for what is slow."""
    job = Job().opened()
    job.sees(5, kind=HANG)
    assert [job.sees(5, kind=HANG) for _ in range(50)] == [[]] * 50
    assert len(job.machine.open) == 2


def test_ends__of_a_rank_that_the_job_no_longer_has() -> None:
    job = Job().opened()
    left = frozenset(range(RANKS)) - {3}
    assert job.until_ended(ranks=left, followed=left) == HOLD


def test_ends__when_the_job_is_over() -> None:
    job = Job().opened()
    assert job.until_ended(over=True, windows=0) == HOLD_LOOKS


def test_ends__later_if_it_came_back_after_a_gap() -> None:
    job = Job().opened()
    for _ in range(HOLD - 1):
        assert job.sees() == []
    assert job.sees(3) == []
    assert HOLD < job.until_ended() <= HOLD_TIMES_MAX * HOLD


def test_ends__not_while_the_job_is_as_slow_as_it_made_it() -> None:
    """The rule compares a rank with its past, and only slow iterations are left of that."""
    job = Job()
    for _ in range(5):
        job.sees(pace_ns=10.0)
    for _ in range(2):
        job.sees(3, pace_ns=30.0)
    assert [job.sees(pace_ns=29.0) for _ in range(50)] == [[]] * 50
    (one,) = job.machine.open.values()
    assert one.state is State.QUIET
    assert job.until_ended(pace_ns=11.0) == HOLD


def test_ends__some_day_though_the_job_stays_slow() -> None:
    job = Job()
    job.sees(pace_ns=10.0)
    for _ in range(2):
        job.sees(3, pace_ns=30.0)
    assert job.until_ended(pace_ns=30.0, most=10_000) * LOOK_NS >= SLOW_NS_MAX


def test_beside__a_suspicion_is_a_note() -> None:
    job = Job().opened()
    said = []
    for _ in range(5):
        assert job.finds([(SLOW, place(3), True), (SLOW, place(5), False)]) == []
        said += job.machine.notes
    assert said == [
        "rank 5 is suspected as well (non_communication_slow): incident 1 "
        "(non_communication_slow, rank 3) explains it"
    ]
    assert len(job.machine.open) == 1


def test_beside__a_suspicion_of_ranks_that_exchange_nothing_with_it_is_reported() -> None:
    job = Job().opened()
    apart = {rank: rank // 4 for rank in range(RANKS)}
    both = [(SLOW, place(3), True), (SLOW, place(5), False)]
    assert job.finds(both, parts=apart) == []
    assert job.finds(both, parts=apart) == [("suspicion", SLOW, "rank 5")]


def test_beside__another_fault_has_to_last() -> None:
    job = Job().opened()
    events = [job.sees(3, 5) for _ in range(BESIDE + 1)]
    assert events == [*[[]] * (BESIDE - 1), [("finding", SLOW, "rank 5")], []]


def test_beside__a_hang_is_found_at_once() -> None:
    assert Job().opened().sees(5, kind=HANG) == [("finding", HANG, "rank 5")]


def test_many__suspicions_keep_no_fault_out() -> None:
    job = Job()
    for at in (100, 200):
        job.finds([(SLOW, place(at + rank), False) for rank in range(INCIDENTS_MAX + 9)])
    assert job.sees(3, kind=HANG) == [("finding", HANG, "rank 3")]
    assert len(job.machine._known) == INCIDENTS_MAX


def test_place__fewer_or_more_ranks_are_the_same_fault() -> None:
    job = Job().opened()
    for ranks in ((3, 5), (3,), (2, 3)):
        assert job.finds([(SLOW, place(*ranks, kind="ranks"), True)]) == []
    assert len(job.machine.open) == 1
    assert next(iter(job.machine.open.values())).state is State.OPEN


def test_place__one_that_cannot_be_told_from_it_is_the_same_fault() -> None:
    job = Job()
    one = Place("link", "leaf0-spine0", (), "", ("leaf1-spine0",))
    other = Place("link", "leaf1-spine0", (), "", ("leaf0-spine0",))
    job.finds([("network_loss", one, True)])
    job.finds([("network_loss", one, True)])
    assert [job.finds([("network_loss", other, True)]) for _ in range(9)] == [[]] * 9
    assert len(job.machine.open) == 1


@st.composite
def faults(draw: st.DrawFn) -> list[tuple[bool, int | None]]:
    """Looks: whether the straggler shows, and a rank that is suspected by mistake; None: none.

    Phases with the fault have gaps shorter than the hold, phases without it are longer than the
    longest hold. A mistake is made for one look, and for another rank each time.
    """
    looks: list[tuple[bool, int | None]] = []
    wrong = st.one_of(st.none(), st.integers(4, RANKS - 1))
    for _ in range(draw(st.integers(1, 3))):
        looks += [(False, None)] * draw(st.integers(0, 3))
        shows = [True, True]
        for gap in draw(st.lists(st.integers(0, HOLD - 1), max_size=8)):
            shows += [*[False] * gap, True]
        looks += [(one, draw(wrong)) for one in shows]
        looks += [(False, None)] * (HOLD_TIMES_MAX * HOLD + 1)
    return looks


@settings(deadline=None)
@given(faults(), st.booleans())
def test_random__an_incident_never_flaps(looks: list[tuple[bool, int | None]], sure: bool) -> None:
    """Each phase of the fault opens one incident and ends it, and no other rank gets one."""
    job, events = Job(), []
    phases = sum(on and not before for before, on in _on(looks))
    for shows, wrong in looks:
        found = [(SLOW, place(3), True)] if shows else []
        found += [] if wrong is None else [(SLOW, place(wrong), sure and not shows)]
        events += job.finds(found)
    assert events == [("finding", SLOW, "rank 3"), ("ended", SLOW, "rank 3")] * phases
    assert job.machine.open == {}


def _on(looks: Sequence[tuple[bool, int | None]]) -> list[tuple[bool, bool]]:
    """Pairs of neighbouring looks: whether the fault was there, gaps counted as if it was."""
    shows = [one for one, _ in looks]
    on = [any(shows[max(at - HOLD + 1, 0) : at + 1]) for at in range(len(shows))]
    return list(zip([False, *on], on, strict=False))


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sets(st.integers(0, RANKS - 1), max_size=3),
            st.booleans(),
            st.sampled_from([SLOW, HANG, "network_loss"]),
            st.integers(0, WINDOWS),
        ),
        max_size=40,
    )
)
def test_random__every_incident_that_opened_ends(
    looks: list[tuple[set[int], bool, str, int]],
) -> None:
    job = Job()
    events: list[Told] = []
    for ranks, certain, kind, windows in looks:
        events += job.sees(*sorted(ranks), certain=certain, kind=kind, windows=windows)
    for _ in range(HOLD_TIMES_MAX * 4 * HOLD):
        events += job.sees()
    assert job.machine.open == {}
    open_: set[tuple[str, str]] = set()
    for what, *of in events:
        at = (of[0], of[1])
        assert (at in open_) == (what == "ended") or what == "finding"
        if what == "ended":
            open_.remove(at)
        else:
            open_.add(at)
    assert not open_


@pytest.mark.parametrize(
    ("told", "unrepeated", "said"),
    [
        ({}, 0, "no findings"),
        ({1: "suspicion"}, 2, "no findings, 1 suspicion (incident 1), 2 suspicions that did not "),
        ({1: "finding", 2: "suspicion", 3: "finding"}, 0, "2 findings (incidents 1, 3), 1 suspi"),
        (dict.fromkeys(range(1, 30), "finding"), 0, "29 findings (incidents 1, 2, "),
    ],
)
def test_counted__names_the_incidents(told: dict[int, str], unrepeated: int, said: str) -> None:
    found = counted(told, unrepeated)
    assert found.startswith(said)
    assert ("..." in found) == (len(told) > NUMBERS_MAX)
