"""Finds a link or NIC that from some time on loses more single packets than before.

Where queues overflow anyway, no rate of losses is suspicious by itself. A place is compared with
its own earlier rate, and the growth that all other paths have is taken off.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import log
from typing import Any

import numpy as np
from numpy.typing import NDArray

from transport.diagnose import places, queues
from transport.diagnose.chance import CHANCE_MAX
from transport.diagnose.finding import Finding, Place
from transport.diagnose.loss_places import LOSS_ADVICE, LOSS_QUERY, SINGLY, log_likelihood
from transport.diagnose.paths import Paths
from transport.diagnose.seen import Seen
from transport.ground.units import percent

Array = NDArray[Any]

# Windows before the change, and after it: of fewer, it is not known how much losses vary.
BEFORE_MIN, AFTER_MIN = 3, 6
SPLITS_MAX = 64  # moments of a long trace at which a change is looked for
GROWN_MIN, GROWN_TIMES = 0.003, 1.6  # the rate grows by at least this, and to this many times
LOST_MIN = 16  # at least so many packets more than expected
TIE = 2.0  # places whose log-likelihood ratios differ by less are tied
CROWDED_RATE = 0.02  # a link that lost more before has a queue that overflows
LASTS_MIN = 0.7  # of the later windows, so many lose more than halfway between the two rates


def risen_losses(seen: Seen) -> Finding | None:
    """The link or NIC whose losses grew most beyond those of all other paths, if they did."""
    paths, count = seen.paths, seen.windows.count
    if paths is None or not len(paths.ends) or count < BEFORE_MIN + AFTER_MIN:
        return None
    candidates = seen.places_of_paths
    named = np.array([one.place.kind in ("link", "nic") for one in candidates.every])
    sent = np.maximum(paths.sent, paths.lost)
    splits = np.unique(np.linspace(BEFORE_MIN, count - AFTER_MIN, SPLITS_MAX).astype(int)).tolist()
    likely, dispersion = _likely(candidates, paths.alone, sent, splits)
    # By chance, one of the places seems to be as unlikely, at one of the moments, in 1 % of jobs.
    likely_min = log(len(named) * len(splits) / CHANCE_MAX)
    scores = np.where(named & (likely >= likely_min * dispersion), likely, 0.0)
    if not scores.any():
        return None
    at, score = splits[int(scores.max(axis=1).argmax())], scores.max(axis=0)
    tied = np.flatnonzero(score >= score.max() - TIE).tolist()
    chosen = min(tied, key=lambda each: (candidates.every[each].rank, -score[each]))
    one = candidates.every[chosen].place
    names = dict.fromkeys(candidates.every[each].place.name for each in tied)
    names.pop(one.name)
    place = Place(one.kind, one.name, one.ranks, one.side, tuple(names))
    mine = candidates.every[chosen].at
    rest = np.ones(len(paths.ends), bool)
    rest[mine] = False
    others = np.array([each.place.name != one.name for each in candidates.every]) & named
    likely, dispersion = _likely(candidates, paths.alone * rest, sent * rest, [at])
    if (others & (likely >= likely_min * dispersion)).any():
        return None  # it grew elsewhere as well
    if not _is_damage(paths, sent, mine, at) or queues.grew(paths, slice(at, None), ~rest):
        return None
    return _finding(seen, paths, sent, place, mine, at)


def _likely(
    candidates: places.Candidates, lost: Array, sent: Array, splits: Sequence[int]
) -> tuple[Array, Array]:
    """[split, place]: how unlikely its losses from window `split` on are, given its earlier ones,
    and their dispersion. lost, sent: [window, path]."""
    lost_here, sent_here = (
        np.array([candidates.summed(one) for one in each]) for each in (lost, sent)
    )
    rest = lost.sum(axis=1, keepdims=True) - lost_here, sent.sum(axis=1, keepdims=True) - sent_here
    found = [_likely_at(lost_here, sent_here, *rest, at) for at in splits]
    return np.array([one for one, _ in found]), np.array([one for _, one in found])


def _likely_at(
    lost: Array, sent: Array, rest_lost: Array, rest_sent: Array, at: int
) -> tuple[Array, Array]:
    """[place]: the log-likelihood ratio of two rates of losses against one, if its losses grew
    from window `at` on by more than those of all other paths, else 0; and their dispersion.

    All: [window, place]. The larger dispersion of the two parts counts.
    """
    parts = slice(at), slice(at, None)
    before, after = ((lost[part].sum(axis=0), sent[part].sum(axis=0)) for part in parts)
    others = [_rate(rest_lost[part].sum(axis=0), rest_sent[part].sum(axis=0)) for part in parts]
    usual, rate = _rate(*before), _rate(*after)
    expected = usual * np.maximum(others[1] / others[0], 1.0)
    grown = (after[0] - after[1] * expected >= LOST_MIN) & (rate >= GROWN_TIMES * expected)
    grown &= rate - expected >= GROWN_MIN
    # Two rates against one: the moment of a change explains the losses of both sides best.
    every = before[0] + after[0], before[1] + after[1]
    likely = log_likelihood(*before) + log_likelihood(*after) - log_likelihood(*every)
    dispersion = [_dispersion(lost[part], sent[part]) for part in parts]
    return np.where(grown, likely, 0.0), np.maximum(*dispersion)


def _dispersion(lost: Array, sent: Array) -> Array:
    """[place]: how many times as much the losses of its windows vary as if each packet were lost by
    itself. Full queues lose many in one window and few in the next; so the log-likelihood ratio
    says less, by this factor (quasi-likelihood: McCullagh and Nelder, Generalized Linear Models,
    1989, chapter 9)."""
    fit = sent * _rate(lost.sum(axis=0), sent.sum(axis=0))
    spread: Array = ((lost - fit) ** 2 / np.maximum(fit, 1.0)).sum(axis=0) / (len(lost) - 1)
    return np.asarray(np.maximum(spread, 1.0))


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
    return bool(single >= SINGLY * (1 - rate) ** 2 * more and lasts >= LASTS_MIN)


def _finding(seen: Seen, paths: Paths, sent: Array, place: Place, mine: Array, at: int) -> Finding:
    lost = paths.lost[:, mine].sum(axis=1)
    through = np.maximum(sent[:, mine].sum(axis=1), 1.0)
    usual, rate = lost[:at].sum() / through[:at].sum(), lost[at:].sum() / through[at:].sum()
    # A shared link whose queue always overflows also loses more if another job begins.
    certain = place.kind != "link" or usual < CROWDED_RATE
    return Finding(
        "network_loss",
        place,
        *seen.windows.span(at, seen.windows.count - 1),
        0.9 if certain else 0.6,
        certain,
        f"From iteration {seen.windows.iteration_of(at)} on, {place.name} lost "
        f"{percent(float(rate), 2)} of its segments, {percent(float(usual), 2)} before, "
        "most of them singly: a bad cable does so, "
        "and a full queue loses several in a row.",
        LOSS_QUERY,
        LOSS_ADVICE[place.kind],
        weight=float(lost[at:].sum()),
        more={"downs": 0},
    )
