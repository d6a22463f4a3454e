"""Finds places that lose packets, and tells damage from full queues and sockets."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray

from transport.diagnose.alone import LASTING
from transport.diagnose.finding import Finding, Place, shared
from transport.diagnose.paths import GROWN_RATIO, Paths
from transport.diagnose.seen import Rule, Seen, confidence_of
from transport.ground.units import percent
from transport.plan.routes import undirected

Array = NDArray[Any]

LOSSES_MIN = 8  # a place is lossy if it lost at least this many segments
# Paths fail, as those of a link that is down, if they became unusable once for this many lost
# segments: nothing comes back that would tell of a loss but a timeout. Of the paths of a full queue
# one becomes unusable for 50 lost segments or more.
LOST_FOR_A_FAILURE = 20
LOSSES_WINDOW_MIN = 4  # a time window with fewer lost segments does not count as a lossy one
LOSS_RATE_MIN = 1e-3
HOST_LOSS_RATE = 0.01  # overflowing sockets lose a smaller share, except in short bursts
LOSS_CONTRAST = 10.0  # a lossy place's loss rate is at least this many times that of other paths
# Full queues of switches with small buffers also lose many packets in one place. A place is
# certainly lossy at this loss rate, or at this many times the loss rate of all other paths.
CLEAR_RATE, CLEAR_CONTRAST = 0.05, 100.0
RIVAL_SHARE = 0.5  # a place that loses this part of what the worst one loses is like it
# Before so many windows, losses are certain damage only if the other places lose less than this.
BEGUN, QUIET_RATE = 5, 2e-4
QUIET_WINDOWS = 3  # otherwise a place is clearly lossy that is so in each of this many windows
CALM_RATE = 2e-3  # queues overflow if the other paths of a job lose more
# Cables and optics lose packets singly and at all times, full queues several in a row. A place
# loses at random if it lost in each of this many time windows, and at least this share singly.
RANDOM_WINDOWS, RANDOM_ALONE = 6, 0.9
# Over the whole trace: at least this share, and this many times the rate of such losses elsewhere.
SINGLY_MIN, SINGLY_CONTRAST = 0.6, 10.0
QUEUED_RATIO = 1.5  # queues are full if a path's round-trip time is this many times that of others
# Losses are those of a full queue if less than this part of what would be lost singly by chance is.
BURST_SHARE = 0.4
BURST_SHARE_ALL = 0.75  # the same of losses everywhere, as no cable is bad everywhere
SINGLE_MIN = 0.5  # that part is not known better, as packets on their way are not counted as sent
OVERFLOW_RATE = 0.03  # a queue that loses less is no fault
PAST_MIN, PAST_SHARE = (
    2,
    0.5,
)  # nor one that lost half as much in the windows before, if there are two
# What is neither clearly a burst nor clearly single is no certain damage.
CLEARLY_SINGLE = 0.65
LOADED_RATIO = 1.5  # a link with this many times the load of those beside it has full queues
QUEUED_LATER = 2  # a full queue may show only in the RTTs of this many time windows after a loss

LOSS_QUERY = (
    "SELECT process, peer, path, sum(value) AS lost FROM events WHERE what = 'loss' GROUP BY ALL "
    "ORDER BY lost DESC"
)
LOSS_ADVICE = {
    "link": "Check the cable, the optics and the error counters at both ends of this link.",
    "nic": "Check the error counters of this NIC (ethtool -S) and of its switch port, and the "
    "cable.",
    "pair": "Check the error counters of both NICs (ethtool -S); --routes tells which link it is.",
    "network": "Give --routes, so that the link can be named, and check the error counters of "
    "hosts and switches.",
}

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
    downs = paths.downs[span].sum(axis=0)
    lost, sent = _lost_and_sent(paths, span)
    if lost.sum() < LOSSES_MIN:
        return None
    found = _most_lossy(seen, paths, lost, sent) or _lossy_somewhere(lost, sent)
    if found is None:
        return None
    place, rate, other_rate, mine = found
    down = float(downs[mine].sum())
    failed = paths_fail(down, float(lost[mine].sum()))
    everywhere = place.kind == "network"
    if not (failed and not everywhere) and _overflows(paths, span, mine, rate, everywhere):
        return _overflow(seen, paths, span, at, rule, found)
    queued = _queued(paths, span, mine, lost > 0)
    # Busy hosts acknowledge late, so that other paths seem to lose packets, too. Simulated hosts
    # are never busy, so a lossy place must differ clearly from other paths.
    at_random = queued is False and not seen.facts.simulated and _at_random(paths, at, mine)
    if queued or (place.kind == "link" and not at_random and _loaded(paths, span, place.name)):
        return None
    often = _lossy_windows(paths, span, mine)
    in_every_window = rate >= HOST_LOSS_RATE and often == span.stop - span.start
    clear = failed or at_random or _is_clear(paths, at, mine, (rate, other_rate), place)
    # If routes are known, losses of a single pair point to no link or NIC.
    has_place = place.kind in ("link", "nic") or (place.kind == "pair" and not paths.names)
    certain = has_place and clear and (queued is False or failed)
    # Full queues also lose packets for a moment, above all when a job starts, so losses must
    # repeat; after the start, paths that became unusable are evidence enough.
    if often < rule.seen and (not failed or at < rule.of - 1):
        return None
    text = _evidence_of_losses(place, lost[mine], sent[mine], (rate, other_rate), queued)
    text += _more_of_losses(at_random, int(down))
    return Finding(
        "network_loss",
        place,
        *seen.windows.span(span.start, at),
        shared(confidence_of(min(rate / LOSS_RATE_MIN, lost[mine].sum() / LOSSES_MIN)), place),
        certain and (in_every_window or not _may_be_a_socket(seen, place)),
        text,
        LOSS_QUERY,
        LOSS_ADVICE.get(place.kind, LOSS_ADVICE["link"]),
        weight=float(lost[mine].sum()),
        more={"downs": int(down), "failed": failed},
    )


def _lost_and_sent(paths: Paths, span: slice) -> tuple[Array, Array]:
    """Segments of each path that were lost or timed out, and at least as many that were sent."""
    lost = (paths.lost[span] + paths.timeouts[span]).sum(axis=0)
    return lost, np.maximum(paths.sent[span].sum(axis=0), lost)


def paths_fail(downs: float, lost: float) -> bool:
    """Whether paths that became unusable, and lost segments, are those of a place that is down."""
    return downs >= max(LOSSES_MIN, lost / LOST_FOR_A_FAILURE)


def rarely_lossy(seen: Seen) -> Finding | None:
    """A link or NIC that loses single packets over the whole trace, too few in any three windows.

    Only few ranks may send over a link, so it is told from others by its rate.
    """
    paths = seen.paths
    if paths is None or not len(paths.ends) or seen.windows.count < RANDOM_WINDOWS:
        return None
    # Full queues lose several in a row, here and there: only what is lost singly is compared.
    lost = paths.alone.sum(axis=0)
    sent = np.maximum(paths.sent.sum(axis=0), lost)
    found = _most_lossy(seen, paths, lost, sent) if lost.sum() >= LOSSES_MIN else None
    if found is None or found[0].kind not in ("link", "nic"):
        return None
    place, rate, other_rate, mine = found
    often = int((paths.alone[:, mine].sum(axis=1) > 0).sum())
    alone, every_one = float(lost[mine].sum()), float(paths.lost[:, mine].sum())
    least = LOSS_RATE_MIN if seen.facts.simulated else HOST_LOSS_RATE
    if rate < least or alone < SINGLY_MIN * every_one or often < RANDOM_WINDOWS:
        return None
    # Flows that meet in front of a receiver fill its queue.
    contrast = SINGLY_CONTRAST * (2 if place.side == "receive" else 1)
    if rate < contrast * other_rate or _queued(paths, slice(0, len(paths.lost)), mine, lost > 0):
        return None
    text = _evidence_of_losses(place, lost[mine], sent[mine], (rate, other_rate), False)
    windows = seen.windows
    return Finding(
        "network_loss",
        place,
        *windows.span(0, windows.count - 1),
        shared(confidence_of(rate / LOSS_RATE_MIN), place),
        True,
        f"{text} It lost packets in {often} of {windows.text_of(windows.count)}, "
        f"{percent(alone / every_one, 0)} of them singly.",
        LOSS_QUERY,
        LOSS_ADVICE[place.kind],
        weight=float(lost[mine].sum()),
        more={"downs": 0, "rare": True},
    )


def lossy_network(seen: Seen) -> Finding | None:
    """Losses that a real job has all the time, wherever they are: no network should lose 1 %.

    Simulated queues may be so small that they overflow in each iteration.
    """
    paths = seen.paths
    if paths is None or seen.facts.simulated or seen.windows.count < RANDOM_WINDOWS:
        return None
    lost, sent = paths.lost.sum(axis=0), np.maximum(paths.sent, paths.lost).sum(axis=0)
    found = _most_lossy(seen, paths, lost, sent) or _lossy_somewhere(lost, sent)
    if lost.sum() < LOSSES_MIN or found is None:
        return None
    place, rate, _, mine = found
    each = paths.lost[:, mine].sum(axis=1), np.maximum(paths.sent, paths.lost)[:, mine].sum(axis=1)
    if rate < HOST_LOSS_RATE or np.median(_rate(*each)) < HOST_LOSS_RATE:
        return None
    alone = float(paths.alone[:, mine].sum() / lost[mine].sum())
    kind = "congestion" if alone < BURST_SHARE_ALL * (1 - min(rate, 1.0)) ** 2 else "network_loss"
    windows = seen.windows
    return Finding(
        kind,
        place,
        *windows.span(0, windows.count - 1),
        shared(0.8, place),
        True,
        f"{place.name} lost {lost[mine].sum():.0f} of about {sent[mine].sum():.0f} segments "
        f"({percent(rate, 2)}), in at least half of the job's time, {percent(alone, 0)} of them "
        "singly. Full queues and sockets lose several in a row, bad cables single ones.",
        LOSS_QUERY,
        f"{LOSS_ADVICE.get(place.kind, LOSS_ADVICE['link'])} weft doctor --peer measures the loss "
        "between two hosts.",
        weight=float(lost[mine].sum()),
        more={"downs": 0},
    )


def _is_clear(paths: Paths, at: int, mine: Array, rates: tuple[float, float], place: Place) -> bool:
    """Whether these paths lose clearly more than others. rates: theirs, and that of the others."""
    rate, other_rate = rates
    # Where all flows begin at once, or two of them meet in front of a receiver, queues overflow.
    meets = place.kind == "nic" and place.side == "receive"
    if (at < BEGUN or meets) and other_rate > QUIET_RATE:
        return False
    if rate < min(CLEAR_RATE, CLEAR_CONTRAST * other_rate) or other_rate >= RIVAL_SHARE * rate:
        return False
    lately = slice(max(at + 1 - LASTING, 0), at + 1)
    lost = max(float(paths.lost[lately][:, mine].sum()), 1.0)
    alone = float(paths.alone[lately][:, mine].sum()) / lost
    if other_rate >= CALM_RATE and alone < CLEARLY_SINGLE * (1 - min(rate, 1.0)) ** 2:
        return False
    # Where queues overflow, one of them does so more than others, for a while.
    span = slice(max(at + 1 - QUIET_WINDOWS, 0), at + 1)
    always = _lossy_windows(paths, span, mine) == QUIET_WINDOWS and other_rate < CALM_RATE
    return always or (rate >= CLEAR_RATE and other_rate < CALM_RATE) or _lasts(paths, at, mine)


def _lasts(paths: Paths, at: int, mine: Array) -> bool:
    """Whether these paths have lost packets in all but one of the last LASTING windows."""
    return _lossy_windows(paths, slice(max(at + 1 - LASTING, 0), at + 1), mine) >= LASTING - 1


def _may_be_a_socket(seen: Seen, place: Place) -> bool:
    """Whether a host's full socket may have lost the packets, rather than the place.

    A host whose socket overflows also loses many packets at once, but seldom. Only losses in every
    window tell a lossy NIC from it. Simulated hosts have no sockets.
    """
    return not seen.facts.simulated and place.kind != "link"


def _evidence_of_losses(
    place: Place, lost: Array, sent: Array, rates: tuple[float, float], queued: bool | None
) -> str:
    """Text about the losses of `place`. rates: loss rates of its paths and of all others."""
    rate, other_rate = rates
    others = "" if place.kind == "network" else f" all other paths {percent(other_rate, 2)},"
    return (
        f"{place.name} lost {lost.sum():.0f} of about {sent.sum():.0f} segments "
        f"({percent(rate, 2)}),{others} {_QUEUES[queued]}"
    )


def _more_of_losses(at_random: bool, downs: int) -> str:
    text = ""
    if at_random:
        text += f" It has lost packets singly in each of the last {RANDOM_WINDOWS} windows."
    if downs:
        times = "Once" if downs == 1 else f"{downs} times"
        text += f" {times} a path through it became unusable."
    return text


def _most_lossy(
    seen: Seen, paths: Paths, lost: Array, sent: Array
) -> tuple[Place, float, float, Array] | None:
    """The place with the most unlikely number of losses: log-likelihood ratio of two rates."""
    candidates = seen.places_of_paths
    if not candidates.every:
        return None
    mine = candidates.summed(lost), candidates.summed(sent)
    rest = lost.sum() - mine[0], sent.sum() - mine[1]
    rate, other = _rate(*mine), _rate(*rest)
    lossy = (rate >= LOSS_RATE_MIN) & (mine[0] >= LOSSES_MIN) & (rate >= LOSS_CONTRAST * other)
    if not lossy.any():
        return None
    score = np.where(lossy, log_likelihood(*mine) + log_likelihood(*rest), -np.inf)
    tied = np.flatnonzero(score > score.max() - 2.0).tolist()
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
    rival = np.where(alike & (apart[0] >= LOSSES_MIN), _rate(*apart), 0.0).max(initial=0.0)
    # Where another place loses about as much, as at the ranks of a tree where two others meet, the
    # rate of the rest says little.
    rest_rate = float(rival) if rival >= RIVAL_SHARE * rate[at] else float(other[at])
    return place, float(rate[at]), rest_rate, mask


def _overflows(paths: Paths, span: slice, mine: Array, rate: float, everywhere: bool) -> bool:
    """Whether these paths lose packets as a full queue or socket does: several in a row.

    If each packet were lost by itself, the neighbours of (1 - rate)^2 of them would arrive.
    """
    lost = float(paths.lost[span][:, mine].sum())
    alone = float(paths.alone[span][:, mine].sum())
    single = max((1 - min(rate, 1.0)) ** 2, SINGLE_MIN)
    share = BURST_SHARE_ALL if everywhere else BURST_SHARE * single
    return lost >= LOSSES_MIN and alone < share * lost


def _overflow(
    seen: Seen,
    paths: Paths,
    span: slice,
    at: int,
    rule: Rule,
    found: tuple[Place, float, float, Array],
) -> Finding:
    """Congestion that fills a queue, or the receiver's socket, until it loses packets."""
    place, rate, other_rate, mine = found
    often = _lossy_windows(paths, span, mine)
    missing, sent = (float(each[mine].sum()) for each in _lost_and_sent(paths, span))
    lost = float(paths.lost[span][:, mine].sum())
    alone = float(paths.alone[span][:, mine].sum() / lost)
    failed = int(paths.downs[span].sum(axis=0)[mine].sum())
    certain = place.kind == "link" and often >= rule.seen and not failed
    certain = certain and rate >= OVERFLOW_RATE and _is_new(paths, span, mine, rate)
    certain = certain and other_rate < RIVAL_SHARE * rate  # queues overflow elsewhere as well
    begin, end = seen.windows.span(span.start, at)
    others = "" if place.kind == "network" else f", all other paths {percent(other_rate, 2)},"
    return Finding(
        "congestion",
        place,
        begin,
        end,
        0.85 if certain else 0.6,
        certain,
        f"{place.name} lost {missing:.0f} of about {sent:.0f} segments "
        f"({percent(rate, 2)}){others} and only {percent(alone, 0)} of them singly: a full queue, "
        "or a full socket of a receiver, loses several in a row, and a bad cable does not.",
        LOSS_QUERY,
        "Let switches mark ECN, or give them larger queues; raise net.core.rmem_max if "
        "host_drops grows (weft counters); spread the flows (weft plan).",
        weight=lost,
        more={"downs": failed},
    )


def _is_new(paths: Paths, span: slice, mine: Array, rate: float) -> bool:
    """Whether these paths lost clearly less before; a job may always fill a queue by itself."""
    if span.start < PAST_MIN:
        return False
    lost = paths.lost[: span.start][:, mine].sum()
    sent = max(float(paths.sent[: span.start][:, mine].sum()), float(lost), 1.0)
    return float(lost) / sent < PAST_SHARE * rate


def _lossy_windows(paths: Paths, span: slice, mine: Array) -> int:
    """In how many windows these paths clearly lose more than others; a burst is in one window."""
    lost = paths.lost[span] + paths.timeouts[span]
    sent = np.maximum(paths.sent[span], lost)
    here = lost[:, mine].sum(axis=1), sent[:, mine].sum(axis=1)
    rest = lost.sum(axis=1) - here[0], sent.sum(axis=1) - here[1]
    clear = _rate(*here) >= LOSS_CONTRAST * _rate(*rest)
    return int((clear & (here[0] >= LOSSES_WINDOW_MIN)).sum())


def _at_random(paths: Paths, at: int, mine: Array) -> bool:
    """Whether these paths have long lost packets singly and all the time."""
    span = slice(at + 1 - RANDOM_WINDOWS, at + 1)
    if span.start < 0:
        return False
    lost, sent = paths.lost[span][:, mine].sum(axis=1), paths.sent[span][:, mine].sum(axis=1)
    always = bool((_rate(lost, np.maximum(sent, lost)) >= HOST_LOSS_RATE).all())
    return always and bool(paths.alone[span][:, mine].sum() >= RANDOM_ALONE * lost.sum())


def _loaded(paths: Paths, span: slice, name: str) -> bool:
    """Whether a link carries much more than those beside it, from or to the same switches."""
    crossed, count = paths.crossings, len(paths.names)
    sent, lost = paths.sent[span].sum(axis=0), paths.lost[span].sum(axis=0)
    load = np.bincount(crossed.link, weights=sent[crossed.path], minlength=count)
    losses = np.bincount(crossed.link, weights=lost[crossed.path], minlength=count)
    one = max(
        (at for at in range(count) if undirected(paths.names[at]) == name),
        key=lambda at: losses[at],
    )
    ends = [each.partition(">")[::2] for each in paths.names]
    ratios = []
    for side in (0, 1):
        beside = [
            load[at]
            for at in range(count)
            if ends[at][side] == ends[one][side] and at != one and load[at] > 0
        ]
        if beside:
            ratios.append(load[one] / float(np.median(beside)))
    return bool(ratios) and min(ratios) >= LOADED_RATIO


def _lossy_somewhere(lost: Array, sent: Array) -> tuple[Place, float, float, Array] | None:
    """Losses on paths for which no common place is known; routes might show one.

    Hosts also lose packets, if their sockets' buffers are full, so this is only a suspicion.
    """
    mine = lost > 0
    if _rate(lost.sum(), sent.sum()) < LOSS_RATE_MIN or mine.sum() < 2:
        return None
    place = Place("network", f"{int(mine.sum())} paths of several ranks")
    return place, float(_rate(lost[mine].sum(), sent[mine].sum())), 0.0, mine


def _rate(lost: Array, sent: Array) -> Array:
    return np.asarray(lost / np.maximum(sent, 1.0))


def log_likelihood(lost: Array, sent: Array) -> Array:
    """Log-likelihood of losing `lost` of `sent` segments, if all are equally likely to be lost."""
    total = np.maximum(sent, 1.0)
    rate = np.clip(lost / total, 1e-9, 1 - 1e-9)
    return np.asarray(lost * np.log(rate) + (total - lost) * np.log(1 - rate))


def _queued(paths: Paths, span: slice, mine: Array, lossy: Array) -> bool | None:
    """Whether lossy paths of a place had much longer round-trip times than others, or than before.

    The others are paths of the same pair or, if there are none, paths that cross as many links.
    None: the round-trip times of the lossy paths are not known.
    """
    rtt = _longest_rtt(paths, span)
    seen = np.flatnonzero(mine & lossy & ~np.isnan(rtt))
    if not seen.size:
        return None
    with warnings.catch_warnings():  # medians of paths that were never sampled
        warnings.simplefilter("ignore", RuntimeWarning)
        before = np.nanmedian(paths.rtt_ns[: span.start], axis=0)
    grown = (rtt / before)[seen]
    grown = grown[~np.isnan(grown)]
    if grown.size and float(np.median(grown)) > GROWN_RATIO:
        return True
    _, pair = np.unique(paths.pair, return_inverse=True)
    length = np.array([len(one) for one in paths.links])
    others = np.flatnonzero(~mine & ~np.isnan(rtt))
    usual = _medians_by(pair, others, rtt)[seen]
    usual = np.where(np.isnan(usual), _medians_by(length, others, rtt)[seen], usual)
    ratios = (rtt[seen] / usual)[~np.isnan(usual)]
    return bool(ratios.size) and float(np.median(ratios)) > QUEUED_RATIO


def _medians_by(group: Array, rows: Array, values: Array) -> Array:
    """[path] the median of the values of those of some paths that are of its group; NaN: none."""
    order = rows[np.lexsort((values[rows], group[rows]))]
    found, starts, counts = np.unique(group[order], return_index=True, return_counts=True)
    made = np.full(int(group.max(initial=-1)) + 1, np.nan)
    middle = values[order[starts + (counts - 1) // 2]] + values[order[starts + counts // 2]]
    made[found] = middle / 2
    return made[group]


def _longest_rtt(paths: Paths, span: slice) -> Array:
    """[path]: the longest round-trip time in `span` and the windows after it; NaN: not known.

    A lost packet has no round-trip time, so a full queue shows in packets that come later. The
    next sample after these windows counts as well: real processes write one a second.
    """
    stop = span.stop + QUEUED_LATER
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        rtt: Array = np.nanmax(paths.rtt_ns[span.start : stop], axis=0)
    later = paths.rtt_ns[stop:]
    if len(later):
        next_one = later[(~np.isnan(later)).argmax(axis=0), np.arange(later.shape[1])]
        rtt = np.fmax(rtt, next_one)
    return rtt
