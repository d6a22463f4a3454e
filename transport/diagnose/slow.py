"""Finds NICs and links whose messages take longer than others."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from transport.diagnose import places
from transport.diagnose.alone import LASTING, RECENT
from transport.diagnose.chance import CHANCE_MAX, at_least, deviation_of
from transport.diagnose.finding import LOST, Finding, Place
from transport.diagnose.measures import HISTORY_MIN, SLOW, SLOW_ALONE, rates_of
from transport.diagnose.paths import GROWN_RATIO, Paths
from transport.diagnose.seen import Rule, Seen, confidence_of
from transport.ground.units import percent, rate_text

Array = NDArray[Any]

# A link costs nothing if iterations are longer than the quickest quarter before by less than this,
# or by less than so many usual deviations.
COST_MIN, VARIES, QUICKER = 0.02, 2.0, 0.25
# Slow messages of a program without NCCL make its iterations longer by this part of what they lose.
SEEN_PART = 0.5
LOST_SHARE = 0.03  # a slow place must cost the job at least this share of an iteration
# A place is slow if it explains this share of the delays, and this share of its pairs is slow.
SHARE_MIN, PURITY_MIN = 0.25, 0.5
# A place that explains less of the delays is only suspected. Messages that cross a link also use
# others; those of a pair may meet others on links that have no name here.
CERTAIN_SHARES = {"nic": 0.65, "link": 0.35, "pair": 2.0}
CLEAR_SHARE = 0.5  # a link that explains less must be slow in five of six windows
FULL_SHARE = 0.9  # a NIC that carries this share of its usual rate while busy is not slow
LINK_SHARE_MIN = 0.02  # links that carry less of each pair's segments are left out
LOST_ALONE = 0.01  # a single slow pair that lost this share may be slow by that alone
SAME_RATIO = 2.0  # a path's round-trip time has not grown by a queue if it grew by less than this

# What to do at a place that is slow, by its kind.
SLOW_ADVICE = {
    "nic": "Check speed, errors and PFC counters of this NIC and its port (ethtool -S), and its "
    "PCIe link.",
    "pair": "Check speed, errors and PFC counters of both NICs and their ports (ethtool -S), and "
    "their PCIe links; --routes tells which links lie between them.",
    "link": "Spread the flows over more links (weft plan), or move the other job.",
}
DELAY_QUERY = (
    "SELECT g.process, coalesce(CAST(c.peer AS VARCHAR), n.peer) AS peer, "
    "median(g.end_ns - g.posted_ns) AS ns, count(*) FROM messages g "
    "LEFT JOIN channels c ON c.process = g.process AND c.id = g.channel_id "
    "LEFT JOIN connections n ON n.process = g.process AND n.id = g.connection "
    "WHERE g.sends GROUP BY ALL ORDER BY ns DESC"
)


def slow_place(seen: Seen, at: int, rule: Rule) -> Finding | None:
    """A NIC or a link whose messages take longer than others."""
    span = seen.recent(at, rule)
    # Nothing is known of pairs that send in fewer windows, such as those of a second ring.
    now = seen.delays.sent[span].sum(axis=0) >= rule.seen
    seen = replace(seen, delays=seen.delays.of_pairs(now))
    slow = seen.delays.slow[span]
    if slow.shape[0] < rule.seen or not slow.shape[1]:
        return None
    bad = slow.sum(axis=0) >= rule.seen
    lost_ns = float(np.median(seen.delays.lost_ns[span][:, bad].sum(axis=1)))
    if lost_ns <= LOST_SHARE * seen.windows.usual_ns:
        return None
    sent = seen.delays.sent[span]
    excess = np.nanmedian(np.where(sent, seen.delays.excess[span], np.nan), axis=0)
    # The excess of pairs that are not slow is cut to the limit above which they would be slow.
    limit = SLOW if _has_past(at) else SLOW_ALONE
    excess = np.where(bad, np.maximum(excess, SLOW), np.minimum(excess, limit))
    source, target = seen.delays.pairs[:, 0], seen.delays.pairs[:, 1]
    candidates = places.nics(seen.facts, source, target) + places.pairs(seen.facts, source, target)
    if seen.paths is not None:
        candidates += _links_of_pairs(seen.paths, seen.delays.pairs, span)
    side = _waiting_side(seen, span, bad)
    found = places.explain(places.Candidates(candidates), excess, bad, side)
    if found is None or found.share < SHARE_MIN or found.purity < PURITY_MIN:
        return None
    begin, end = seen.windows.span(span.start, at)
    times = float(np.exp(excess[bad].max()))
    place, text = _told(seen, found, excess, bad)
    kind = "congestion" if found.place.kind == "link" else "communication_slow"
    confidence = min(confidence_of(times / float(np.exp(SLOW))), 0.4 + 0.6 * found.share)
    lost_ns, cheap = _cost(seen, span, bad, lost_ns)
    doubt = _doubt(seen, span, found, bad) or cheap
    certain = not doubt and found.share >= CERTAIN_SHARES[found.place.kind]
    return Finding(
        kind,
        place,
        begin,
        end,
        round(confidence, 2),
        certain,
        text + doubt,
        DELAY_QUERY,
        SLOW_ADVICE[place.kind],
        weight=float(excess[bad].sum()),
        indirect=True,
        more={"share": found.share, LOST: lost_ns / seen.windows.usual_ns},
    )


def _waiting_side(seen: Seen, span: slice, bad: Array) -> str:
    """Where the messages of slow pairs wait: "send", in front of the sender's link, "receive", in
    queues of the network, or "" if that is not known.

    Simulated round-trip times begin when a packet leaves its host, so they grow only if queues of
    the network do. Those of real processes have the sender's own queue in them.
    """
    paths = seen.paths
    if paths is None or not seen.facts.simulated or not bad.any():
        return ""
    pairs = seen.delays.pairs[bad]
    mine = np.isin(paths.pair, pairs[:, 0] << 32 | pairs[:, 1])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # paths that were never sampled
        now = np.nanmedian(paths.rtt_ns[span][:, mine], axis=0)
        calm = np.flatnonzero(~seen.delays.slow[: span.start].any(axis=1))
        usual = np.nanmedian(paths.rtt_ns[calm][:, mine], axis=0)
        grown = float(np.nanmedian(now / usual)) if now.size else np.nan
    if np.isnan(grown):
        return ""
    if _lost_share(seen, span, pairs) >= LOST_ALONE:
        return "receive"  # packets that wait at their sender are not lost
    return "receive" if grown >= GROWN_RATIO else "send" if grown <= SAME_RATIO else ""


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
    mine = found.at
    single = int(bad[mine].sum()) == 1
    if found.place.kind == "link":
        return _doubt_of_a_link(seen, span, found)
    lost = _lost_share(seen, span, seen.delays.pairs[mine][bad[mine]])
    if single and lost >= LOST_ALONE:
        return f" They lost {percent(lost)} of their segments, which delays them as well."
    if chance := _by_chance(seen, span, found):
        return chance
    if found.place.candidates and not _has_past(span.stop - 1):
        return " In so few iterations, this place cannot be told from others."
    slow = seen.delays.slow[:, mine]
    alone = single and (len(mine) > 1 or found.place.kind == "pair")
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


def _doubt_of_a_link(seen: Seen, span: slice, found: places.Explanation) -> str:
    if costs_nothing(seen, span):
        return " Iterations take no longer than before."
    # Flows of the job itself meet on a link for a few iterations; another job lasts.
    lately = slice(max(span.stop - LASTING, 0), span.stop)
    often = int(seen.delays.slow[lately, found.at].any(axis=1).sum())
    if found.share < CLEAR_SHARE and often < LASTING - 1:
        return " It explains less than half of the delays, and only for a few iterations."
    return ""


def _cost(seen: Seen, span: slice, bad: Array, lost_ns: float) -> tuple[float, str]:
    """What slow messages cost in a window, in ns, and text about it if it is too little.

    Ranks of a program without NCCL wait for each message, so that it costs no more than by how much
    windows are longer than those before in which the same pairs were not slow. bad: [pair] which
    are slow. lost_ns: by how much they take longer.
    """
    lengths = np.diff(seen.windows.starts_ns).astype(np.float64)
    slow = np.asarray(seen.delays.slow[1 : span.start, bad].any(axis=1))
    before, now = lengths[1 : span.start][~slow], lengths[span]
    if seen.facts.has_operations or len(before) < HISTORY_MIN or not len(now):
        return lost_ns, ""
    longer_ns = max(float(np.median(now) - np.median(before)), 0.0)
    text = (
        " Iterations did not become longer by as much." if longer_ns < SEEN_PART * lost_ns else ""
    )
    return min(lost_ns, longer_ns), text


def costs_nothing(seen: Seen, span: slice) -> bool:
    """Whether iterations are no longer than the quicker ones before, beyond what they vary."""
    lengths = np.diff(seen.windows.starts_ns)[1:].astype(np.float64)
    before, now = lengths[: max(span.start - 1, 0)], lengths[max(span.start - 1, 0) : span.stop - 1]
    if len(before) < HISTORY_MIN or not len(now):
        return False
    usual = float(np.quantile(before, QUICKER))
    return float(np.median(now)) < usual + max(COST_MIN * usual, VARIES * deviation_of(before))


def _lost_share(seen: Seen, span: slice, pairs: Array) -> float:
    """The share of the segments of some pairs of ranks that were lost."""
    paths = seen.paths
    if paths is None:
        return 0.0
    mine = np.isin(paths.pair, pairs[:, 0] << 32 | pairs[:, 1])
    lost, sent = float(paths.lost[span][:, mine].sum()), float(paths.sent[span][:, mine].sum())
    return lost / max(sent, lost, 1.0)


def _by_chance(seen: Seen, span: slice, found: places.Explanation) -> str:
    """Text about delays that other pairs of ranks have as often, as where flows meet; empty: they
    are rare elsewhere."""
    sent, slow = seen.delays.sent[: span.stop], seen.delays.slow[: span.stop]
    others = np.ones(sent.shape[1], bool)
    others[found.at] = False
    rate = float(slow[:, others].sum()) / max(float(sent[:, others].sum()), 1.0)
    lately = slice(max(span.stop - LASTING, 0), span.stop)
    times, tries = int(slow[lately, found.at].sum()), int(sent[lately, found.at].sum())
    if sent.shape[1] * at_least(times, tries, rate) <= CHANCE_MAX:
        return ""
    return (
        f" Messages of other pairs take as long in {percent(rate)} of their iterations, so this "
        "may be chance."
    )


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
