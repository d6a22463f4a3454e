"""Applies the rules for slowness and losses: to each window of a trace, and to all of it."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from numpy.typing import NDArray

from transport.diagnose import gaps, losses, slow, stragglers
from transport.diagnose.dead_link import dead_link
from transport.diagnose.facts import Facts
from transport.diagnose.failing_link import failing_link
from transport.diagnose.finding import Finding, graded
from transport.diagnose.flapping import flapping
from transport.diagnose.groups import with_all
from transport.diagnose.lasting_losses import lossy_network, rarely_lossy
from transport.diagnose.long_transfers import long_transfers
from transport.diagnose.measures import delays_of, lateness_of
from transport.diagnose.paths import paths_of
from transport.diagnose.risen_losses import risen_losses
from transport.diagnose.round_trips import long_round_trips
from transport.diagnose.seen import Rule, Seen
from transport.diagnose.settings import Settings
from transport.diagnose.sockets import overflowing_sockets
from transport.diagnose.windows import Windows, is_pause, judged_windows_of

Array = NDArray[Any]

MEANWHILE = 0.5  # of two slow places, one follows from the other if it is seen for this part then
OF_DELAYS = ("communication_slow", "congestion")


def broken_link(facts: Facts, settings: Settings) -> list[Finding]:
    """The link that a job may stand still for, if its paths fail."""
    windows = judged_windows_of(facts)
    if windows.count == 0:
        return []
    found = _broken(_seen(facts, windows, settings))
    return [] if found is None else [found]


def slowness(facts: Facts, iterations: Windows, settings: Settings) -> list[Finding]:
    """Findings of what slows the job: pauses of processes, and slow places."""
    windows = judged_windows_of(facts)
    if windows.count == 0:
        return []
    every = gaps.gaps_of(facts, iterations)
    # A shorter gap explains losses, but it is no pause of the job.
    long = [
        one
        for one in every
        if one.lasted_ns > iterations.usual_ns and is_pause(facts, one.lasted_ns)
    ]
    paused = gaps.pauses(facts, iterations, long, _begin_ns(facts, windows, settings.from_window))
    facts, unfit = gaps.without_losses(facts, every), gaps.in_gaps(long, windows)
    seen = _seen(facts, windows, settings)
    merged = _over_windows(seen, settings, unfit)
    likely = gaps.as_proven(facts, long, paused)
    if likely and any(one.certain and one.kind == "network_loss" for one in merged):
        rest = _seen(gaps.without_losses(facts, likely), windows, settings)
        merged = _not_from_pauses(paused, merged, _over_windows(rest, settings, unfit))
    full = overflowing_sockets(facts)
    # A short pause of a real process is no finding, but explains what its NIC lost.
    shown = [one for one in paused if one.certain or (one.more["proven"] and not facts.simulated)]
    merged = [_but_for(one, shown) for one in _lasting(_without_followers(merged))]
    merged = [*full, *(_beside_full_sockets(one, full) for one in merged)]
    merged = [with_all(seen, one) for one in merged]
    merged.sort(key=lambda one: (not one.certain, -one.confidence, one.from_ns))
    proven = [one for one in paused if not one.place.candidates]
    unproven = [one for one in paused if one.place.candidates]
    return sorted([*proven, *merged, *unproven], key=lambda one: not one.certain)


def _over_windows(seen: Seen, settings: Settings, unfit: Array) -> list[Finding]:
    """What single windows show, and what all of them do. unfit: [window] whether a process did not
    run in it."""
    merged: list[Finding] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # medians of windows without samples
        for at in range(settings.from_window, seen.windows.count):
            stopped = bool(unfit[seen.recent(at, settings.rule)].any())
            found = _judged(seen, at, settings.rule, stopped)
            if found is not None:
                _merge(merged, found)
        merged = [
            stragglers.delayed_by_losses(seen.facts, one)
            for one in _with_unlike_places(seen, merged)
        ]
        for rule in (flapping, rarely_lossy, lossy_network):
            over_all = None if any(one.certain for one in merged) else rule(seen)
            if over_all is not None:
                _merge(merged, over_all)
        merged = [stragglers.doubted(seen, one) for one in merged]
        if all(one.indirect for one in merged if one.certain):
            damaged = risen_losses(seen)
            if damaged is not None:
                merged = [graded(one, one.certain and not damaged.certain) for one in merged]
                _merge(merged, damaged)
    return merged


def _not_from_pauses(
    paused: Sequence[Finding], merged: list[Finding], rest: Sequence[Finding]
) -> list[Finding]:
    """The findings, but losses elsewhere that nothing shows once the losses of those who could not
    reach a process in its pause are taken off.

    rest: what was found without these. A NIC of a process that paused may itself be bad.
    """
    places = {(one.kind, one.place.name) for one in rest if one.certain}
    ranks = {one.place.ranks for one in paused}

    def stays(one: Finding) -> bool:
        itself = one.place.ranks in ranks
        return one.kind != "network_loss" or itself or (one.kind, one.place.name) in places

    return [graded(one, one.certain and stays(one)) for one in merged]


def _seen(facts: Facts, windows: Windows, settings: Settings) -> Seen:
    paths = paths_of(facts, windows, settings.routes) if settings.use_paths else None
    return Seen(facts, windows, lateness_of(facts, windows), delays_of(facts, windows), paths)


def _broken(seen: Seen) -> Finding | None:
    return dead_link(seen) or failing_link(seen)


def _with_unlike_places(seen: Seen, merged: list[Finding]) -> list[Finding]:
    """The findings, and those of links and NICs that differ from all others like them."""
    merged = _with_long_transfers(seen, merged)
    slowest = long_round_trips(seen)
    known = (one for one in merged if one.certain and one.kind in OF_DELAYS)
    if slowest is not None and slowest.place.name not in {one.place.name for one in known}:
        if slowest.certain:
            # Messages through it also take longer than those of other NICs and pairs.
            merged = [graded(one, one.certain and not one.indirect) for one in merged]
            merged = [one for one in merged if one.kind != slowest.kind or one.certain]
        merged = [*merged, slowest]
    broken = _broken(seen)
    # A queue that is long enough makes paths unusable, too.
    if broken is not None and (slowest is None or not _at_one_place(broken, slowest)):
        _merge(merged, broken)
    return merged


def _with_long_transfers(seen: Seen, merged: list[Finding]) -> list[Finding]:
    """The findings, and that of a NIC or pair with longer messages than all others, if it is new.

    It explains all slow pairs, so that another slow NIC or pair is only suspected.
    """
    found = long_transfers(seen)
    known = [one for one in merged if one.certain and one.kind in OF_DELAYS]
    if found is None or any(_at_one_place(one, found) for one in known):
        return merged
    if found.certain:
        merged = [graded(one, one.certain and one.kind != found.kind) for one in merged]
    return [*merged, found]


def _at_one_place(one: Finding, other: Finding) -> bool:
    """Whether two findings may be of the same link, or of NICs of the same rank."""
    ends = ({each.place.name, *each.place.candidates} for each in (one, other))
    return bool(set.intersection(*ends))


def _without_followers(merged: list[Finding]) -> list[Finding]:
    """The findings; delays at a place that certainly loses packets follow from that."""
    lossy = [one for one in merged if one.certain and one.kind == "network_loss"]

    def follows(one: Finding) -> bool:
        return one.indirect and any(
            other is not one
            and _at_one_place(one, other)
            and one.from_ns <= other.to_ns
            and other.from_ns <= one.to_ns
            for other in lossy
        )

    return [graded(one, one.certain and not follows(one)) for one in merged]


def _lasting(merged: list[Finding]) -> list[Finding]:
    """The findings. Of slow places, one that is seen mostly while a longer one is, is suspected."""
    slow = [one for one in merged if one.certain and one.kind in OF_DELAYS]

    def lasts(one: Finding) -> bool:
        return not any(
            other.to_ns - other.from_ns > one.to_ns - one.from_ns
            and min(one.to_ns, other.to_ns) - max(one.from_ns, other.from_ns)
            >= MEANWHILE * (one.to_ns - one.from_ns)
            for other in slow
        )

    return [graded(one, one.certain and (one not in slow or lasts(one))) for one in merged]


def _beside_full_sockets(one: Finding, full: Sequence[Finding]) -> Finding:
    """The finding; losses at a host whose kernel dropped packets are no more than suspected."""
    ranks = {rank for each in full for rank in each.place.ranks}
    explained = one.place.kind == "network" or ranks & set(one.place.ranks)
    if one.kind in ("network_loss", "congestion") and ranks and explained:
        return graded(one, False)
    return one


def _but_for(one: Finding, paused: Sequence[Finding]) -> Finding:
    """The finding; that of a NIC that loses what comes while its process pauses is suspected.

    paused: the pauses of which no more doubt is left.
    """
    for pause in paused:
        during = one.from_ns <= pause.to_ns and pause.from_ns <= one.to_ns
        if during and one.place.ranks == pause.place.ranks:
            return graded(one, False)
    return one


def _begin_ns(facts: Facts, windows: Windows, first: int) -> int:
    """When window `first` begins; all that comes before window 0 belongs to it."""
    if first == 0:
        return 0
    return int(windows.starts_ns[first]) if first < windows.count else facts.end_ns


def _judged(seen: Seen, at: int, rule: Rule, stopped: bool) -> Finding | None:
    """The likeliest fault in window `at`. Certain losses and failed paths come first, as they also
    delay messages. A slow place and a straggler can look alike: the more confident
    finding is taken.

    stopped: a process did not run in one of the last windows that the rule counts, which slows
    others.
    """
    lossy = losses.lossy_place(seen, at, rule)
    failed = lossy is not None and bool(lossy.more.get("failed"))
    if stopped or failed or (lossy is not None and lossy.certain):
        return lossy
    others = (slow.slow_place(seen, at, rule), stragglers.straggler(seen, at, rule))
    found = [one for one in others if one is not None]
    return max(found, key=lambda one: one.confidence) if found else lossy


def _merge(merged: list[Finding], found: Finding) -> None:
    """Adds a finding. Of findings of one class that overlap in time, one stays: a certain one if
    there is one, and of these the weightiest."""
    for at, one in enumerate(merged):
        if one.kind == found.kind and found.from_ns <= one.to_ns:
            kept = max(one, found, key=lambda each: (each.certain, each.weight))
            merged[at] = replace(
                kept, from_ns=min(one.from_ns, found.from_ns), to_ns=max(one.to_ns, found.to_ns)
            )
            return
    merged.append(found)
