"""Decides among a few paths drawn by chance: the one expected to deliver sooner takes the burst.

Never touches the window. Source: Mitzenmacher, "The Power of Two Choices in Randomized Load
Balancing", IEEE TPDS 2001; the signals are those of a transport: RTT, ECN, nacks, timeouts.

Where the better of two draws promises far worse than the mean of all there is a third. Ports hash
unevenly: where three of eight lead over one slow path, two draws both fall on it in one burst of
nine, and a path of a quarter of the rate cannot carry that much. A third draw every time would be
too many: with answers a round trip old, bursts would crowd where it was empty.

What is known of a path ages towards the mean of all, so that a path once slow is tried again. A
path not measured yet is taken for better than the mean a few times, then for worse: a path that
swallows everything cannot win every draw. A path that timed out rests, longer each time.
"""

from __future__ import annotations

from typing import Any

from congestion.api import ECN, GOOD, NACK, TIMEOUT, path_policy, record
from congestion.promises import Promises

Flow = record(mean_ns=float)

Path = record(
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
    refresh_ns=10_000_000,  # when a measurement has aged to the mean
    rest_ns=10_000_000,  # after the first timeout; doubled by each further one
    rest_doublings_max=6,
    untold_picks_per_mean=4.0,
    margin=1.5,  # by which another must promise to be better: RTTs of equal paths are noisy
    third_multiple=2.0,  # of the mean: what promises worse than so much has a third draw beside it
    queued_ns_per_byte=0.1,  # what bytes of ours in flight add to the wait
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
    queued_ns = params.queued_ns_per_byte * path.inflight_bytes
    if path.score_ns == 0.0:
        return queued_ns + flow.mean_ns * path.untold_picks / params.untold_picks_per_mean
    age = min(max((event.now_ns - path.fed_ns) / params.refresh_ns, 0.0), 1.0)
    return queued_ns + path.score_ns + (flow.mean_ns - path.score_ns) * age


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
    # What the first draw left of its chance is uniform too.
    third_turn = min(int((event.rand * count - first_turn) * (count - 2)), count - 3)
    if third_turn >= min(first_turn, second_turn):
        third_turn += 1
    if third_turn >= max(first_turn, second_turn):
        third_turn += 1
    first = 0
    second = -1
    third = -1
    turn = 0
    for index in range(len(paths)):
        if bar(paths, event, index) == least:
            if turn == first_turn:
                first = index
            elif turn == second_turn:
                second = index
            elif turn == third_turn:
                third = index
            turn += 1
    chosen = first
    if second >= 0:
        chosen_ns = expected_ns(flow, paths[first], params, event)
        second_ns = expected_ns(flow, paths[second], params, event)
        if params.margin * second_ns < chosen_ns:
            chosen = second
            chosen_ns = second_ns
        if chosen_ns > params.third_multiple * flow.mean_ns and third >= 0:
            third_ns = expected_ns(flow, paths[third], params, event)
            chosen = third if params.margin * third_ns < chosen_ns else chosen
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
        path.untold_picks = 0
    elif event.kind == NACK:
        learn(flow, path, params, event, params.nack_multiple * sample_ns)
    elif event.kind == ECN or event.kind == GOOD:
        path.timeouts = 0
        path.rest_ns = 0
        path.untold_picks = 0
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
        source="Mitzenmacher, IEEE TPDS 2001",
        signals=("rtt", "ecn", "timeout", "chance"),
        state_bytes_max=80,
        spreads=True,
        dead_path_picks=64,
    ),
)
