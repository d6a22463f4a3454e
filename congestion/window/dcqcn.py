"""DCQCN: a rate that marks reduce, and that a timer and a byte counter raise.

Source: Zhu et al., "Congestion Control for Large-Scale RDMA Deployments", SIGCOMM 2015, section 3.2
and figure 7. Timers are evaluated when events arrive. Delay is not used. One timer lowers alpha,
another one and a counter of bytes raise the rate; a mark that counts restarts all three.

Departures of all presets: the sender, not the receiver, limits how often marks count; a loss counts
as a mark, because the network may drop packets; and a window limits the bytes in flight to the rate
times the sum of the minimum RTT and `wait_ns`.

The defaults and `fabric` depart further (`literal` is 0): periods last at least a round trip, which
can exceed the paper's 50 us between hosts; acknowledged bytes, not sent ones, move the counter; and
the timer does not raise the rate of a flow that has nothing to send.
"""

from __future__ import annotations

from typing import Any

from congestion.api import record, window_policy
from congestion.promises import Promises

TICKS_MAX = 64  # timer periods per event; after a longer pause, further periods are skipped

Flow = record(
    rate=float,  # current rate (R_C), bytes per second
    target_rate=float,  # target rate (R_T), bytes per second
    alpha=float,
    unstaged_bytes=float,  # bytes since the byte counter's last stage
    sent_bytes=int,  # most bytes that were delivered or in flight so far
    timer_stages=int,
    byte_stages=int,
    timer_ns=int,  # start of the rate timer's current period, which a cut restarts
    alpha_ns=int,  # likewise of the timer that lowers alpha
    cut_ns=int,
    timeouts=int,  # consecutive timeouts without an acknowledgment
)

Params = record(
    link_bytes_per_s=12.5e9,  # used if the OS reports no link speed: 100 Gb/s
    gain=0.00390625,  # the paper's g: 1/256
    mark_period_ns=50_000,  # least time between two marks that count
    alpha_period_ns=55_000,  # period of the timer that lowers alpha (K in the paper)
    timer_period_ns=55_000,  # period of the timer that raises the rate (T in the paper)
    stage_bytes=10e6,  # the byte counter raises the rate after so many bytes (B in the paper)
    fast_stages=5,  # number of fast recovery stages (F in the paper)
    increase_share=0.001,  # R_AI as a share of the link's rate: 40 Mb/s at 40 Gb/s
    hyper_share=0.01,  # R_HAI as a share of the link's rate: ten times R_AI, as in NICs
    least_share=0.001,
    wait_ns=500_000.0,  # queueing delay at which the window stops the flow
    timeout_limit=3,
    literal=0,  # 1: as in the paper; 0: with the further departures above
)


def link(params: Any, event: Any) -> Any:
    if event.link_bytes_per_s > 0:
        return float(event.link_bytes_per_s)
    return params.link_bytes_per_s


def answer(flow: Any, params: Any, event: Any, result: Any) -> None:
    line = link(params, event)
    flow.target_rate = min(max(flow.target_rate, params.least_share * line), line)
    flow.rate = min(max(flow.rate, params.least_share * line), line)
    least = 2.0 * max(float(event.segment_bytes), 1.0)
    most = max(float(event.window_bytes_max), least)
    bound = flow.rate * (max(event.rtt_min_ns, 0) + params.wait_ns) * 1e-9
    result.window_bytes = min(max(bound, least), most)
    result.pacing_bytes_per_s = flow.rate


def period(params: Any, event: Any, least_ns: int) -> Any:
    """The period of a timer."""
    if params.literal == 1:
        return max(least_ns, 1)
    return max(least_ns, min(event.srtt_ns, 1_000_000_000), 1)


def cut(flow: Any, params: Any, event: Any) -> None:
    """Handles a congestion notification; ignores further ones within a period."""
    apart_ns = params.mark_period_ns
    if params.literal == 0:
        apart_ns = max(apart_ns, event.srtt_ns)
    if event.now_ns - flow.cut_ns < apart_ns:
        return
    flow.target_rate = flow.rate
    flow.rate *= 1.0 - flow.alpha / 2.0
    flow.alpha += params.gain * (1.0 - flow.alpha)
    flow.timer_stages = 0
    flow.byte_stages = 0
    flow.unstaged_bytes = 0.0
    flow.cut_ns = event.now_ns
    flow.timer_ns = event.now_ns
    flow.alpha_ns = event.now_ns


def raise_rate(flow: Any, params: Any, event: Any) -> None:
    """Raises the rate by a stage of fast recovery, additive increase or hyper increase."""
    low = min(flow.timer_stages, flow.byte_stages)
    if low > params.fast_stages:
        hyper = (low - params.fast_stages) * params.hyper_share
        flow.target_rate += hyper * link(params, event)
    elif max(flow.timer_stages, flow.byte_stages) >= params.fast_stages:
        flow.target_rate += params.increase_share * link(params, event)
    flow.target_rate = min(flow.target_rate, link(params, event))
    flow.rate = (flow.target_rate + flow.rate) / 2.0


def lower_alpha(flow: Any, params: Any, event: Any) -> None:
    """Runs the timer of alpha for the time since the last event."""
    period_ns = period(params, event, params.alpha_period_ns)
    for _ in range(TICKS_MAX):
        if event.now_ns - flow.alpha_ns < period_ns:
            break
        flow.alpha_ns += period_ns
        flow.alpha *= 1.0 - params.gain
    flow.alpha_ns = max(flow.alpha_ns, event.now_ns - period_ns)


def new_bytes(flow: Any, params: Any, event: Any) -> Any:
    """Bytes that move the byte counter: sent since the last event, or acknowledged by it."""
    if params.literal == 0:
        return event.acked_bytes
    sent_bytes = max(event.delivered_bytes + event.inflight_bytes, flow.sent_bytes)
    grown = sent_bytes - flow.sent_bytes
    flow.sent_bytes = sent_bytes
    return grown


def tick(flow: Any, params: Any, event: Any) -> None:
    """Runs the rate timer and the byte counter for the time since the last event."""
    period_ns = period(params, event, params.timer_period_ns)
    for _ in range(TICKS_MAX):
        if event.now_ns - flow.timer_ns < period_ns:
            break
        flow.timer_ns += period_ns
        if event.app_limited == 0 or params.literal == 1:
            flow.timer_stages += 1
            raise_rate(flow, params, event)
    flow.timer_ns = max(flow.timer_ns, event.now_ns - period_ns)
    flow.unstaged_bytes += new_bytes(flow, params, event)
    if flow.unstaged_bytes >= params.stage_bytes:
        # At most one stage per event; the remaining bytes count for the next event.
        flow.unstaged_bytes = min(flow.unstaged_bytes - params.stage_bytes, params.stage_bytes)
        flow.byte_stages += 1
        raise_rate(flow, params, event)


def on_start(flow: Any, params: Any, event: Any, result: Any) -> None:
    flow.alpha = 1.0
    flow.timer_ns = event.now_ns
    flow.alpha_ns = event.now_ns
    flow.sent_bytes = event.delivered_bytes + max(event.inflight_bytes, 0)
    flow.rate = link(params, event)  # section 3.1: there is no slow start
    if event.hint_window_bytes > 0.0:  # start at the replaced policy's window per round trip
        round_trip_ns = float(event.srtt_ns)
        if event.srtt_ns <= 0:
            round_trip_ns = max(event.rtt_min_ns, 0) + params.wait_ns
        flow.rate = event.hint_window_bytes * 1e9 / max(round_trip_ns, 1.0)
    flow.target_rate = flow.rate
    answer(flow, params, event, result)


def on_ack(flow: Any, params: Any, event: Any, result: Any) -> None:
    flow.timeouts = 0
    lower_alpha(flow, params, event)
    tick(flow, params, event)
    if event.ecn_segments > 0:
        cut(flow, params, event)
    answer(flow, params, event, result)


def on_loss(flow: Any, params: Any, event: Any, result: Any) -> None:
    cut(flow, params, event)
    answer(flow, params, event, result)


def on_timeout(flow: Any, params: Any, event: Any, result: Any) -> None:
    flow.timeouts += 1
    cut(flow, params, event)
    if flow.timeouts >= params.timeout_limit:
        flow.rate = 0.0  # answer() raises it to the minimum rate
        flow.target_rate = 0.0
    answer(flow, params, event, result)


POLICY = window_policy(
    "dcqcn",
    flow=Flow,
    params=Params,
    on_start=on_start,
    on_ack=on_ack,
    on_loss=on_loss,
    on_timeout=on_timeout,
    presets={"host": {}, "paper": {"literal": 1}, "fabric": {"wait_ns": 50_000.0}},
    promises=Promises(
        source="Zhu et al., SIGCOMM 2015, section 3.2",
        signals=("ecn", "loss", "timeout"),
        state_bytes_max=88,
        cut_on=("ecn", "loss"),
        cut_factor=(0.5, 0.999),
        cuts_per_rtt=1,
        convergence_rtts=30,
        utilization_min=0.8,
    ),
)
