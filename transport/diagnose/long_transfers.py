"""Finds a NIC whose messages take longer than messages as long between all other ranks.

A NIC that was slow from the beginning has no past, and its queue may be short because its senders
learned its rate. But its messages last as long as they have to, from their first segment on.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from transport.diagnose.distinct import distinct
from transport.diagnose.finding import Finding, Place
from transport.diagnose.links import links_of
from transport.diagnose.seen import Seen
from transport.diagnose.slow import SLOW_ADVICE
from transport.diagnose.windows import medians

Array = NDArray[Any]
Pair = tuple[int, int]

WINDOWS_MIN = 4  # a shorter trace shows only how a job begins
ALIKE_MIN = 50  # operations of one kind and size of message whose median is their usual time
OF_A_PAIR_MIN = 4  # operations of a pair
# A pair is slow if its messages take this many times the usual time, and APART times as long as
# those of every pair that is not slow. Some are always longer, as those between leaf switches.
SLOWER, APART = 1.5, 1.25
CONFIDENCE = 0.95

QUERY = (
    "SELECT process, connection, bytes, median(end_ns - first_ns) AS took_ns, count(*) "
    "FROM stripes WHERE sends AND resent = 0 GROUP BY ALL ORDER BY bytes, took_ns DESC"
)


@dataclass(frozen=True)
class _Cause:
    """A NIC that alone would make the slow pairs slow. side: "": it sends and receives slowly."""

    process: int
    side: str


def long_transfers(seen: Seen) -> Finding | None:
    """A NIC with longer messages than all others, or a pair, if more than one cause is possible."""
    if seen.windows.count < WINDOWS_MIN:
        return None
    times = _times_of_pairs(seen)
    slow = {pair for pair, ratio in times.items() if ratio >= SLOWER}
    others = [ratio for pair, ratio in times.items() if pair not in slow]
    if not slow or 2 * len(slow) > len(times):
        return None
    if min(times[pair] for pair in slow) < APART * max(others):
        return None
    causes = list(_causes(slow, set(times)))
    if not causes:
        return None
    facts, cause = seen.facts, causes[0]
    names = tuple(f"NIC of {facts.name(one.process)}" for one in causes) + _links(seen, slow)
    if len(names) == 1:
        rank = facts.processes[cause.process].rank
        place = Place("nic", names[0], (rank,), side=cause.side)
    elif len(slow) == 1:
        source, target = next(iter(slow))
        ranks = tuple(facts.processes[one].rank for one in (source, target))
        name = f"{facts.name(source)} to {facts.name(target)}"
        place = Place("pair", name, ranks, candidates=names)
    else:
        return None
    ratio = min(times[pair] for pair in slow)
    whose = f"of {place.name}" if place.kind == "nic" else f"from {place.name}"
    return Finding(
        "communication_slow",
        place,
        *seen.windows.span(0, seen.windows.count - 1),
        CONFIDENCE,
        # A busy host also takes long, and a real one may be.
        facts.simulated,
        f"Messages {whose} take {ratio:.1f} times as long, or longer, as is usual for their size, "
        f"from the first segment to the last acknowledgment (pairs of ranks: {len(slow)}); those "
        f"of the other {len(others)} pairs at most {max(others):.1f} times.",
        QUERY,
        SLOW_ADVICE[place.kind],
        weight=ratio,
        more={"times": round(ratio, 2)},
    )


def _times_of_pairs(seen: Seen) -> dict[Pair, float]:
    """How many times the usual time messages take, by sender and receiver, in the second half."""
    facts = seen.facts
    edges, calls = facts.edges, facts.calls
    if "resent" not in edges:  # summaries of hosts do not tell which messages were sent again
        return {}
    kind_of = np.zeros(facts.instances, np.int64)
    kind_of[calls["instance"]] = facts.kinds
    half_ns = np.median(edges["end_ns"]) if len(edges["end_ns"]) else 0
    used = (edges["resent"] == 0) & (edges["latency_ns"] > 0) & (edges["end_ns"] >= half_ns)
    size = edges["bytes"][used] // np.maximum(edges["messages"][used], 1)
    group = distinct(kind_of[edges["instance"]][used], size)[1]
    count = np.bincount(group)
    took_ns = edges["latency_ns"][used].astype(np.float64)
    ratio = took_ns / medians(group, took_ns)
    known = count[group] >= ALIKE_MIN
    pairs, pair = distinct(*(edges[end][used][known] for end in ("source", "target")))
    ratio = ratio[known]
    return {
        (int(source), int(target)): float(np.median(ratio[pair == at]))
        for at, (source, target) in enumerate(pairs.T.tolist())
        if np.count_nonzero(pair == at) >= OF_A_PAIR_MIN
    }


def _causes(slow: set[Pair], pairs: set[Pair]) -> Iterator[_Cause]:
    """The NICs whose pairs, of one side or of both, are just the slow ones."""
    for one in sorted({end for pair in slow for end in pair}):
        sent = {pair for pair in pairs if pair[0] == one}
        received = {pair for pair in pairs if pair[1] == one}
        if slow == sent and sent:
            yield _Cause(one, "send")
        elif slow == received and received:
            yield _Cause(one, "receive")
        elif slow == sent | received and sent and received:
            yield _Cause(one, "")


def _links(seen: Seen, slow: set[Pair]) -> tuple[str, ...]:
    """The links that just the slow pairs cross."""
    paths = seen.paths
    if paths is None or not paths.names:
        return ()
    names = []
    for link in links_of(paths):
        crossed = np.unique(np.concatenate([way.paths for way in link.ways]))
        ends = {(int(a), int(b)) for a, b in paths.ends[crossed][:, :2].tolist()}
        if ends == slow:
            names.append(link.name)
    return tuple(names)
