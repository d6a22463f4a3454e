"""Finds the place whose losses are least likely if all paths lose packets at one rate."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from transport.diagnose.finding import Place
from transport.diagnose.paths import Paths
from transport.diagnose.seen import Seen

Array = NDArray[Any]

LOSSES_MIN = 8  # a place is lossy if it lost at least this many segments
LOSSES_WINDOW_MIN = 4  # a time window with fewer lost segments does not count as a lossy one
LOSS_RATE_MIN = 1e-3
LOSS_CONTRAST = 10.0  # a lossy place's loss rate is at least this many times that of other paths
RIVAL_SHARE = 0.5  # a place that loses this part of what the worst one loses is like it
TIE = 2.0  # places whose log-likelihoods differ by less are tied
# Where fewer packets are lost singly than this share of what chance would have, queues overflow;
# where more are, each is lost by itself, as by a bad cable. In between it is not known.
BURSTS, SINGLY = 0.4, 0.75
CHANCE_MIN = 0.5  # that chance is not known better, as packets on their way do not count as sent

LOSS_QUERY = (
    "SELECT process, peer, path, sum(value) AS lost FROM events WHERE what = 'loss' GROUP BY ALL "
    "ORDER BY lost DESC"
)
# Of places that lose single packets, by the kind of place: damage.
LOSS_ADVICE = {
    "link": "Check the cable, the optics and the error counters at both ends of this link.",
    "nic": "Check the error counters of this NIC (ethtool -S) and of its switch port, and the "
    "cable.",
    "pair": "Check the error counters of both NICs (ethtool -S); --routes tells which link it is.",
    "network": "Give --routes, so that the link can be named, and check the error counters of "
    "hosts and switches.",
}
# Of places that lose several in a row: full queues and sockets.
OVERFLOW_ADVICE = (
    "Let switches mark ECN, or give them larger queues; raise net.core.rmem_max if "
    "host_drops grows (weft counters); spread the flows (weft plan)."
)


@dataclass(frozen=True, eq=False)
class Lossy:
    """A place that loses packets. rate, other_rate: the shares that its paths lose, and all others
    or, if one loses nearly as much, the next place. paths: [path] whether it is of the place."""

    place: Place
    rate: float
    other_rate: float
    paths: Array

    @property
    def somewhere(self) -> bool:
        """Whether its paths have no place in common that is known."""
        return self.place.kind == "network"


def lossiest(seen: Seen, paths: Paths, lost: Array, sent: Array) -> Lossy | None:
    """The place with the most unlikely losses: by the log-likelihood ratio of two rates."""
    candidates = seen.places_of_paths
    if not candidates.every:
        return None
    mine = candidates.summed(lost), candidates.summed(sent)
    rest = lost.sum() - mine[0], sent.sum() - mine[1]
    rate, other = rate_of(*mine), rate_of(*rest)
    lossy = (rate >= LOSS_RATE_MIN) & (mine[0] >= LOSSES_MIN) & (rate >= LOSS_CONTRAST * other)
    if not lossy.any():
        return None
    score = np.where(lossy, log_likelihood(*mine) + log_likelihood(*rest), -np.inf)
    tied = np.flatnonzero(score > score.max() - TIE).tolist()
    at = min(tied, key=lambda each: (candidates.every[each].rank, -score[each]))
    one = candidates.every[at].place
    names = dict.fromkeys(candidates.every[each].place.name for each in tied)
    names.pop(one.name)
    place = Place(one.kind, one.name, one.ranks, one.side, tuple(names))
    mask = np.zeros(len(lost), bool)
    mask[candidates.every[at].at] = True
    alike = np.array(
        [each.place.kind == one.kind and each.place.side == one.side for each in candidates.every]
    )
    apart = candidates.summed(lost * ~mask), candidates.summed(sent * ~mask)
    rival = np.where(alike & (apart[0] >= LOSSES_MIN), rate_of(*apart), 0.0).max(initial=0.0)
    # Where another place loses about as much, as at the ranks of a tree where two others meet, the
    # rate of the rest says little.
    rest_rate = float(rival) if rival >= RIVAL_SHARE * rate[at] else float(other[at])
    return Lossy(place, float(rate[at]), rest_rate, mask)


def lossy_somewhere(lost: Array, sent: Array) -> Lossy | None:
    """Losses on paths for which no common place is known; routes might show one.

    Hosts also lose packets, if their sockets' buffers are full, so this is only a suspicion.
    """
    mine = lost > 0
    if rate_of(lost.sum(), sent.sum()) < LOSS_RATE_MIN or mine.sum() < 2:
        return None
    place = Place("network", f"{int(mine.sum())} paths of several ranks")
    return Lossy(place, float(rate_of(lost[mine].sum(), sent[mine].sum())), 0.0, mine)


def singly(paths: Paths, span: slice, mine: Array, rate: float) -> float:
    """How many of the packets that some paths lost in some windows were lost singly, as a share of
    those that chance would lose singly at this rate: the neighbours of (1 - rate)^2 arrive."""
    lost = float(paths.lost[span][:, mine].sum())
    alone = float(paths.alone[span][:, mine].sum())
    return alone / max(lost, 1.0) / max((1 - min(rate, 1.0)) ** 2, CHANCE_MIN)


def lost_and_sent(paths: Paths, span: slice) -> tuple[Array, Array]:
    """Segments of each path that were lost or timed out, and at least as many that were sent."""
    lost = (paths.lost[span] + paths.timeouts[span]).sum(axis=0)
    return lost, np.maximum(paths.sent[span].sum(axis=0), lost)


def lossy_windows(paths: Paths, span: slice, mine: Array) -> int:
    """In how many windows these paths clearly lose more than others; a burst is in one window."""
    lost = paths.lost[span] + paths.timeouts[span]
    sent = np.maximum(paths.sent[span], lost)
    here = lost[:, mine].sum(axis=1), sent[:, mine].sum(axis=1)
    rest = lost.sum(axis=1) - here[0], sent.sum(axis=1) - here[1]
    clear = rate_of(*here) >= LOSS_CONTRAST * rate_of(*rest)
    return int((clear & (here[0] >= LOSSES_WINDOW_MIN)).sum())


def rate_of(lost: Array, sent: Array) -> Array:
    return np.asarray(lost / np.maximum(sent, 1.0))


def log_likelihood(lost: Array, sent: Array) -> Array:
    """Log-likelihood of losing `lost` of `sent` segments, if all are equally likely to be lost."""
    total = np.maximum(sent, 1.0)
    rate = np.clip(lost / total, 1e-9, 1 - 1e-9)
    return np.asarray(lost * np.log(rate) + (total - lost) * np.log(1 - rate))
