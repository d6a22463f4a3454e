"""BBR: rate and window from a model of the path, its highest delivery rate and minimum RTT.

Source: Cardwell et al., "BBR: Congestion-Based Congestion Control", ACM Queue 14(5), 2016. The
bound on bytes in flight, which losses lower, and the gentler probe for the minimum RTT are those of
draft-cardwell-ccwg-bbr (version 3), sections 5.3.3 and 5.3.4. Marks are not used.

Departures: a round is one smoothed RTT of time, because acknowledgments cover many segments; loss
rates are computed over some hundred segments, because one loss in thirty says little; the window is
larger by what is sent while the receiver delays acknowledgments; repeated timeouts restart the
model. In the defaults and in `fabric` (`aged` is 0), round trips in which too little was sent are
not among the last ten, so that an old rate is kept through a long pause.
"""

from __future__ import annotations

from typing import Any

from congestion.api import record, window_policy
from congestion.promises import Promises

STARTUP, DRAIN, CRUISE, PROBE_RTT = 0, 1, 2, 3
CYCLE = 8

Flow = record(
    window_bytes=float,
    # Delivery rates of the last ten round trips, in bytes per second.
    rates=(0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0),
    best_rate=float,
    bound_bytes=float,  # limit of the bytes in flight; 0: none yet
    lost_bytes=float,  # how many of weighed_bytes were lost
    weighed_bytes=float,  # bytes of the round trips over which the loss rate is computed
    flight_bytes=float,  # bytes in flight at the start of this round trip
    calm_rounds=int,  # consecutive round trips without too many losses
    full_rate=float,  # best_rate when it last grew by full_growth, in STARTUP
    full_rounds=int,  # round trips since full_rate was set
    mode=int,
    round=int,
    phase=int,  # added to `round` to get the position in the gain cycle, modulo CYCLE
    round_ns=int,  # start of the current round trip
    round_bytes=int,  # value of delivered_bytes at the start of the current round trip
    rtt_ns=int,  # minimum RTT
    rtt_stamp_ns=int,  # when the minimum RTT was last measured
    mode_ns=int,  # when PROBE_RTT began
    held_rounds=int,  # round trips to come whose acknowledgments are of too little sent
    timeouts=int,  # consecutive timeouts without an acknowledgment
)

Params = record(
    start_segments=32.0,  # initial window
    startup_gain=2.885,  # 2 / ln 2: the smallest gain that doubles the rate in a round trip
    probe_gain=1.25,
    drain_gain=0.75,
    window_gain=2.0,  # window / bandwidth-delay product; 2, because acknowledgments may be late
    held_ns=60_000,  # acknowledgment delay: 30 us at the receiver, 30 us for a thread wake-up
    full_growth=1.25,  # STARTUP ends after full_rounds round trips with slower growth of the rate
    full_rounds=3,
    loss_tolerance=0.02,  # loss rate above which bound_bytes is lowered
    judged_segments=256,  # least number of segments over which a loss rate is computed
    loss_factor=0.7,
    rtt_believed_ns=5_000_000,  # how long a minimum RTT counts: 100 RTTs of 50 us; paper: 10 s
    probe_rtt_ns=200_000,  # length of PROBE_RTT: 2 RTTs and acknowledgment delays; paper: 200 ms
    timeout_limit=3,
    aged=0,  # 1: round trips in which too little was sent age the filter of rates, as in the paper
)


def answer(flow: Any, params: Any, event: Any, result: Any) -> None:
    segment_bytes = max(float(event.segment_bytes), 1.0)
    pacing_gain = 1.0
    if flow.mode == STARTUP:
        pacing_gain = params.startup_gain
    elif flow.mode == DRAIN:
        pacing_gain = 1.0 / params.startup_gain
    elif flow.mode == CRUISE and (flow.round + flow.phase) % CYCLE == 0:
        pacing_gain = params.probe_gain
    elif flow.mode == CRUISE and (flow.round + flow.phase) % CYCLE == 1:
        pacing_gain = params.drain_gain
    if flow.best_rate > 0.0:
        product_bytes = flow.best_rate * flow.rtt_ns * 1e-9
        window_gain = max(params.window_gain, pacing_gain)
        flow.window_bytes = window_gain * product_bytes + flow.best_rate * params.held_ns * 1e-9
        if flow.bound_bytes > 0.0:
            flow.window_bytes = min(flow.window_bytes, flow.bound_bytes)
        if flow.mode == PROBE_RTT:
            flow.window_bytes = 0.0  # raised to the minimum below, so that the queue drains
        flow.window_bytes = max(flow.window_bytes, 4.0 * segment_bytes)
    most = max(float(event.window_bytes_max), 2.0 * segment_bytes)
    flow.window_bytes = min(max(flow.window_bytes, 2.0 * segment_bytes), most)
    result.window_bytes = flow.window_bytes
    result.pacing_bytes_per_s = pacing_gain * flow.best_rate


def measure_rtt(flow: Any, params: Any, event: Any) -> None:
    """Tracks the minimum RTT; enters PROBE_RTT if it was not seen again for rtt_believed_ns.

    When one flow drains, all flows of the bottleneck see a shorter RTT at once. This synchronises
    their clocks, so that their next PROBE_RTT drains the whole queue.
    """
    if event.rtt_ns <= 0:
        return
    old = event.now_ns - flow.rtt_stamp_ns >= params.rtt_believed_ns
    if flow.rtt_ns == 0 or event.rtt_ns <= flow.rtt_ns or old:
        if old and flow.mode == CRUISE and flow.rtt_ns != 0:
            flow.mode = PROBE_RTT
            flow.mode_ns = event.now_ns
        flow.rtt_ns = event.rtt_ns
        flow.rtt_stamp_ns = event.now_ns


def measure_rate(flow: Any, params: Any, event: Any, elapsed_ns: int) -> None:
    """Records a round trip's delivery rate; if too little was sent, only if it is a new maximum.

    If such round trips age the filter, they remove old rates, and best_rate stays until the next
    rate is recorded. What was sent in such a round trip is acknowledged in the next one.
    """
    rate = (float(event.delivered_bytes) - flow.round_bytes) * 1e9 / elapsed_ns
    held_back = event.app_limited != 0 or flow.mode == PROBE_RTT
    if params.aged == 1:
        flow.held_rounds = max(flow.held_rounds - 1, 0)
        if held_back:
            flow.held_rounds = 2
        held_back = flow.held_rounds > 0
    if held_back and rate < flow.best_rate:
        if params.aged == 1:
            flow.rates[flow.round % len(flow.rates)] = 0.0
            flow.round += 1
        return
    flow.rates[flow.round % len(flow.rates)] = max(rate, 0.0)
    flow.round += 1
    flow.best_rate = 0.0
    for index in range(len(flow.rates)):
        flow.best_rate = max(flow.best_rate, flow.rates[index])


def forget_losses(flow: Any) -> None:
    flow.lost_bytes = 0.0
    flow.weighed_bytes = 0.0


def heed_losses(flow: Any, params: Any, event: Any) -> None:
    """Updates bound_bytes: too many losses cut it; round trips with few raise it ever faster.

    PROBE_RTT does not change it: losses reported in this mode are of segments sent before it.
    """
    if flow.mode == PROBE_RTT:
        forget_losses(flow)
        return
    flow.calm_rounds += 1
    delivered_bytes = float(event.delivered_bytes) - flow.round_bytes
    flow.weighed_bytes += max(flow.flight_bytes, delivered_bytes)
    enough_bytes = params.judged_segments * max(float(event.segment_bytes), 1.0)
    if flow.lost_bytes > params.loss_tolerance * max(flow.weighed_bytes, enough_bytes):
        flow.bound_bytes = params.loss_factor * flow.window_bytes
        flow.calm_rounds = 0
        flow.full_rounds = params.full_rounds  # so that move_on() ends STARTUP
        forget_losses(flow)
        return
    if flow.bound_bytes > 0.0:
        flow.bound_bytes = min(flow.bound_bytes, 1e18) + flow.calm_rounds * float(
            event.segment_bytes
        )
    if flow.weighed_bytes >= enough_bytes:
        forget_losses(flow)


def enter_cruise(flow: Any, event: Any) -> None:
    """Starts the gain cycle at a random position, but not at the probing or the draining one."""
    flow.mode = CRUISE
    flow.phase = (2 + int(event.rand * 6.0) - flow.round) % CYCLE


def move_on(flow: Any, params: Any, event: Any) -> None:
    """Changes the mode at the end of a round trip: STARTUP, DRAIN, CRUISE, PROBE_RTT, CRUISE."""
    if flow.mode == STARTUP and event.app_limited == 0:
        flow.full_rounds += 1
        if flow.calm_rounds > 0 and flow.best_rate >= params.full_growth * flow.full_rate:
            flow.full_rate = flow.best_rate
            flow.full_rounds = 0
        if flow.full_rounds >= params.full_rounds:
            flow.mode = DRAIN
    elif flow.mode == DRAIN and event.inflight_bytes <= flow.best_rate * flow.rtt_ns * 1e-9:
        enter_cruise(flow, event)
    elif flow.mode == PROBE_RTT and event.now_ns - flow.mode_ns >= params.probe_rtt_ns:
        flow.mode = CRUISE


def begin(flow: Any, event: Any) -> None:
    flow.mode = STARTUP
    flow.bound_bytes = 0.0
    forget_losses(flow)
    flow.full_rounds = 0
    flow.full_rate = 0.0
    flow.best_rate = 0.0
    for index in range(len(flow.rates)):
        flow.rates[index] = 0.0
    begin_round(flow, event)


def begin_round(flow: Any, event: Any) -> None:
    flow.round_ns = event.now_ns
    flow.round_bytes = event.delivered_bytes
    flow.flight_bytes = float(max(event.inflight_bytes, 0))


def take_over(flow: Any, event: Any) -> None:
    """Starts with the replaced policy's window in CRUISE, because STARTUP would flood the path."""
    flow.window_bytes = event.hint_window_bytes
    if event.srtt_ns > 0 and event.rtt_min_ns > 0:
        flow.best_rate = event.hint_window_bytes * 1e9 / event.srtt_ns
        flow.rates[0] = flow.best_rate
        flow.round = 1
        flow.rtt_ns = event.rtt_min_ns
        enter_cruise(flow, event)


def on_start(flow: Any, params: Any, event: Any, result: Any) -> None:
    begin(flow, event)
    flow.rtt_stamp_ns = event.now_ns
    flow.window_bytes = params.start_segments * max(float(event.segment_bytes), 1.0)
    if event.hint_window_bytes > 0.0:
        take_over(flow, event)
    answer(flow, params, event, result)


def on_ack(flow: Any, params: Any, event: Any, result: Any) -> None:
    flow.timeouts = 0
    measure_rtt(flow, params, event)
    elapsed_ns = event.now_ns - flow.round_ns
    if elapsed_ns >= max(event.srtt_ns, event.rtt_min_ns, 1):
        measure_rate(flow, params, event, elapsed_ns)
        heed_losses(flow, params, event)
        move_on(flow, params, event)
        begin_round(flow, event)
    answer(flow, params, event, result)


def on_loss(flow: Any, params: Any, event: Any, result: Any) -> None:
    flow.lost_bytes += event.lost_bytes
    answer(flow, params, event, result)


def on_timeout(flow: Any, params: Any, event: Any, result: Any) -> None:
    flow.timeouts += 1
    if flow.timeouts >= params.timeout_limit:
        begin(flow, event)
        flow.window_bytes = 0.0  # answer() raises it to the minimum window
    answer(flow, params, event, result)


POLICY = window_policy(
    "bbr",
    flow=Flow,
    params=Params,
    on_start=on_start,
    on_ack=on_ack,
    on_loss=on_loss,
    on_timeout=on_timeout,
    presets={
        "host": {},
        "paper": {
            "held_ns": 0,
            "rtt_believed_ns": 10_000_000_000,
            "probe_rtt_ns": 200_000_000,
            "aged": 1,
        },
        "fabric": {"held_ns": 0},
    },
    promises=Promises(
        source="Cardwell et al., ACM Queue 14(5), 2016",
        signals=("rate", "rtt", "loss", "timeout", "chance"),
        state_bytes_max=240,
        fairness_min=0.6,
        utilization_min=0.9,
        intrinsic={
            "fairness": "flows that drain the queue at different times differ in their least RTT, "
            "and the larger one gets more"
        },
    ),
)
