"""REPS: a path that delivered a burst without marks is used again.

Source: Bonato et al., "REPS: Recycled Entropy Packet Spraying for Adaptive Load Balancing and
Failure Mitigation", arXiv 2407.21625, section 3. RTT is not used.

The paper's state of 193 bits is a ring of eight paths, which here all flows to a peer share. In the
paper each packet has its own acknowledgment. Here a burst may have several acknowledgments or share
one, so feedback is counted per burst's worth of bytes, and counts as marked if any byte was marked.
Two additions, because paths are few and known by index: a path that timed out leaves the ring, and
a path that may not be used is skipped.
"""

from __future__ import annotations

from typing import Any

from congestion.api import ECN, GOOD, TIMEOUT, path_policy, record
from congestion.paths.oblivious import barred, drawn
from congestion.promises import Promises

Flow = record(
    ring=(0, 0, 0, 0, 0, 0, 0, 0),  # indices of paths that delivered unmarked, plus one; 0: empty
    head=int,  # position in the ring where the next entry is written
    fresh=int,  # number of entries before head that have not been picked yet
    turn=int,  # index in the ring of the next path, used while frozen is 1
    explore=int,  # how many of the next picks are random
    frozen=int,  # 1: a path timed out; picks use all entries of the ring in turn, repeatedly
    frozen_ns=int,
)

Path = record(
    heard_bytes=float,  # bytes acknowledged since the last call of verdict() with a result
    marked=int,  # 1: some of heard_bytes were ECN-marked
)

Params = record(
    burst_bytes=65_536,
    freeze_ns=10_000_000,  # how long `frozen` is 1 after a timeout, section 3.3
    explore_picks=16,
)


def recycled(flow: Any, paths: Any, event: Any) -> Any:
    """Picks the oldest usable path in the ring that has not been picked yet; -1: there is none."""
    for _ in range(len(flow.ring)):
        if flow.fresh <= 0:
            break
        index = flow.ring[(flow.head - flow.fresh) % len(flow.ring)] - 1
        flow.fresh -= 1
        if 0 <= index < len(paths) and barred(paths, event, index) == 0:
            return index
    return -1


def cycled(flow: Any, paths: Any, event: Any) -> Any:
    """The next usable path in the ring, even if it was picked before; -1: there is none."""
    for _ in range(len(flow.ring)):
        index = flow.ring[flow.turn % len(flow.ring)] - 1
        flow.turn = (flow.turn + 1) % len(flow.ring)
        if 0 <= index < len(paths) and barred(paths, event, index) == 0:
            return index
    return -1


def forget(flow: Any, path: int) -> None:
    """Removes a path from the ring; -1: all paths."""
    for place in range(len(flow.ring)):
        if path < 0 or flow.ring[place] == path + 1:
            flow.ring[place] = 0


def verdict(path: Any, params: Any, event: Any) -> Any:
    """How many bursts were delivered, negative if ECN-marked; 0: less than one burst so far."""
    path.heard_bytes += max(event.bytes, 0)
    if event.kind == ECN:
        path.marked = 1
    if path.heard_bytes < params.burst_bytes and path.inflight_bytes > 0:
        return 0
    bursts = int(min(max(path.heard_bytes / max(params.burst_bytes, 1), 1.0), 16.0))
    if path.marked != 0:
        bursts = -bursts
    path.heard_bytes = 0.0
    path.marked = 0
    return bursts


def pick(flow: Any, paths: Any, params: Any, event: Any, result: Any) -> None:
    if flow.frozen != 0 and event.now_ns - flow.frozen_ns >= params.freeze_ns:
        flow.frozen = 0
        flow.fresh = 0
        flow.explore = params.explore_picks
        forget(flow, -1)
    chosen = -1
    if flow.explore > 0:
        flow.explore -= 1
    elif flow.frozen != 0:
        chosen = cycled(flow, paths, event)
    else:
        chosen = recycled(flow, paths, event)
    if chosen < 0:
        chosen = drawn(paths, event)
    result.path = chosen
    result.burst_bytes = params.burst_bytes


def on_feedback(flow: Any, paths: Any, params: Any, event: Any, result: Any) -> None:
    index = min(max(event.path, 0), len(paths) - 1)
    if event.kind == TIMEOUT:
        forget(flow, index)
        if flow.frozen == 0 and flow.explore == 0:
            flow.frozen = 1
            flow.frozen_ns = event.now_ns
    elif event.kind == ECN or event.kind == GOOD:
        bursts = verdict(paths[index], params, event)
        for turn in range(len(flow.ring)):
            if turn < bursts:
                flow.ring[flow.head] = index + 1
                flow.head = (flow.head + 1) % len(flow.ring)
                flow.fresh = min(flow.fresh + 1, len(flow.ring))
    result.path = index
    result.burst_bytes = params.burst_bytes


POLICY = path_policy(
    "reps",
    flow=Flow,
    path=Path,
    params=Params,
    pick=pick,
    on_feedback=on_feedback,
    presets={"host": {}, "paper": {"burst_bytes": 4_096}, "fabric": {"burst_bytes": 4_096}},
    promises=Promises(
        source="Bonato et al., arXiv 2407.21625, section 3",
        signals=("ecn", "timeout", "chance"),
        state_bytes_max=152,
        dead_path_picks=64,
    ),
)
