"""Copa: a window that keeps the queue short, by a target rate that falls as delay grows.

Source: Arun and Balakrishnan, "Copa: Practical Delay-Based Congestion Control for the Internet",
NSDI 2018, section 2, in its default mode (no mode switching).
"""

from congestion.api import record, window_policy
from congestion.promises import Promises

FAR_NS = 1 << 62

Flow = record(
    window_segments=float,
    velocity=float,  # section 2.1, step 4: doubles while the direction stays the same
    standing_ns=int,  # minimum RTT of the current round trip
    last_standing_ns=int,  # minimum RTT of the previous round trip
    round_end_ns=int,
    round_start_segments=float,
    same_direction_rounds=int,
    direction=int,
    slow_start=int,
)
# delta is 0.5 in the paper, for a queue of 2 segments; 0.1 allows 10, as weft sends bursts of 16.
Params = record(delta=0.1, start_segments=10.0, window_segments_min=2.0)


def answer(flow, params, event, result):
    most = max(event.window_bytes_max / event.segment_bytes, params.window_segments_min)
    flow.window_segments = min(max(flow.window_segments, params.window_segments_min), most)
    result.window_bytes = flow.window_segments * event.segment_bytes
    result.pacing_bytes_per_s = 0.0
    if event.srtt_ns > 0:  # section 2.1: pacing at two windows per round trip
        result.pacing_bytes_per_s = 2e9 * result.window_bytes / event.srtt_ns


def on_start(flow, params, event, result):
    flow.window_segments = max(event.hint_window_bytes / event.segment_bytes, params.start_segments)
    flow.velocity = 1.0
    flow.standing_ns = FAR_NS
    flow.last_standing_ns = FAR_NS
    flow.slow_start = 1
    answer(flow, params, event, result)


def end_round(flow, event):
    """Updates the velocity once per round trip, and begins a new round."""
    change = flow.window_segments - flow.round_start_segments
    direction = 1 if change > 0.0 else -1
    same = direction == flow.direction and change != 0.0  # idle time has no direction
    flow.same_direction_rounds = flow.same_direction_rounds + 1 if same else 0
    flow.velocity = min(flow.velocity * 2.0, 1e6) if flow.same_direction_rounds >= 3 else 1.0
    flow.direction = direction
    flow.round_start_segments = flow.window_segments
    flow.round_end_ns = event.now_ns + event.srtt_ns
    flow.last_standing_ns = flow.standing_ns
    flow.standing_ns = FAR_NS


def on_ack(flow, params, event, result):
    if event.now_ns >= flow.round_end_ns:
        end_round(flow, event)
    if event.rtt_ns > 0:
        flow.standing_ns = min(flow.standing_ns, event.rtt_ns)
    queue_ns = max(min(flow.standing_ns, flow.last_standing_ns) - event.rtt_min_ns, 1)
    round_trip_ns = event.rtt_min_ns + queue_ns
    # The target rate of section 2.1, step 2, times the RTT.
    target_segments = round_trip_ns / (params.delta * queue_ns)
    acked = event.acked_bytes / event.segment_bytes
    step = flow.velocity * acked / (params.delta * flow.window_segments)
    if flow.window_segments > target_segments:
        flow.slow_start = 0
        flow.window_segments -= min(step, flow.window_segments / 2.0)
    elif event.app_limited == 0:
        flow.window_segments += max(acked, step) if flow.slow_start != 0 else step
    answer(flow, params, event, result)


def on_loss(flow, params, event, result):
    answer(flow, params, event, result)  # section 2.1: only delay is a signal


def on_timeout(flow, params, event, result):
    flow.window_segments = params.window_segments_min
    flow.slow_start = 1
    answer(flow, params, event, result)


POLICY = window_policy(
    "copa",
    flow=Flow,
    params=Params,
    on_start=on_start,
    on_ack=on_ack,
    on_loss=on_loss,
    on_timeout=on_timeout,
    promises=Promises(
        source="Arun and Balakrishnan, NSDI 2018, section 2",
        signals=("rtt", "timeout"),
        state_bytes_max=80,
        intrinsic={
            "loss_response": "section 2: only delay is a signal",
            "utilization": "section 2.2: a flow keeps 1/delta segments queued, and a burst has 16",
        },
    ),
)
