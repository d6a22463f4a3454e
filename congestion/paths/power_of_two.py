"""Decides among two paths drawn by chance and the last one chosen: the soonest to deliver wins.

Never touches the window. Sources: Mitzenmacher, "The Power of Two Choices in Randomized Load
Balancing", IEEE TPDS 2001, and with Prabhakar and Shah, "Load Balancing with Memory", FOCS 2002;
the signals are those of a transport: RTT, ECN, nacks, timeouts.

Ports hash unevenly: where two of thirty-two lead over one link, draws alone cannot fill it. The
last choice, kept while it promises most, can. What keeps it from being kept too long is the wait
that its own bytes in flight will cause, long before an answer tells: how many nanoseconds a byte
costs is learnt from queues seen on all paths.

What is known of a path ages towards the mean of all, so that a path once slow is tried again; the
slower it was, the later, or tries alone would overload it. A path not measured yet is taken for
better than the mean a few times, then for worse: a path that swallows everything cannot win every
draw. A path that timed out rests, longer each time.
"""

from __future__ import annotations

from typing import Any

from congestion.api import ECN, GOOD, NACK, TIMEOUT, path_policy, record
from congestion.promises import Promises

Flow = record(
    mean_ns=float,
    ns_per_byte=float,  # of queueing delay, in flight on the same path
    kept=int,  # the last path chosen, plus one; 0: none
)

Path = record(
    least_ns=float,  # RTT of the last seconds, 0: not measured
    least_from_ns=int,
    score_ns=float,  # smoothed RTT with penalties, 0: not measured
    fed_ns=int,
    rest_from_ns=int,
    rest_ns=int,  # 0: it does not rest
    untold_picks=int,  # picks since the last feedback, while not measured
    timeouts=int,  # without a delivery between them
)

Params = record(
    burst_bytes=65_536,
    smoothing=0.125,
    ecn_multiple=2.0,  # a marked RTT counts as this many
    nack_multiple=4.0,
    refresh_ns=10_000_000,  # when a measurement has aged to the mean, at least
    refresh_multiple=8.0,  # and at least this many of what was measured
    rest_ns=10_000_000,  # after the first timeout; doubled by each further one
    rest_doublings_max=6,
    untold_picks_per_mean=4.0,
    margin=1.1,  # by which another must promise to be better: RTTs of equal paths are noisy
    least_ns_max=10_000_000_000,  # how long a least RTT counts: routes change
    queued_ns_per_byte=0.1,  # what bytes of ours in flight add to the wait, at least
)


def bar(paths: Any, event: Any, index: int) -> int:
    """0: free to draw; 1: resting; 2: the lost copy went there; 3: dead."""
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
    """The other one, if it promises to be better by the margin."""
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
        second_turn += 1  # the second is drawn from the others
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
    """What a byte in flight adds to the RTT of its path, over all of them."""
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
    promises=Promises(
        source="Mitzenmacher, Prabhakar and Shah, FOCS 2002",
        signals=("rtt", "ecn", "timeout", "chance"),
        state_bytes_max=112,
        spreads=True,
        dead_path_picks=64,
    ),
)
