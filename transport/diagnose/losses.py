"""Finds places that lose packets, and tells damage from full queues and sockets."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from transport.diagnose import queues
from transport.diagnose.alone import LASTING
from transport.diagnose.finding import Finding
from transport.diagnose.loss_places import (
    LOSS_ADVICE,
    LOSS_QUERY,
    LOSS_RATE_MIN,
    LOSSES_MIN,
    RIVAL_SHARE,
    SINGLY,
    Lossy,
    lossiest,
    lossy_somewhere,
    lossy_windows,
    lost_and_sent,
    rate_of,
    singly,
)
from transport.diagnose.overflow import is_loaded, overflow, overflows
from transport.diagnose.paths import Paths
from transport.diagnose.seen import Rule, Seen, confidence_of
from transport.diagnose.slow import costs_nothing
from transport.ground.units import percent

Array = NDArray[Any]

# Paths fail, as those of a link that is down, if they became unusable once for this many lost
# segments: nothing comes back that would tell of a loss but a timeout. Of the paths of a full queue
# one becomes unusable for 50 lost segments or more.
LOST_FOR_A_FAILURE = 20
HOST_LOSS_RATE = 0.01  # overflowing sockets lose a smaller share, except in short bursts
# Full queues of switches with small buffers also lose many packets in one place. A place is
# certainly lossy at this loss rate, or at this many times the loss rate of all other paths.
CLEAR_RATE, CLEAR_CONTRAST = 0.05, 100.0
# Before so many windows, losses are certain damage only if the other places lose less than this.
BEGUN, QUIET_RATE = 5, 2e-4
QUIET_WINDOWS = 3  # otherwise a place is clearly lossy that is so in each of this many windows
CALM_RATE = 2e-3  # queues overflow if the other paths of a job lose more
# Cables and optics lose packets singly and at all times. A place of a real job loses at random if
# it lost so in each of this many time windows.
RANDOM_WINDOWS = 6
FEW_RATE = 0.005  # a smaller share of lost packets must make iterations longer

# What a finding of losses says if queues were not full, and if that is not known.
_QUEUES = {
    False: "while round-trip times stayed usual: the queues were not full.",
    None: "and there is no round-trip time that would tell whether queues were full.",
}


def lossy_place(seen: Seen, at: int, rule: Rule) -> Finding | None:
    """A place whose paths lose packets although their queues are short."""
    paths = seen.paths
    if paths is None or not len(paths.ends):
        return None
    span = seen.recent(at, rule)
    lost, sent = lost_and_sent(paths, span)
    found = lossiest(seen, paths, lost, sent) or lossy_somewhere(lost, sent)
    if found is None or lost.sum() < LOSSES_MIN:
        return None
    place, mine = found.place, found.paths
    down = float(paths.downs[span].sum(axis=0)[mine].sum())
    failed = bool(paths_fail(down, lost[mine].sum()))
    if not (failed and not found.somewhere) and overflows(paths, span, found):
        return overflow(seen, paths, span, rule, found)
    queued = queues.are_full(paths, span, mine, lost > 0)
    # Busy hosts acknowledge late, so that other paths seem to lose packets, too. Simulated hosts
    # are never busy, so a lossy place must differ clearly from other paths.
    at_random = queued is False and not seen.facts.simulated and _at_random(paths, at, mine)
    if queued or (place.kind == "link" and not at_random and is_loaded(paths, span, place.name)):
        return None
    often = lossy_windows(paths, span, mine)
    # If routes are known, losses of a single pair point to no link or NIC.
    has_place = place.kind in (("link", "nic") if paths.names else ("link", "nic", "pair"))
    # Full queues make paths unusable, too, and so at more than one place.
    down_alone = failed and found.other_rate < RIVAL_SHARE * found.rate
    clear = down_alone or at_random or _is_clear(paths, at, found)
    # Few losses that cost nothing may be those of a queue that was full for a moment.
    clear = clear and (found.rate >= FEW_RATE or not costs_nothing(seen, span))
    certain = has_place and clear and (queued is False or failed)
    # Full queues also lose packets for a moment, above all when a job starts, so losses must
    # repeat; after the start, paths that became unusable are evidence enough.
    if often < rule.seen and (not failed or at < rule.of - 1):
        return None
    text = evidence_of_losses(found, lost, sent, queued) + _more_of_losses(
        seen, at_random, int(down)
    )
    return Finding(
        "network_loss",
        place,
        *seen.windows.span(span.start, at),
        confidence_of(min(found.rate / LOSS_RATE_MIN, lost[mine].sum() / LOSSES_MIN)),
        certain and not _may_be_a_socket(seen, span, found, often),
        text,
        LOSS_QUERY,
        LOSS_ADVICE[place.kind],
        weight=float(lost[mine].sum()),
        more={"downs": int(down), "failed": failed},
    )


def paths_fail(downs: Array | float, lost: Array | float) -> Array:
    """Whether paths that became unusable, and lost segments, are those of a place that is down."""
    return np.asarray(downs >= np.maximum(LOSSES_MIN, np.asarray(lost) / LOST_FOR_A_FAILURE))


def _is_clear(paths: Paths, at: int, found: Lossy) -> bool:
    """Whether a place loses clearly more than others, and as a bad cable does."""
    rate, other_rate, mine = found.rate, found.other_rate, found.paths
    # Where all flows begin at once, or two of them meet in front of a receiver, queues overflow.
    meets = found.place.kind == "nic" and found.place.side == "receive"
    if (at < BEGUN or meets) and other_rate > QUIET_RATE:
        return False
    if rate < min(CLEAR_RATE, CLEAR_CONTRAST * other_rate) or other_rate >= RIVAL_SHARE * rate:
        return False
    recent, lately = (slice(max(at + 1 - of, 0), at + 1) for of in (QUIET_WINDOWS, LASTING))
    if singly(paths, lately, mine, rate) < SINGLY or queues.grew(paths, recent, mine):
        return False
    # Where queues overflow, one of them does so more than others, for a while.
    calm = other_rate < CALM_RATE
    often = rate >= CLEAR_RATE or lossy_windows(paths, recent, mine) == QUIET_WINDOWS
    return (calm and often) or lossy_windows(paths, lately, mine) >= LASTING - 1


def _at_random(paths: Paths, at: int, mine: Array) -> bool:
    """Whether these paths have long lost packets singly and all the time."""
    span = slice(at + 1 - RANDOM_WINDOWS, at + 1)
    if span.start < 0:
        return False
    lost, sent = paths.lost[span][:, mine].sum(axis=1), paths.sent[span][:, mine].sum(axis=1)
    rates = rate_of(lost, np.maximum(sent, lost))
    always = bool((rates >= HOST_LOSS_RATE).all())
    return always and singly(paths, span, mine, float(rates.mean())) >= SINGLY


def _may_be_a_socket(seen: Seen, span: slice, found: Lossy, often: int) -> bool:
    """Whether a host's full socket may have lost the packets, rather than the place.

    A host whose socket overflows also loses many packets at once, but seldom. Only losses in every
    window tell a lossy NIC from it. Simulated hosts have no sockets. often: windows with losses.
    """
    in_every_window = found.rate >= HOST_LOSS_RATE and often == span.stop - span.start
    return not (in_every_window or seen.facts.simulated or found.place.kind == "link")


def evidence_of_losses(found: Lossy, lost: Array, sent: Array, queued: bool | None) -> str:
    """Text about the losses of a place. lost, sent: [path]."""
    mine = found.paths
    others = "" if found.somewhere else f" all other paths {percent(found.other_rate, 2)},"
    return (
        f"{found.place.name} lost {lost[mine].sum():.0f} of about {sent[mine].sum():.0f} segments "
        f"({percent(found.rate, 2)}),{others} {_QUEUES[queued]}"
    )


def _more_of_losses(seen: Seen, at_random: bool, downs: int) -> str:
    text = ""
    if at_random:
        last = seen.windows.text_of(RANDOM_WINDOWS)
        text += f" It has lost packets singly in each of the last {last}."
    if downs:
        times = "Once" if downs == 1 else f"{downs} times"
        text += f" {times} a path through it became unusable."
    return text
