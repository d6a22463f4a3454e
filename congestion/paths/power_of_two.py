"""The path with the least expected delay of two random paths and the last one chosen.

Sources: Mitzenmacher, "The Power of Two Choices in Randomized Load Balancing", IEEE TPDS 2001, and
with Prabhakar and Shah, "Load Balancing with Memory", FOCS 2002. The signals are those of a
transport: RTT, ECN, NACKs and timeouts.

ECMP spreads ports unevenly. If two of thirty-two paths cross a link, random choice alone cannot
fill that link; comparing with the last choice as well can. A path is not kept too long, because its
own bytes in flight raise its expected delay before any feedback arrives; the nanoseconds per byte
are estimated from the queueing delays of all paths.

The score of a path moves with age towards the mean of all paths, so that a slow path is used again.
The slower the path was, the longer this takes, because such trials alone could overload it. A path
that was never measured counts as better than the mean for a few picks and then as worse, so that no
path that drops everything is chosen every time. A path that timed out is not used for a while, for
longer after each timeout.
"""

from __future__ import annotations

from typing import Any

from congestion.api import ECN, GOOD, NACK, TIMEOUT, path_policy, record
from congestion.promises import Promises

Flow = record(
    mean_ns=float,
    ns_per_byte=float,  # queueing delay per byte in flight on the same path
    kept=int,  # index of the last path chosen, plus one; 0: none
)

Path = record(
    least_ns=float,  # minimum RTT of the last seconds; 0: not measured
    least_from_ns=int,
    score_ns=float,  # smoothed RTT with penalties; 0: not measured
    fed_ns=int,
    rest_from_ns=int,
    rest_ns=int,  # how long the path is not used after a timeout; 0: it may be used
    untold_picks=int,  # picks of this path since its last feedback
    timeouts=int,  # consecutive timeouts without a delivery
)

Params = record(
    burst_bytes=65_536,
    smoothing=0.125,
    ecn_multiple=2.0,  # an RTT sample with an ECN mark is multiplied by this
    nack_multiple=4.0,
    refresh_ns=10_000_000,  # minimum time in which a score moves to the mean of all paths
    refresh_multiple=8.0,  # refresh_ns as a multiple of the score; the longer time applies
    rest_ns=10_000_000,  # how long a path is unused after a timeout; each further one doubles it
    rest_doublings_max=6,
    untold_picks_per_mean=4.0,
    margin=1.1,  # ratio by which another path must be faster, as RTTs of equal paths are noisy
    least_ns_max=10_000_000_000,  # how long a minimum RTT counts, as routes change
    queued_ns_per_byte=0.1,  # lower bound of the flow record's ns_per_byte
)


def bar(paths: Any, event: Any, index: int) -> int:
    """The reason to skip a path in the random choice; larger numbers are worse; 0: no reason.

    1: it timed out less than rest_ns ago; 2: the segment to resend was lost on it; 3: it is down.
    """
    if paths[index].usable == 0:
        return 3
    if event.is_resend != 0 and index == event.avoid_path:
        return 2
    if event.now_ns - paths[index].rest_from_ns < paths[index].rest_ns:
        return 1
    return 0


def expected_ns(flow: Any, path: Any, params: Any, event: Any) -> Any:
    ns_per_byte = max(flow.ns_per_byte, params.queued_ns_per_byte)
    queued_ns = ns_per_byte * path.inflight_bytes
    if path.score_ns == 0.0:
        return queued_ns + flow.mean_ns * path.untold_picks / params.untold_picks_per_mean
    refresh_ns = max(params.refresh_multiple * path.score_ns, float(params.refresh_ns), 1.0)
    age = min(max((event.now_ns - path.fed_ns) / refresh_ns, 0.0), 1.0)
    return queued_ns + path.score_ns + (flow.mean_ns - path.score_ns) * age


def better(flow: Any, paths: Any, params: Any, event: Any, other: int, chosen: int) -> Any:
    """`other` if its expected delay is less by the margin, else `chosen`."""
    other_ns = expected_ns(flow, paths[other], params, event)
    if params.margin * other_ns < expected_ns(flow, paths[chosen], params, event):
        return other
    return chosen


def pick(flow: Any, paths: Any, params: Any, event: Any, result: Any) -> None:
    least = 3
    count = 0
    for index in range(len(paths)):
        barred = bar(paths, event, index)
        if barred < least:
            least = barred
            count = 0
        if barred == least:
            count += 1
    first_turn = min(int(event.rand * count), count - 1)
    second_turn = min(int(event.rand2 * (count - 1)), count - 2)
    if second_turn >= first_turn:
        second_turn += 1  # so that the second path differs from the first
    first = 0
    second = -1
    turn = 0
    for index in range(len(paths)):
        if bar(paths, event, index) == least:
            if turn == first_turn:
                first = index
            elif turn == second_turn:
                second = index
            turn += 1
    chosen = first
    if second >= 0:
        chosen = better(flow, paths, params, event, second, chosen)
    kept = flow.kept - 1
    if 0 <= kept < len(paths) and bar(paths, event, kept) == least:
        chosen = better(flow, paths, params, event, kept, chosen)
    flow.kept = chosen + 1
    paths[chosen].untold_picks += 1
    result.path = chosen
    result.burst_bytes = params.burst_bytes


def learn(flow: Any, path: Any, params: Any, event: Any, sample_ns: float) -> None:
    if path.score_ns == 0.0:
        path.score_ns = sample_ns
    path.score_ns += params.smoothing * (sample_ns - path.score_ns)
    if flow.mean_ns == 0.0:
        flow.mean_ns = sample_ns
    flow.mean_ns += params.smoothing * (sample_ns - flow.mean_ns) / max(event.n_paths, 1)
    path.fed_ns = event.now_ns


def learn_queues(flow: Any, path: Any, params: Any, event: Any, sample_ns: float) -> None:
    """Updates the queueing delay per byte in flight on a path, averaged over all paths."""
    old = event.now_ns - path.least_from_ns >= params.least_ns_max
    if path.least_ns == 0.0 or sample_ns < path.least_ns or old:
        path.least_ns = sample_ns
        path.least_from_ns = event.now_ns
    carried_bytes = path.inflight_bytes + event.bytes
    if carried_bytes > 0:
        seen = (sample_ns - path.least_ns) / max(carried_bytes, event.segment_bytes)
        weight = params.smoothing / max(event.n_paths, 1)
        flow.ns_per_byte += weight * (seen - flow.ns_per_byte)


def on_feedback(flow: Any, paths: Any, params: Any, event: Any, result: Any) -> None:
    index = min(max(event.path, 0), len(paths) - 1)
    path = paths[index]
    sample_ns = float(event.rtt_ns)
    if sample_ns <= 0.0:
        sample_ns = max(float(path.rtt_ns), flow.mean_ns)
    if event.kind == TIMEOUT:
        rest_ns = params.rest_ns
        for doubling in range(8):
            if doubling < min(path.timeouts, params.rest_doublings_max):
                rest_ns *= 2
        path.timeouts += 1
        path.rest_from_ns = event.now_ns
        path.rest_ns = rest_ns
        path.score_ns = 0.0
        path.least_ns = 0.0
        path.untold_picks = 0
    elif event.kind == NACK:
        learn(flow, path, params, event, params.nack_multiple * sample_ns)
    elif event.kind == ECN or event.kind == GOOD:
        path.timeouts = 0
        path.rest_ns = 0
        path.untold_picks = 0
        if event.rtt_ns > 0:
            learn_queues(flow, path, params, event, sample_ns)
        if event.kind == ECN:
            sample_ns *= params.ecn_multiple
        learn(flow, path, params, event, sample_ns)
    result.path = index
    result.burst_bytes = params.burst_bytes


POLICY = path_policy(
    "power_of_two",
    flow=Flow,
    path=Path,
    params=Params,
    pick=pick,
    on_feedback=on_feedback,
    presets={"host": {}, "paper": {}, "fabric": {"burst_bytes": 4_096}},
    promises=Promises(
        source="Mitzenmacher, Prabhakar and Shah, FOCS 2002",
        signals=("rtt", "ecn", "loss", "timeout", "chance"),
        state_bytes_max=112,
        spreads=True,
        dead_path_picks=64,
    ),
)
