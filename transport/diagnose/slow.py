"""Finds what slows a job that makes progress: a straggler, a NIC, a link, a lossy path."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from transport.diagnose import places
from transport.diagnose.alone import LASTING, RECENT
from transport.diagnose.facts import Facts
from transport.diagnose.finding import Finding, Place
from transport.diagnose.measures import HISTORY_MIN, SLOW, SLOW_ALONE, Delays, Lateness, rates_of
from transport.diagnose.paths import Paths
from transport.diagnose.windows import Windows
from transport.ground.units import percent, rate_text, time_text
from transport.plan.routes import undirected

Array = NDArray[Any]

LATE_SHARE = 0.06  # a rank that comes later than this share of an iteration is late
LOST_SHARE = 0.03  # a slow place must cost the job at least this share of an iteration
LOSSES_MIN = 8  # a place is lossy if it lost at least this many segments
LOSSES_WINDOW_MIN = 4  # a time window with fewer lost segments does not count as a lossy one
LOSS_RATE_MIN = 1e-3
HOST_LOSS_RATE = 0.01  # overflowing sockets lose a smaller share, except in short bursts
LOSS_CONTRAST = 10.0  # a lossy place's loss rate is at least this many times that of other paths
# Full queues of switches with small buffers also lose many packets in one place. A place is
# certainly lossy at this loss rate, or at this many times the loss rate of all other paths.
CLEAR_RATE, CLEAR_CONTRAST = 0.05, 100.0
# Cables and optics lose packets singly and at all times, full queues several in a row. A place
# loses at random if it lost in each of this many time windows, and at least this share singly.
RANDOM_WINDOWS, RANDOM_ALONE = 6, 0.9
QUEUED_RATIO = 1.5  # queues are full if a path's round-trip time is this many times that of others
# Queues are full if a path's round-trip time is this many times its own earlier one.
GROWN_RATIO = 3.0
LOADED_RATIO = 1.5  # a link with this many times the load of those beside it has full queues
QUEUED_LATER = 2  # a full queue may show only in the RTTs of this many time windows after a loss
# A place is slow if it explains this share of the delays, and this share of its pairs is slow.
SHARE_MIN, PURITY_MIN = 0.25, 0.5
# A NIC or a pair that explains less of the delays is only suspected: links may be shared.
CERTAIN_SHARE = 0.5
FULL_SHARE = 0.9  # a NIC that carries this share of its usual rate while busy is not slow
LINK_SHARE_MIN = 0.02  # links that carry less of each pair's segments are left out

DELAY_QUERY = (
    "SELECT g.process, c.peer, median(g.end_ns - g.posted_ns) AS ns, count(*) FROM messages g "
    "JOIN channels c ON c.process = g.process AND c.id = g.channel_id WHERE g.sends GROUP BY ALL "
    "ORDER BY ns DESC"
)
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
LATE_QUERY = (
    "SELECT c.process, c.comm, o.function, o.sequence, min(g.posted_ns) AS first_message_ns "
    "FROM messages g JOIN channels c ON c.process = g.process AND c.id = g.channel_id "
    "JOIN operations o ON o.process = c.process AND o.id = c.operation WHERE g.sends GROUP BY ALL "
    "ORDER BY c.comm, o.sequence, first_message_ns"
)


# What a finding of losses says if queues were not full, and if that is not known.
_QUEUES = {
    False: "while round-trip times stayed usual: the queues were not full.",
    None: "and there is no round-trip time that would tell whether queues were full.",
}


@dataclass(frozen=True)
class Rule:
    """A fault must be seen in at least `seen` of the last `of` time windows."""

    seen: int = 2
    of: int = 3


@dataclass(frozen=True, eq=False)
class Seen:
    """The input of the rules: the facts and measures of all windows."""

    facts: Facts
    windows: Windows
    lateness: Lateness
    delays: Delays
    paths: Paths | None

    @cached_property
    def places_of_paths(self) -> places.Candidates:
        """Candidates whose observations are paths: NICs, links and pairs."""
        assert self.paths is not None
        source, target = self.paths.ends[:, 0], self.paths.ends[:, 1]
        crossed = self.paths.crossings
        every = places.nics(self.facts, source, target)
        every += places.links(crossed, crossed.path, np.ones(len(crossed.path)), self.paths.names)
        return places.Candidates(every + places.pairs(self.facts, source, target))

    def recent(self, at: int, rule: Rule) -> slice:
        return slice(max(at + 1 - rule.of, 0), at + 1)


def straggler(seen: Seen, at: int, rule: Rule) -> Finding | None:
    """A rank that takes longer than the others between operations."""
    span = seen.recent(at, rule)
    own = seen.lateness.own[span]
    usual_ns = seen.windows.usual_ns
    limit_ns = LATE_SHARE * usual_ns
    often = (own > limit_ns).sum(axis=0)
    if own.shape[0] < rule.seen or not (often >= rule.seen).any():
        return None
    mean = own.mean(axis=0)
    one = int(np.where(often >= rule.seen, mean, -np.inf).argmax())
    lost_ns, share = float(mean[one]), float(mean[one]) / usual_ns
    in_gpu = float(seen.lateness.gpu[span, one].sum()) > 0.5 * float(
        np.maximum(own[:, one], 0).sum()
    )
    begin, end = seen.windows.span(span.start, at)
    what = (
        "it calls operations in time, and its GPU comes late to them"
        if in_gpu
        else "it calls operations late"
    )
    advice = (
        "Check clocks, power and errors of its GPU (nvidia-smi -q), and its share of the work."
        if in_gpu
        else "Look at its host: py-spy dump, the data loader, and other load on its cores."
    )
    rank = seen.facts.processes[one].rank
    return Finding(
        "non_communication_slow",
        Place("rank", seen.facts.name(one), (rank,)),
        begin,
        end,
        _confidence(lost_ns / limit_ns),
        True,
        f"{seen.facts.name(one)} took {time_text(lost_ns / seen.windows.iterations)} an "
        f"iteration longer between operations than other ranks ({percent(share, 0)} of it), in "
        f"{int(often[one])} of {seen.windows.text_of(own.shape[0])}; {what}.",
        LATE_QUERY,
        advice,
        lost_ns=int(own[:, one].sum()),
        weight=lost_ns,
        more={"gpu": in_gpu},
    )


def with_lost(seen: Seen, one: Finding) -> Finding:
    """The finding; a straggler's gets the time that the rank lost in all windows of the finding."""
    if one.kind != "non_communication_slow":
        return one
    names = [seen.facts.name(at) for at in range(len(seen.facts.processes))]
    first, last = seen.windows.of(np.array([one.from_ns, one.to_ns - 1]))
    own = seen.lateness.own[first : last + 1, names.index(one.place.name)]
    return replace(one, lost_ns=int(own[own > LATE_SHARE * seen.windows.usual_ns].sum()))


def _confidence(times_the_limit: float) -> float:
    """Confidence: 0.7 at the limit, up to 0.99 far above it."""
    return float(round(min(0.99, 1 - 0.3 / max(times_the_limit, 1.0) ** 1.5), 2))


def slow_place(seen: Seen, at: int, rule: Rule) -> Finding | None:
    """A NIC or a link whose messages take longer than others."""
    span = seen.recent(at, rule)
    slow = seen.delays.slow[span]
    if slow.shape[0] < rule.seen or not slow.shape[1]:
        return None
    bad = slow.sum(axis=0) >= rule.seen
    lost_ns = float(np.median(seen.delays.lost_ns[span][:, bad].sum(axis=1)))
    if lost_ns <= LOST_SHARE * seen.windows.usual_ns:
        return None
    excess = np.median(seen.delays.excess[span], axis=0)
    # The excess of pairs that are not slow is cut to the limit above which they would be slow.
    limit = SLOW if _has_past(at) else SLOW_ALONE
    excess = np.where(bad, np.maximum(excess, SLOW), np.minimum(excess, limit))
    source, target = seen.delays.pairs[:, 0], seen.delays.pairs[:, 1]
    candidates = places.nics(seen.facts, source, target) + places.pairs(seen.facts, source, target)
    if seen.paths is not None:
        candidates += _links_of_pairs(seen.paths, seen.delays.pairs, span)
    found = places.explain(places.Candidates(candidates), excess, bad)
    if found is None or found.share < SHARE_MIN or found.purity < PURITY_MIN:
        return None
    begin, end = seen.windows.span(span.start, at)
    times = float(np.exp(excess[bad].max()))
    place, text = _told(seen, found, excess, bad)
    kind = "congestion" if found.place.kind == "link" else "communication_slow"
    advice = (
        "Check speed, errors and PFC counters of this NIC and its port (ethtool -S), and its PCIe "
        "link."
        if kind == "communication_slow"
        else "Spread the flows over more links (weft plan), or move the other job."
    )
    confidence = round(min(_confidence(times / float(np.exp(SLOW))), 0.4 + 0.6 * found.share), 2)
    doubt = _doubt(seen, span, found, bad)
    certain = found.place.kind == "link" or (found.share >= CERTAIN_SHARE and not doubt)
    return Finding(
        kind,
        place,
        begin,
        end,
        confidence,
        certain,
        text + doubt,
        DELAY_QUERY,
        advice,
        weight=float(excess[bad].sum()),
        more={"share": found.share},
    )


def _told(seen: Seen, found: places.Explanation, excess: Array, bad: Array) -> tuple[Place, str]:
    """The place that explains the delays, and the evidence as text.

    If a rank's trace is incomplete, its NIC seems slow in one direction only: no side is named.
    """
    worst = seen.delays.pairs[int(np.where(bad, excess, -1).argmax())]
    shown = f"{seen.facts.name(int(worst[0]))} to {seen.facts.name(int(worst[1]))}"
    place = found.place
    lacking = [
        one.rank for one in seen.facts.processes if one.rank in place.ranks and not one.whole
    ]
    text = (
        f"Messages of {int(bad.sum())} of {len(bad)} pairs of ranks took longer than usual for "
        f"their operation, the most {float(np.exp(excess[bad].max())):.1f} times ({shown}). "
        f"{place.name} explains {percent(found.share, 0)} of it"
    )
    if place.side and not lacking:
        text += f", as the side that {place.side}s"
    text += f"; of its own pairs {percent(found.purity, 0)} are slow."
    if place.side and lacking:
        place = replace(place, side="")
        text += f" The trace of rank {lacking[0]} is incomplete, so the side is not known."
    return place, text


def _has_past(at: int) -> bool:
    """Whether pairs of ranks are compared with their own past in window `at`, or only with other
    pairs."""
    return at + 1 - RECENT >= HISTORY_MIN


def _doubt(seen: Seen, span: slice, found: places.Explanation, bad: Array) -> str:
    """Text about what speaks against a slow NIC or pair; empty: nothing.

    The flows of a job that meet at a NIC slow each other now and then, as when stages of a
    pipeline drift. A slow NIC slows all its messages, and carries less while it is busy.
    """
    if found.place.kind == "link":
        return ""
    if found.place.candidates and not _has_past(span.stop - 1):
        return " In so few iterations, this place cannot be told from others."
    mine = found.at
    slow = seen.delays.slow[:, mine]
    alone = int(bad[mine].sum()) == 1 and (len(mine) > 1 or found.place.kind == "pair")
    lately = slow[max(span.stop - LASTING, 0) : span.stop].sum(axis=0).max()
    if alone and lately < LASTING - 1:
        return " Other messages of these NICs take no longer, so this may be temporary."
    rates = rates_of(seen.facts, seen.windows, *seen.delays.pairs[mine].T)
    before = rates[: span.start][~slow[: span.start].any(axis=1)]
    before = before[~np.isnan(before)]
    now = float(np.nanmedian(rates[span]))
    if len(before) >= HISTORY_MIN and now >= FULL_SHARE * float(np.median(before)):
        return (
            f" While it is busy it carries {rate_text(now * 1e9)}, as much as before: messages "
            "of this job meet there."
        )
    return ""


def _links_of_pairs(paths: Paths, pairs: Array, span: slice) -> list[places.Candidate]:
    """Candidates for links, observed by pairs. Weight: the part of a pair's segments on a link."""
    if not len(pairs):
        return []
    sent = paths.sent[span].sum(axis=0)
    wanted = pairs[:, 0] << 32 | pairs[:, 1]
    column = np.minimum(np.searchsorted(wanted, paths.pair), len(wanted) - 1)
    known = wanted[column] == paths.pair
    total = np.bincount(column[known], weights=sent[known], minlength=len(pairs))
    share = sent / np.maximum(total[column], 1)
    rows = known[paths.crossings.path]
    crossed = paths.crossings.only(rows)
    return places.links(
        crossed, column[crossed.path], share[crossed.path], paths.names, LINK_SHARE_MIN
    )


def lossy_place(seen: Seen, at: int, rule: Rule) -> Finding | None:
    """A place whose paths lose packets although their queues are short."""
    paths = seen.paths
    if paths is None or not len(paths.ends):
        return None
    span = seen.recent(at, rule)
    downs = paths.downs[span].sum(axis=0)
    lost = (paths.lost[span] + paths.timeouts[span]).sum(axis=0)
    sent = np.maximum(paths.sent[span].sum(axis=0), lost)
    if lost.sum() < LOSSES_MIN:
        return None
    found = _most_lossy(seen, paths, lost, sent) or _lossy_somewhere(lost, sent)
    if found is None:
        return None
    place, rate, other_rate, mine = found
    queued = _queued(paths, span, mine, lost > 0)
    # Busy hosts acknowledge late, so that other paths seem to lose packets, too. Simulated hosts
    # are never busy, so a lossy place must differ clearly from other paths.
    at_random = queued is False and not seen.facts.simulated and _at_random(paths, at, mine)
    if queued or (place.kind == "link" and not at_random and _loaded(paths, span, place.name)):
        return None
    often = _lossy_windows(paths, span, mine)
    begin, end = seen.windows.span(span.start, at)
    down = float(downs[mine].sum())
    in_every_window = rate >= HOST_LOSS_RATE and often == span.stop - span.start
    clear = rate >= min(CLEAR_RATE, CLEAR_CONTRAST * other_rate) or down >= LOSSES_MIN
    clear = clear or at_random
    # If routes are known, losses of a single pair point to no link or NIC.
    has_place = place.kind != "network" and not (place.kind == "pair" and paths.names)
    certain = has_place and clear and (queued is False or down >= LOSSES_MIN)
    # Full queues also lose packets for a moment, above all when a job starts, so losses must
    # repeat; after the start, paths that became unusable are evidence enough.
    if often < rule.seen and (down < LOSSES_MIN or at < rule.of - 1):
        return None
    text = _evidence_of_losses(place, lost[mine], sent[mine], (rate, other_rate), queued)
    return Finding(
        "network_loss",
        place,
        begin,
        end,
        _confidence(min(rate / LOSS_RATE_MIN, float(lost[mine].sum()) / LOSSES_MIN)),
        certain and (in_every_window or not _may_be_a_socket(seen, place)),
        text + _more_of_losses(at_random, int(down)),
        LOSS_QUERY,
        LOSS_ADVICE.get(place.kind, LOSS_ADVICE["link"]),
        weight=float(lost[mine].sum()),
        more={"downs": int(down)},
    )


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
    score = np.where(lossy, _log_likelihood(*mine) + _log_likelihood(*rest), -np.inf)
    tied = np.flatnonzero(score > score.max() - 2.0).tolist()
    at = min(tied, key=lambda each: (candidates.every[each].rank, -score[each]))
    one = candidates.every[at].place
    names = dict.fromkeys(candidates.every[each].place.name for each in tied)
    names.pop(one.name)
    place = Place(one.kind, one.name, one.ranks, one.side, tuple(names))
    mask = np.zeros(len(lost), bool)
    mask[candidates.every[at].at] = True
    return place, float(rate[at]), float(other[at]), mask


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


def _log_likelihood(lost: Array, sent: Array) -> Array:
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
    lengths = np.array([len(one) for one in paths.links])
    others = ~mine & ~np.isnan(rtt)
    ratios = []
    for at in seen.tolist():
        alike = others & (paths.pair == paths.pair[at])
        if not alike.any():
            alike = others & (lengths == lengths[at])
        if alike.any():
            ratios.append(float(rtt[at] / np.median(rtt[alike])))
    return bool(ratios) and float(np.median(ratios)) > QUEUED_RATIO


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
