"""Finds ranks that take longer than others between operations."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from transport.diagnose.chance import CHANCE_MAX, at_least
from transport.diagnose.facts import Facts
from transport.diagnose.finding import Finding, Place, graded
from transport.diagnose.own_times import own_times_of
from transport.diagnose.peers import beside_peers
from transport.diagnose.seen import Rule, Seen, confidence_of
from transport.ground.units import percent, time_text

Array = NDArray[Any]

LATE_SHARE = 0.06  # a rank that comes later than this share of an iteration is late
# A rank of a pipeline is late if its own time has this part of it, compared with so many windows.
SURE_SHARE, REST_MIN = 0.5, 4
LOST_SHARE = 0.005  # messages that lose this share of their segments delay a rank
COMPARABLE = 0.5  # ranks that come late by this part of a straggler's lateness are as late

LATE_QUERY = (
    "SELECT c.process, c.comm, o.function, o.sequence, min(g.posted_ns) AS first_message_ns "
    "FROM messages g JOIN channels c ON c.process = g.process AND c.id = g.channel_id "
    "JOIN operations o ON o.process = c.process AND o.id = c.operation WHERE g.sends GROUP BY ALL "
    "ORDER BY c.comm, o.sequence, first_message_ns"
)


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
        confidence_of(lost_ns / limit_ns),
        # Two windows of a program that just began may be all it does.
        seen.windows.count > rule.of,
        f"{seen.facts.name(one)} took {time_text(lost_ns / seen.windows.iterations)} an "
        f"iteration longer between operations than other ranks ({percent(share, 0)} of it), in "
        f"{int(often[one])} of {seen.windows.text_of(own.shape[0])}; {what}.",
        LATE_QUERY,
        advice,
        lost_ns=int(own[:, one].sum()),
        weight=lost_ns,
        more={"gpu": in_gpu},
    )


def doubted(seen: Seen, one: Finding) -> Finding:
    """The finding; a straggler's as a suspicion if ranks come late so often by chance.

    Where computations vary, any rank is late in two of three windows now and then.
    """
    if one.kind != "non_communication_slow" or one.place.kind != "rank" or not one.certain:
        return one
    first, last = seen.windows.of(np.array([one.from_ns, one.to_ns - 1]))
    names = [seen.facts.name(at) for at in range(len(seen.facts.processes))]
    mine = names.index(one.place.name)
    if not _own_time_says_so(seen, slice(int(first), int(last) + 1), mine, one.weight):
        text = " Between its calls it did not take longer by itself: it may have waited."
        return replace(one, certain=False, evidence=one.evidence + text)
    own = seen.lateness.own
    limit_ns = max(LATE_SHARE * seen.windows.usual_ns, COMPARABLE * one.weight)
    late = own > limit_ns
    others = np.delete(late, mine, axis=1)
    if not others.size:
        return one
    times, tries = int(late[first : last + 1, mine].sum()), int(last - first + 1)
    chance = own.size * at_least(times, tries, float(others.mean()))
    if chance <= CHANCE_MAX:
        return one
    text = (
        f" Ranks of this job come so late in {percent(float(others.mean()))} of their iterations, "
        "so this may be chance."
    )
    return replace(one, certain=False, evidence=one.evidence + text)


def delayed_by_losses(facts: Facts, one: Finding) -> Finding:
    """The finding; as a suspicion if losses of its own messages may be what delays a straggler.

    The operations of a program without NCCL are its messages, and the next one may wait for the
    acknowledgment of the last.
    """
    if facts.has_operations or facts.simulated or one.kind != "non_communication_slow":
        return one
    mine = [at for at, each in enumerate(facts.processes) if each.rank in one.place.ranks]

    def total(table: dict[str, Array], column: str) -> int:
        rows = np.isin(table["source"], mine)
        return int(table[column][rows].sum())

    lost, sent = total(facts.losses, "segments"), total(facts.sent, "sent")
    if lost < LOST_SHARE * max(sent, 1):
        return one
    text = f" Its messages lost {percent(lost / max(sent, lost))} of their segments, which delays"
    return replace(graded(one, False), evidence=f"{one.evidence}{text} its next ones.")


def _own_time_says_so(seen: Seen, span: slice, mine: int, lost_ns: float) -> bool:
    """Whether the own time of a rank of a pipeline is longer than in other windows, or than that of
    others of its stage, by at least half of what it lost. Of other jobs: True."""
    if (seen.facts.calls["kind"] == "collective").all():
        return True
    own = own_times_of(seen.facts, seen.windows)[:, mine]
    apart = beside_peers(seen.facts, seen.windows)[span, mine]
    rest = np.delete(own, np.arange(*span.indices(len(own))))
    more = [float(np.median(own[span]) - np.median(rest))] if len(rest) >= REST_MIN else []
    if not np.isnan(apart).any():
        more.append(float(np.median(apart)))
    return not more or max(more) >= SURE_SHARE * lost_ns
