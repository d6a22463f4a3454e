"""Finds ranks that take longer than others between operations."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from transport.diagnose.finding import Finding, Place
from transport.diagnose.seen import Rule, Seen, confidence_of
from transport.ground.units import percent, time_text

Array = NDArray[Any]

LATE_SHARE = 0.06  # a rank that comes later than this share of an iteration is late
OFTEN_SHARE = 0.5  # other ranks are stragglers, too, if late in this part of the windows
NAMED_MAX = 4

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


def with_all(seen: Seen, one: Finding) -> Finding:
    """The finding; a straggler's with all ranks that were late in half of its windows, and with the
    time that the latest of them lost in these.

    In a pipeline, ranks behind a straggler are late as well, so only the latest one is named there.
    """
    if one.kind != "non_communication_slow" or one.place.kind != "rank":
        return one
    first, last = seen.windows.of(np.array([one.from_ns, one.to_ns - 1]))
    own = seen.lateness.own[first : last + 1]
    late = own > LATE_SHARE * seen.windows.usual_ns
    names = [seen.facts.name(at) for at in range(len(seen.facts.processes))]
    mine = names.index(one.place.name)
    often = (late.sum(axis=0) >= max(OFTEN_SHARE * len(own), 2)) & one.certain
    often &= bool((seen.facts.calls["kind"] == "collective").all())
    others = [at for at in np.flatnonzero(often).tolist() if at != mine]
    lost_ns = int(np.where(late, own, 0.0)[:, [mine, *others]].max(axis=1).sum())
    if not others:
        return replace(one, lost_ns=lost_ns)
    every = np.sort([mine, *others])
    place = Place(
        "ranks",
        seen.facts.named(every),
        tuple(seen.facts.processes[at].rank for at in every.tolist()),
    )
    means_ns = {at: float(own[:, at].mean()) / seen.windows.iterations for at in others}
    worst = sorted(others, key=lambda at: -means_ns[at])[:NAMED_MAX]
    text = ", ".join(f"{names[at]} {time_text(means_ns[at])}" for at in worst)
    more = f" and {len(others) - len(worst)} more" if len(others) > len(worst) else ""
    evidence = f"{one.evidence} Late as well: {text}{more}."
    return replace(one, place=place, evidence=evidence, lost_ns=lost_ns)
