"""Finds the links that limit the rate between two nodes: a minimum cut.

The cut is found by the shortest augmenting paths of J. Edmonds and R. Karp, Journal of the ACM
19(2), 1972.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Sequence

Flow = dict[int, dict[int, int]]  # what more each node can send to each other one


def narrowest(links: Sequence[tuple[int, int, int]], source: int, sink: int) -> list[int]:
    """The numbers of links with the least total rate that all ways from source to sink cross.

    links: from, to and rate of each. The list is empty if no way leads to the sink.
    """
    room: Flow = defaultdict(lambda: defaultdict(int))
    for one, other, rate in links:
        room[one][other] += rate
    while True:
        before = _reached(room, source)
        if sink not in before:
            return [
                number
                for number, (one, other, _) in enumerate(links)
                if one in before and other not in before
            ]
        way = [sink]
        while way[-1] != source:
            way.append(before[way[-1]])
        steps = list(zip(way[1:], way[:-1], strict=True))
        more = min(room[one][other] for one, other in steps)
        for one, other in steps:
            room[one][other] -= more
            room[other][one] += more


def _reached(room: Flow, source: int) -> dict[int, int]:
    """The nodes that can get more from the source, each with the node before it."""
    before, waiting = {source: source}, deque([source])
    while waiting:
        one = waiting.popleft()
        for other, rate in room[one].items():
            if rate > 0 and other not in before:
                before[other] = one
                waiting.append(other)
    return before
