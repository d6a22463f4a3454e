"""The templates of `weft policy new`: a small working policy for each family."""

_WINDOW = '''"""The window of a flow: say how it is computed, and name the paper and section."""

from congestion.api import record, window_policy
from congestion.promises import Promises

Flow = record(window_bytes=float, last_cut_ns=int)  # fields start at 0; names end in the unit
Params = record(increase_segments=1.0, factor=0.5)  # an operator may set these


def answer(flow, event, result):
    least = 2.0 * event.segment_bytes
    most = max(float(event.window_bytes_max), least)
    flow.window_bytes = min(max(flow.window_bytes, least), most)
    result.window_bytes = flow.window_bytes


def on_start(flow, params, event, result):
    flow.window_bytes = event.hint_window_bytes
    if not flow.window_bytes > 0.0:
        flow.window_bytes = event.window_bytes_max / 8.0
    answer(flow, event, result)


def cut(flow, params, event):
    if event.now_ns - flow.last_cut_ns > event.srtt_ns:  # once a round trip
        flow.window_bytes *= params.factor
        flow.last_cut_ns = event.now_ns


def on_ack(flow, params, event, result):
    if event.ecn_segments > 0:
        cut(flow, params, event)
    elif event.app_limited == 0:
        share = event.acked_bytes / max(flow.window_bytes, 1.0)
        flow.window_bytes += params.increase_segments * event.segment_bytes * share
    answer(flow, event, result)


def on_loss(flow, params, event, result):
    cut(flow, params, event)
    answer(flow, event, result)


POLICY = window_policy(
    "{name}",
    flow=Flow,
    params=Params,
    on_start=on_start,
    on_ack=on_ack,
    on_loss=on_loss,
    on_timeout=on_loss,
    promises=Promises(
        source="say which paper, and which section",
        signals=("ecn", "loss", "timeout"),
        state_bytes_max=16,
        growth_segments=(0.9, 1.1),  # per round trip; weft policy check measures it
        cut_on=("loss", "ecn"),
        cut_factor=(0.45, 0.55),
        cuts_per_rtt=1,
    ),
)
'''

_PATH = '''"""The path of the next burst: say how it is chosen, and name the paper and section."""

from congestion.api import ECN, TIMEOUT, path_policy, record
from congestion.promises import Promises

Flow = record(turn=int)  # one per peer
Path = record(rest_until_ns=int)  # one per path, after usable, inflight_bytes and rtt_ns
Params = record(burst_bytes=65_536, rest_ns=1_000_000)


def bar(paths, event, index):
    """0: usable; 1: resting after a mark or timeout; 2: avoid for this resend; 3: down."""
    if paths[index].usable == 0:
        return 3
    if event.is_resend != 0 and index == event.avoid_path:
        return 2
    if event.now_ns < paths[index].rest_until_ns:
        return 1
    return 0


def pick(flow, paths, params, event, result):
    chosen = 0
    least = 4
    for step in range(len(paths)):
        index = (flow.turn + step) % len(paths)
        barred = bar(paths, event, index)
        if barred < least:
            least = barred
            chosen = index
    flow.turn = chosen + 1
    result.path = chosen
    result.burst_bytes = params.burst_bytes


def on_feedback(flow, paths, params, event, result):
    path = paths[min(max(event.path, 0), len(paths) - 1)]
    if event.kind == TIMEOUT or event.kind == ECN:
        path.rest_until_ns = event.now_ns + params.rest_ns
    result.path = event.path
    result.burst_bytes = params.burst_bytes


POLICY = path_policy(
    "{name}",
    flow=Flow,
    path=Path,
    params=Params,
    pick=pick,
    on_feedback=on_feedback,
    promises=Promises(
        source="say which paper, and which section",
        signals=("ecn", "timeout"),
        state_bytes_max=40,
        spreads=True,
    ),
)
'''

_LOSS = '''"""The segments that are lost: say how they are found, and name the paper and section."""

from congestion.api import loss_policy, record
from congestion.promises import Promises

Params = record(patience_rtts=1.5)


def on_ack(flow, paths, params, event, result):
    """A segment is lost if it is older than patience_rtts and a later one was acknowledged."""
    patience_ns = int(params.patience_rtts * min(max(event.srtt_ns, 0), 1 << 40))
    cutoff_ns = min(event.newest_acked_sent_ns, event.now_ns - patience_ns)
    result.lost_below_seq = -1
    result.lost_sent_before_ns = max(cutoff_ns, -1)
    result.next_check_ns = -1  # no check before the retransmission timeout
    result.probe = 0


def on_timer(flow, paths, params, event, result):
    """After a timeout, everything in flight on the path is lost."""
    waited_ns = event.now_ns - max(event.oldest_inflight_sent_ns, 0)
    result.lost_below_seq = -1
    result.lost_sent_before_ns = -1
    if event.oldest_inflight_sent_ns >= 0 and waited_ns >= event.rto_ns:
        result.lost_sent_before_ns = event.now_ns
    result.next_check_ns = -1
    result.probe = 0


POLICY = loss_policy(
    "{name}",
    params=Params,
    on_ack=on_ack,
    on_timer=on_timer,
    promises=Promises(
        source="say which paper, and which section",
        signals=("loss", "timeout"),
        repairs_rtts=2.0,
    ),
)
'''

_CREDIT = '''"""The credit of a sender: say how it is computed, and name the paper and section."""

from congestion.api import credit_policy, record
from congestion.promises import Promises

Port = record(marked=float)  # shared by the flows of a port
Params = record(window_bytes=4 << 20, window_ns=400_000, share_min=0.25, tick_ns=100_000)


def grant(flow, port, params, event, result):
    mark = 1.0 if event.ecn_segments > 0 else 0.0
    port.marked += 0.0625 * (mark - port.marked)
    flows = min(max(event.active_flows, 1), 1 << 20)
    share = max(1.0 - port.marked, params.share_min)
    window = float(params.window_bytes)
    if event.link_bytes_per_s > 0:  # else the link's speed is unknown
        window = event.link_bytes_per_s * 1e-9 * params.window_ns
    ahead = max(int(min(window, 1e15) * share / flows), 4 * event.segment_bytes)
    wanted = min(event.demand_bytes, event.received_bytes + ahead)
    result.granted_bytes = max(wanted, event.granted_bytes)
    result.next_tick_ns = -1
    if result.granted_bytes < event.demand_bytes:
        result.next_tick_ns = event.now_ns + params.tick_ns


POLICY = credit_policy(
    "{name}",
    port=Port,
    params=Params,
    on_start=grant,
    on_demand=grant,
    on_tick=grant,
    promises=Promises(
        source="say which paper, and which section", signals=("credit", "ecn"), state_bytes_max=8
    ),
)
'''

TEMPLATES = {"window": _WINDOW, "path": _PATH, "loss": _LOSS, "credit": _CREDIT}
