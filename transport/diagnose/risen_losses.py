"""Finds a link or NIC that from some time on loses more single packets than before.

Where queues overflow anyway, no rate of losses is suspicious by itself. A place is compared with
its own earlier rate, and the growth that all other paths have is taken off.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray

from transport.diagnose import places
from transport.diagnose.finding import Finding, Place, shared
from transport.diagnose.losses import LOSS_ADVICE, LOSS_QUERY, log_likelihood
from transport.diagnose.paths import Paths
from transport.diagnose.seen import Seen
from transport.ground.units import percent

Array = NDArray[Any]

SIDE_MIN = 3  # windows before the change, and after it
SPLITS_MAX = 64  # moments of a long trace at which a change is looked for
GROWN_MIN, GROWN_TIMES = 0.003, 1.6  # the rate grows by at least this, and to this many times
LOST_MIN = 16  # at least so many packets more than expected
# Log-likelihood ratio of the losses against those expected; places that differ by less are tied.
LIKELY_MIN, TIE = 100.0, 2.0
RIVAL_SHARE = 0.3  # without its paths, no other place is as unlikely by this part
SINGLY_MIN = 0.75  # of the additional losses, this share of what chance loses singly is single
WAITS = 1.15  # round trips that grow by this, beside others, tell of a queue
LASTS_MIN = 0.7  # of the later windows, so many lose more than halfway between the two rates


def risen_losses(seen: Seen) -> Finding | None:
    """The link or NIC whose losses grew most beyond those of all other paths, if they did."""
    paths, count = seen.paths, seen.windows.count
    if paths is None or not len(paths.ends) or count < 2 * SIDE_MIN:
        return None
    candidates = seen.places_of_paths
    named = np.array([one.place.kind in ("link", "nic") for one in candidates.every])
    sent = np.maximum(paths.sent, paths.lost)
    splits = np.unique(np.linspace(SIDE_MIN, count - SIDE_MIN, SPLITS_MAX).astype(int)).tolist()
    scores = [_score(candidates, paths.alone, sent, at) for at in splits]
    best = np.array([np.where(named, one, 0.0) for one in scores])
    if best.max(initial=0.0) < LIKELY_MIN:
        return None
    at = splits[int(best.max(axis=1).argmax())]
    score = best.max(axis=0)
    tied = np.flatnonzero(score >= score.max() - TIE).tolist()
    chosen = min(tied, key=lambda each: (candidates.every[each].rank, -score[each]))
    one = candidates.every[chosen].place
    names = dict.fromkeys(candidates.every[each].place.name for each in tied)
    names.pop(one.name)
    place = Place(one.kind, one.name, one.ranks, one.side, tuple(names))
    mine = candidates.every[chosen].at
    rest = np.ones(len(paths.ends), bool)
    rest[mine] = False
    others = np.where(named, _score(candidates, paths.alone * rest, sent * rest, at), 0.0)
    if others.max() > RIVAL_SHARE * score[chosen]:
        return None  # it grew elsewhere as well
    if not _is_damage(paths, sent, mine, at) or _waits(paths, mine, at):
        return None
    return _finding(seen, paths, sent, place, mine, at)


def _score(candidates: places.Candidates, lost: Array, sent: Array, at: int) -> Array:
    """[place]: how unlikely its losses from window `at` on are, given its earlier ones; 0: they did
    not grow enough."""
    early, late = (lost[:at].sum(axis=0), sent[:at].sum(axis=0)), (lost[at:], sent[at:])
    now = late[0].sum(axis=0), late[1].sum(axis=0)
    before = candidates.summed(early[0]), candidates.summed(early[1])
    after = candidates.summed(now[0]), candidates.summed(now[1])
    usual = _rate(*before)
    others = (
        _rate(early[0].sum() - before[0], early[1].sum() - before[1]),
        _rate(now[0].sum() - after[0], now[1].sum() - after[1]),
    )
    growth = np.maximum(others[1] / others[0], 1.0)
    rate, expected = _rate(*after), usual * growth
    grown = (after[0] - after[1] * expected >= LOST_MIN) & (rate >= GROWN_TIMES * expected)
    grown &= rate - expected >= GROWN_MIN
    # Two rates against one: the moment of a change explains the losses of both sides best.
    every = before[0] + after[0], before[1] + after[1]
    found = log_likelihood(*before) + log_likelihood(*after) - log_likelihood(*every)
    return np.where(grown, found, 0.0)


def _rate(lost: Array, sent: Array) -> Array:
    """Losses for each packet; half a loss is assumed where there is none."""
    made: Array = np.maximum(lost, 0.5) / np.maximum(sent, 1.0)
    return made


def _is_damage(paths: Paths, sent: Array, mine: Array, at: int) -> bool:
    """Whether the additional losses are mostly single ones, and last."""
    lost, alone = paths.lost[:, mine].sum(axis=1), paths.alone[:, mine].sum(axis=1)
    through = np.maximum(sent[:, mine].sum(axis=1), 1.0)
    part = through[at:].sum() / through[:at].sum()
    more = lost[at:].sum() - lost[:at].sum() * part
    single = alone[at:].sum() - alone[:at].sum() * part
    rates = lost / through
    usual, rate = lost[:at].sum() / through[:at].sum(), lost[at:].sum() / through[at:].sum()
    lasts = float((rates[at:] > (usual + rate) / 2).mean())
    return bool(single >= SINGLY_MIN * (1 - rate) ** 2 * more and lasts >= LASTS_MIN)


def _waits(paths: Paths, mine: Array, at: int) -> bool:
    """Whether packets also take longer, beside all others, as where a queue is."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # paths that were never sampled
        grown = np.nanmedian(paths.rtt_ns[at:], axis=0) / np.nanmedian(paths.rtt_ns[:at], axis=0)
        rest = np.ones(len(grown), bool)
        rest[mine] = False
        beside = float(np.nanmedian(grown[mine]) / np.nanmedian(grown[rest]))
    return bool(beside >= WAITS)


def _finding(seen: Seen, paths: Paths, sent: Array, place: Place, mine: Array, at: int) -> Finding:
    lost = paths.lost[:, mine].sum(axis=1)
    through = np.maximum(sent[:, mine].sum(axis=1), 1.0)
    usual, rate = lost[:at].sum() / through[:at].sum(), lost[at:].sum() / through[at:].sum()
    return Finding(
        "network_loss",
        place,
        *seen.windows.span(at, seen.windows.count - 1),
        shared(0.9, place),
        True,
        f"From window {at + 1} of {seen.windows.count} on, {place.name} lost "
        f"{percent(float(rate), 2)} of its segments, {percent(float(usual), 2)} before, "
        "most of them singly: a bad cable does so, "
        "and a full queue loses several in a row.",
        LOSS_QUERY,
        LOSS_ADVICE[place.kind],
        weight=float(lost[at:].sum()),
        more={"downs": 0},
    )
