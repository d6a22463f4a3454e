"""Swift: a window from queueing delay, with a target, additive increase, proportional decrease.

Source: Kumar et al., "Swift: Delay is Simple and Effective for Congestion Control in the
Datacenter", SIGCOMM 2020, section 3; flow scaling with the constants of its section 3.5.

As in the paper there are two windows: one for the network, by queueing delay, and one for the
receiving host, by how long the host delayed the acknowledgment. The smaller one applies.

The preset `paper` is the paper's Algorithm 1: the delay of each acknowledgment, windows down to a
thousandth of a segment, growth by one segment in a round trip, a cut by any loss. Where the paper
gives no number, it has those of the simulator htsim. Its departures:

- The target has no part for each hop (section 3.5), because no event tells the number of hops:
  `target_rtt_ns` is the target of the whole RTT, on all paths.
- A flow starts with one segment, because the paper does not say with what.

The defaults, also called `host`, are for hosts whose RTT carries scheduling noise, and depart
further:

- Delay means RTT less the path's own minimum RTT, so that paths of unequal length share one target.
- The delay compared with a target is the minimum of the last round trip, because a standing queue
  shows in every sample and a late wake-up only in few. If a flow has several paths, one without a
  queue keeps the window open; moving traffic to that path is the task of the path policy.
- Losses below a tolerated share of the window count as corruption, not as congestion.
- A window has 16 segments at least, because one burst has as many, and grows by four in a round
  trip. Flow scaling reaches from 4 to 256 segments.
- Windows below 64 segments are paced faster than window / RTT, because a burst is long.

`fabric` is for simulated networks, where no host adds delay. It is `paper` but for two values: a
flow starts with 16 segments, because most messages end before a window of one segment has grown,
and the window is a tenth of a segment at least, because timeouts make it the least, and then a flow
waits RTT / window.

The paper is about data centres. On a long path, with an RTT of a millisecond or more, a large
initial window overflows a queue, growth by four segments per round trip takes minutes to fill the
path, and a delay of twice the RTT is more than queues hold. There a flow starts with a small window
and doubles it until delay or loss rises (delay as in HyStart++, RFC 9406, section 4.2). Then its
growth is set per time instead of per round trip, and the target delay has an upper limit.
"""

from __future__ import annotations

import math
from typing import Any

from congestion.api import record, window_policy
from congestion.promises import Promises

NO_SAMPLE_NS = 1 << 62

Flow = record(
    window_bytes=float,  # the window for the network
    host_window_bytes=float,
    scaling_alpha=float,
    scaling_beta=float,
    round_lost_bytes=float,
    round_start_ns=int,
    round_queue_ns=int,  # minimum queueing delay of the current round trip
    last_queue_ns=int,  # minimum queueing delay of the previous round trip
    round_host_ns=int,  # minimum delay at the receiving host in the current round trip
    last_host_ns=int,
    last_rtt_ns=int,
    last_cut_ns=int,
    host_cut_ns=int,
    doubling=int,  # 1: the window doubles every round trip, until delay or loss ends this
    late_samples=int,  # consecutive late RTT samples while the window doubles
    timeouts=int,  # consecutive timeouts without an acknowledgment
)

Params = record(
    target_queue_ns=50_000,  # the smallest target delay, because thread wake-ups take as long
    target_rtt_ns=0,  # the target of the whole RTT; 0: the queueing delay has the target above
    target_multiple=2.0,  # the target delay, as a multiple of the minimum RTT
    host_target_ns=100_000,  # delayed acknowledgments take 30 us, a thread wake-up another 30 us
    host_target_share=0.125,  # the host's target is at least this share of the minimum RTT
    scaling_multiple=4.0,  # flow scaling adds at most this multiple of the target delay
    scaling_segments_min=4.0,
    scaling_segments_max=256.0,
    increase_segments=4.0,  # window growth per round trip
    decrease_gain=0.8,
    decrease_max=0.5,
    loss_tolerance=0.02,  # share of a window that may be lost in a round trip without a cut
    timeout_limit=3,
    long_rtt_ns=1_000_000,  # paths with this RTT or more are long
    target_max_ns=10_000_000,  # upper limit of the target delay, before flow scaling
    doubling_segments=32,  # initial window on a long path, where the window doubles
    doubling_samples=8,  # consecutive late samples that end doubling
    doubling_late_ns_min=4_000_000,  # least delay of a late sample; rtt_min / 8 if that is more
    doubling_late_ns_max=16_000_000,
    growth_share_max=0.0625,  # most growth in a round trip on a long path, as a share of the window
    window_segments_min=16.0,
    start_divisor=4.0,  # the initial window is window_bytes_max / start_divisor
    start_segments=0.0,  # the initial window on a short path; 0: by start_divisor
    filtered=1,  # 1: the least delay of the last round trip counts; 0: that of each acknowledgment
    pacing_gain=1.2,
    pacing_segments_max=64,  # larger windows are paced on long paths only
    pacing_gain_long=2.0,  # larger windows are paced at this multiple of window / RTT
)


def is_long(params: Any, event: Any) -> Any:
    return max(event.rtt_min_ns, 0) >= params.long_rtt_ns


def answer(flow: Any, params: Any, event: Any, result: Any, window: float, host: float) -> None:
    segment_bytes = max(float(event.segment_bytes), 1.0)
    result.window_segments_min = params.window_segments_min
    most = max(float(event.window_bytes_max), 2.0 * segment_bytes)
    least = min(params.window_segments_min * segment_bytes, most)
    window = min(max(window, least), most)
    host = min(max(host, least), most)
    in_force = min(window, host)
    rate = 0.0
    if event.srtt_ns > 0:
        if in_force < params.pacing_segments_max * segment_bytes:
            rate = params.pacing_gain * in_force * 1e9 / event.srtt_ns
        elif is_long(params, event):
            rate = params.pacing_gain_long * in_force * 1e9 / event.srtt_ns
    flow.window_bytes = window
    flow.host_window_bytes = host
    result.window_bytes = in_force
    result.pacing_bytes_per_s = rate


def cut(flow: Any, params: Any, event: Any, factor: float) -> Any:
    """The window, shrunk at most once per round trip.

    On a long path the time between cuts is 1.25 times the last RTT: a full queue makes the round
    trip longer than the smoothed RTT, and its losses are detected a quarter of an RTT later.
    """
    round_ns = max(event.srtt_ns, event.rtt_min_ns)
    if is_long(params, event):
        round_ns = max(round_ns, flow.last_rtt_ns + flow.last_rtt_ns // 4)
    if event.now_ns - flow.last_cut_ns < round_ns:
        return flow.window_bytes
    flow.last_cut_ns = event.now_ns
    return flow.window_bytes * factor


def observe(flow: Any, params: Any, event: Any) -> Any:
    """The minimum queueing delay of this round trip and the previous one, or this sample's."""
    if event.now_ns - flow.round_start_ns >= max(event.srtt_ns, event.rtt_min_ns):
        flow.last_queue_ns = flow.round_queue_ns
        flow.last_host_ns = flow.round_host_ns
        flow.round_queue_ns = NO_SAMPLE_NS
        flow.round_host_ns = NO_SAMPLE_NS
        flow.round_lost_bytes = 0.0
        flow.round_start_ns = event.now_ns
    if event.rtt_ns > 0:
        flow.last_rtt_ns = min(event.rtt_ns, NO_SAMPLE_NS)
        queue_ns = min(event.rtt_ns, NO_SAMPLE_NS)
        if params.target_rtt_ns == 0:
            queue_ns -= max(event.rtt_min_ns, 0)
        flow.round_queue_ns = min(flow.round_queue_ns, max(queue_ns, 0))
        if params.filtered == 0:
            return max(queue_ns, 0)
    return min(flow.round_queue_ns, flow.last_queue_ns)


def increase(flow: Any, params: Any, event: Any) -> Any:
    """Window growth in bytes per round trip; on a long path it is in proportion to the RTT."""
    bytes_ = params.increase_segments * max(float(event.segment_bytes), 1.0)
    if is_long(params, event):
        most = max(params.growth_share_max * flow.window_bytes, bytes_)
        bytes_ = min(bytes_ * event.rtt_min_ns / params.long_rtt_ns, most)
    return bytes_


def doubled(flow: Any, params: Any, event: Any) -> Any:
    """The window of a flow that doubles it every round trip."""
    late_ns = min(
        max(event.rtt_min_ns // 8, params.doubling_late_ns_min), params.doubling_late_ns_max
    )
    if event.rtt_ns > event.rtt_min_ns + late_ns:
        flow.late_samples += 1
    elif event.rtt_ns > 0:
        flow.late_samples = 0
    if flow.late_samples >= params.doubling_samples:
        flow.doubling = 0
        return cut(flow, params, event, 0.5)  # halve: back to the window of a round trip ago
    if event.app_limited == 0:
        return flow.window_bytes + max(float(event.acked_bytes), 0.0)
    return flow.window_bytes


def heed_network(flow: Any, params: Any, event: Any, queue_ns: int, grown: float) -> Any:
    """The window for the network, from queueing delay; smaller windows have a higher target."""
    multiple_ns = min(params.target_multiple * event.rtt_min_ns, float(params.target_max_ns))
    base_ns = max(multiple_ns, float(params.target_queue_ns))
    if params.target_rtt_ns > 0:
        base_ns = float(params.target_rtt_ns)
    least = min(params.window_segments_min, 1.0)
    segments = max(flow.window_bytes / max(float(event.segment_bytes), 1.0), least)
    scaling = flow.scaling_alpha / math.sqrt(segments) - flow.scaling_beta
    target_ns = base_ns * (1.0 + min(max(scaling, 0.0), params.scaling_multiple))
    if queue_ns == NO_SAMPLE_NS or queue_ns <= target_ns:
        return flow.window_bytes + grown / max(flow.window_bytes, float(event.segment_bytes))
    whole_ns = float(queue_ns)
    if params.target_rtt_ns == 0:
        whole_ns += max(event.rtt_min_ns, 0)
    excess = (queue_ns - target_ns) / whole_ns
    return cut(flow, params, event, 1.0 - min(params.decrease_gain * excess, params.decrease_max))


def heed_host(flow: Any, params: Any, event: Any, grown: float) -> Any:
    """The window for the receiving host, from the delay that the host adds."""
    flow.round_host_ns = min(flow.round_host_ns, event.ack_delay_ns)
    host_ns = min(flow.round_host_ns, flow.last_host_ns)
    target_ns = max(float(params.host_target_ns), params.host_target_share * event.rtt_min_ns)
    alone = flow.last_host_ns == NO_SAMPLE_NS  # no cut in the first round trip: it has few samples
    if host_ns <= target_ns or alone:
        return flow.host_window_bytes + grown / max(flow.host_window_bytes, 1.0)
    if event.now_ns - flow.host_cut_ns < max(event.srtt_ns, event.rtt_min_ns):
        return flow.host_window_bytes
    flow.host_cut_ns = event.now_ns
    excess = (host_ns - target_ns) / host_ns
    share = min(params.decrease_gain * excess, params.decrease_max)
    return min(flow.host_window_bytes, flow.window_bytes) * (1.0 - share)


def on_start(flow: Any, params: Any, event: Any, result: Any) -> None:
    low = 1.0 / math.sqrt(params.scaling_segments_min)
    high = 1.0 / math.sqrt(params.scaling_segments_max)
    flow.scaling_alpha = params.scaling_multiple / (low - high)
    flow.scaling_beta = flow.scaling_alpha * high
    flow.round_queue_ns = NO_SAMPLE_NS
    flow.last_queue_ns = NO_SAMPLE_NS
    flow.round_host_ns = NO_SAMPLE_NS
    flow.last_host_ns = NO_SAMPLE_NS
    window_bytes = event.window_bytes_max / params.start_divisor
    flow.doubling = 0
    if params.start_segments > 0.0:
        window_bytes = params.start_segments * max(float(event.segment_bytes), 1.0)
    if event.hint_window_bytes > 0.0:
        window_bytes = event.hint_window_bytes
    elif event.srtt_ns >= params.long_rtt_ns:
        window_bytes = params.doubling_segments * max(float(event.segment_bytes), 1.0)
        flow.doubling = 1
    host_bytes = float(event.window_bytes_max)  # no limit until the host adds delay
    answer(flow, params, event, result, window_bytes, host_bytes)


def on_ack(flow: Any, params: Any, event: Any, result: Any) -> None:
    flow.timeouts = 0
    queue_ns = observe(flow, params, event)
    grown = 0.0  # window increase times the window, in bytes squared
    if event.app_limited == 0:
        grown = increase(flow, params, event) * event.acked_bytes
    if event.rtt_min_ns > 0 and not is_long(params, event):
        flow.doubling = 0  # the path is short
    if flow.doubling == 1:
        window_bytes = doubled(flow, params, event)
    else:
        window_bytes = heed_network(flow, params, event, queue_ns, grown)
    host_bytes = heed_host(flow, params, event, grown)
    answer(flow, params, event, result, window_bytes, host_bytes)


def on_loss(flow: Any, params: Any, event: Any, result: Any) -> None:
    observe(flow, params, event)
    flow.round_lost_bytes += event.lost_bytes
    tolerated = 0.0
    if params.loss_tolerance > 0.0:
        tolerated = max(params.loss_tolerance * flow.window_bytes, 2.0 * event.segment_bytes)
    window_bytes = flow.window_bytes
    if flow.round_lost_bytes > tolerated:
        window_bytes = cut(flow, params, event, 1.0 - params.decrease_max)
        flow.doubling = 0
    answer(flow, params, event, result, window_bytes, flow.host_window_bytes)


def on_timeout(flow: Any, params: Any, event: Any, result: Any) -> None:
    flow.timeouts += 1
    window_bytes = flow.window_bytes
    if flow.timeouts >= params.timeout_limit:
        window_bytes = 0.0  # answer() raises it to the minimum window
        flow.doubling = 0
        if is_long(params, event):
            flow.doubling = 1
        flow.late_samples = 0
    elif flow.timeouts > 1:  # on_loss has already counted the bytes of the first timeout
        window_bytes = cut(flow, params, event, 1.0 - params.decrease_max)
    answer(flow, params, event, result, window_bytes, flow.host_window_bytes)


PAPER = {
    "target_rtt_ns": 20_000,
    "scaling_multiple": 5.0,
    "scaling_segments_min": 0.1,
    "scaling_segments_max": 100.0,
    "increase_segments": 1.0,
    "loss_tolerance": 0.0,
    "window_segments_min": 0.001,
    "start_segments": 1.0,
    "filtered": 0,
    "pacing_segments_max": 0,  # the core paces windows below one segment
}

POLICY = window_policy(
    "swift",
    flow=Flow,
    params=Params,
    on_start=on_start,
    on_ack=on_ack,
    on_loss=on_loss,
    on_timeout=on_timeout,
    presets={
        "host": {},
        "paper": PAPER,
        "fabric": PAPER | {"start_segments": 16.0, "window_segments_min": 0.1},
    },
    promises=Promises(
        source="Kumar et al., SIGCOMM 2020, section 3",
        signals=("rtt", "host_delay", "loss", "timeout"),
        state_bytes_max=128,
        growth_segments=(3.5, 4.5),
        cut_on=("rtt",),
        cut_factor=(0.5, 0.99),
        cuts_per_rtt=1,
        fairness_min=0.6,  # not higher, because the large minimum window keeps shares unequal
        convergence_rtts=40,
        utilization_min=0.9,
    ),
)
