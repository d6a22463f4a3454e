"""Whether a flow fills a path as long as a continent, in virtual time, and sends nothing twice."""

import numpy as np
import pytest

from transport import native

# 200 Mb/s, with a queue of 40 ms: what a rented line has.
BYTES_PER_S = 25_000_000
QUEUE_BYTES = 1 << 20
SEGMENT_BYTES = 1_472
PAYLOAD_SHARE = 1_408 / SEGMENT_BYTES
DIRECTORIES = [str(native.POLICY_DIRECTORY)]


def run(window: str, rtt_ns: int, seconds: int) -> native.ArenaReport:
    """One flow alone; a trace line a tenth of the time."""
    plan = native.ArenaPlan()
    link = native.LinkConfig(
        bytes_per_s=BYTES_PER_S, delay_ns=rtt_ns // 2, queue_bytes_max=QUEUE_BYTES
    )
    plan.paths = [link]
    plan.flows = [native.FlowPlan(from_host=0, to_host=1, message_bytes=256 << 10, ahead=64)]
    plan.segment_bytes = SEGMENT_BYTES
    plan.window_bytes_max = 16 << 20
    plan.limit_ns = seconds * 1_000_000_000
    plan.trace_ns = plan.limit_ns // 10
    for family, name in (("window", window), ("path", "power_of_two"), ("loss", "rack")):
        plan.choose(family, name, DIRECTORIES)
    return native.run_arena(plan)


@pytest.mark.parametrize("window", ["swift", "cubic"])
@pytest.mark.parametrize(("rtt_ms", "seconds"), [(2, 3), (20, 3), (200, 30)])
def test_long_path__is_filled_and_nothing_is_sent_twice(
    window: str, rtt_ms: int, seconds: int
) -> None:
    report = run(window, rtt_ms * 1_000_000, seconds)
    delivered = np.array(report.trace.delivered_bytes, np.int64)
    rate = np.diff(delivered[3:]) / (seconds / 10)
    share = rate.mean() / (BYTES_PER_S * PAYLOAD_SHARE)
    assert share >= 0.8, f"{share:.2f} of the path"
    sent = report.flows[0].sent
    assert sent.spurious_resends <= sent.segments_sent / 100
    assert not report.violation


def test_long_path__silence_is_not_taken_for_loss_before_the_first_answer() -> None:
    """The timer of the first flight knows about how long an answer takes."""
    report = run("fixed", 200_000_000, 1)
    sent = report.flows[0].sent
    assert sent.segments_sent > 1_000
    assert sent.spurious_resends == 0
