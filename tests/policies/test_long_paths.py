"""Simulates a flow on a path with a long RTT: it fills the path, without needless resends."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from congestion.registry import find
from transport import native
from transport.policies import dumbbell

from .rig import SEGMENT, US, Rig

# The link: 200 Mb/s with a queue that drains in 40 ms, like a leased line.
BYTES_PER_S = 25_000_000
QUEUE_BYTES = 1 << 20
SEGMENT_BYTES = 1_472
PAYLOAD_SHARE = 1_408 / SEGMENT_BYTES
DIRECTORIES = [str(native.POLICY_DIRECTORY)]


def run(window: str, rtt_ns: int, seconds: int) -> dumbbell.Report:
    """Simulates one flow alone on the link, with ten trace samples."""
    limit_ns = seconds * 1_000_000_000
    plan = dumbbell.Plan(
        paths=[
            dumbbell.Link(
                bytes_per_s=BYTES_PER_S, delay_ns=rtt_ns // 2, queue_bytes_max=QUEUE_BYTES
            )
        ],
        flows=[dumbbell.Flow(from_host=0, to_host=1, message_bytes=256 << 10)],
        ahead=64,
        segment_bytes=SEGMENT_BYTES,
        limit_ns=limit_ns,
        trace_ns=limit_ns // 10,
    )
    for family, name in (("window", window), ("path", "power_of_two"), ("loss", "rack")):
        plan.choose(family, name, DIRECTORIES)
    return dumbbell.run(plan)


@pytest.mark.parametrize("window", ["swift", "cubic"])
@pytest.mark.parametrize(("rtt_ms", "seconds"), [(2, 3), (20, 3), (200, 30)])
def test_long_path__is_filled_and_nothing_is_sent_twice(
    window: str, rtt_ms: int, seconds: int
) -> None:
    report = run(window, rtt_ms * 1_000_000, seconds)
    delivered = report.trace.delivered_bytes[:, 0]
    rate = np.diff(delivered[3:]) / (seconds / 10)
    share = rate.mean() / (BYTES_PER_S * PAYLOAD_SHARE)
    assert share >= 0.8, f"{share:.2f} of the path"
    sent = report.flows[0].counters
    assert sent["spurious_resends"] <= sent["segments_sent"] / 100
    assert not report.violation


def test_long_path__silence_is_not_taken_for_loss_before_the_first_answer() -> None:
    """No resends before the first answer, because the first timer is set from an estimated RTT."""
    report = run("fixed", 200_000_000, 1)
    sent = report.flows[0].counters
    assert sent["segments_sent"] > 1_000
    assert sent["spurious_resends"] == 0


MS = 1_000 * US


def long_swift(rtt_ns: int = 20 * MS) -> Rig:
    """A flow of swift that doubles its window, because the control socket measured a long RTT."""
    rig = Rig(find("window", "swift"))
    rig.call("on_start", window_bytes_max=1 << 26, srtt_ns=rtt_ns)
    return rig


def long_ack(rig: Rig, now_ns: int, rtt_ns: int, rtt_min_ns: int = 20 * MS) -> Mapping[str, Any]:
    more = {"srtt_ns": rtt_ns, "rtt_min_ns": rtt_min_ns, "window_bytes_max": 1 << 26}
    acked = {"acked_bytes": 100 * SEGMENT, "acked_segments": 100}
    return rig.call("on_ack", now_ns=now_ns, rtt_ns=rtt_ns, **more, **acked)


def test_swift__doubling_ends_where_the_path_proves_short() -> None:
    rig = long_swift()
    for turn in range(200):
        answer = long_ack(rig, (100 + turn) * MS, 3 * MS, rtt_min_ns=20 * US)
    assert answer["window_bytes"] < 32 * SEGMENT


def test_swift__an_overshoot_is_answered_once() -> None:
    rig = long_swift()
    window = 0.0
    for turn in range(20):
        window = long_ack(rig, 100 * MS + turn * MS, 20 * MS)["window_bytes"]
    for turn in range(8):
        after = long_ack(rig, 120 * MS + turn * US, 30 * MS)["window_bytes"]
    assert 0.4 * window < after < 0.8 * window
    lost = {"lost_bytes": 200 * SEGMENT, "lost_segments": 200, "window_bytes_max": 1 << 26}
    times = {"srtt_ns": 25 * MS, "rtt_min_ns": 20 * MS}
    # After a cut, losses cause another cut only when 1.25 round trips of 30 ms have passed.
    for at_ms, cut in ((150, False), (165, True)):
        again = rig.call("on_loss", now_ns=at_ms * MS, **lost, **times)["window_bytes"]
        assert (again < after) == cut


def test_swift__paces_long_paths_at_any_window() -> None:
    rig = long_swift()
    for turn in range(20):
        answer = long_ack(rig, 100 * MS + turn * MS, 20 * MS)
    assert answer["window_bytes"] > 1_000 * SEGMENT
    assert answer["pacing_bytes_per_s"] == pytest.approx(2 * answer["window_bytes"] * 50)
