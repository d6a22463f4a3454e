"""A window like TCP Reno's: one segment more per round trip, half after a loss or a mark."""

from congestion.api import record, window_policy

Flow = record(window_bytes=float, last_cut_ns=int)
Params = record(window_bytes_min=131_072.0, factor=0.5)


def start(flow, params, event, result):
    flow.window_bytes = event.hint_window_bytes or event.window_bytes_max / 8.0
    result.window_bytes = flow.window_bytes


def grow(flow, params, event, result):
    flow.window_bytes += event.segment_bytes * event.acked_bytes / flow.window_bytes
    result.window_bytes = flow.window_bytes
    if event.ecn_segments > 0:
        cut(flow, params, event, result)


def cut(flow, params, event, result):
    if event.now_ns - flow.last_cut_ns > event.srtt_ns:  # at most one cut per round trip
        flow.window_bytes = max(flow.window_bytes * params.factor, params.window_bytes_min)
        flow.last_cut_ns = event.now_ns
    result.window_bytes = flow.window_bytes


POLICY = window_policy(
    "mine", flow=Flow, params=Params, on_start=start, on_ack=grow, on_loss=cut, on_timeout=cut
)
