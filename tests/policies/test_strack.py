"""Tests strack, interpreted, branch by branch of algorithm 4 of its paper."""

from __future__ import annotations

import pytest

from congestion.registry import find

from .rig import SEGMENT, US, Rig

BASE_US = 10
NETWORK = {
    "segment_bytes": SEGMENT,
    "link_bytes_per_s": 12_500_000_000,
    "window_bytes_max": 1 << 24,
    "rtt_min_ns": BASE_US * US,
    "srtt_ns": BASE_US * US,
}
WINDOW = 16 * SEGMENT


class Flow:
    def __init__(self, **params: float) -> None:
        policy = find("window", "strack")
        self.rig = Rig(policy)
        for field, value in {**policy.presets["paper"], **params}.items():
            self.rig.params[field] = value
        self.rig.call("on_start", **(NETWORK | {"hint_window_bytes": WINDOW}))

    def ack(self, now_us: int, delay_us: int, marked: int = 0, acked: int = 16) -> float:
        row = NETWORK | {
            "now_ns": now_us * US,
            "rtt_ns": (BASE_US + delay_us) * US,
            "acked_bytes": acked * SEGMENT,
            "acked_segments": acked,
            "ecn_segments": marked,
        }
        return float(self.rig.call("on_ack", **row)["window_bytes"])


@pytest.mark.parametrize(
    ("delay_us", "segments"),
    [(0, 4.0), (5, 2.0), (10, 0.0), (15, 0.0), (20, 0.0), (21, 1.0)],
    ids=["empty", "half", "target", "above", "twice", "late"],
)
def test_strack__without_marks_it_grows_by_the_room_or_by_beta(
    delay_us: int, segments: float
) -> None:
    """The target is one round trip, 10 us; a window is acknowledged at once."""
    flow = Flow()
    assert flow.ack(100, delay_us) == pytest.approx(WINDOW + segments * SEGMENT)


def test_strack__marks_cut_by_the_average_delay_and_not_by_this_one() -> None:
    flow = Flow(smoothing_per_byte=1.0)
    assert flow.ack(100, 20, marked=16) == pytest.approx(WINDOW * (1 - 0.8 * 0.5))
    low = Flow()
    assert low.ack(100, 90, marked=16) == WINDOW  # the average is still low: a matter of paths


def test_strack__cuts_once_in_a_round_trip_and_by_half_at_most() -> None:
    flow = Flow(smoothing_per_byte=1.0)
    assert flow.ack(100, 90, marked=16) == WINDOW / 2
    assert flow.ack(105, 90, marked=16) == WINDOW / 2
    assert flow.ack(111, 90, marked=16) == WINDOW / 4


def test_strack__a_collapse_leaves_what_was_delivered() -> None:
    flow = Flow()
    flow.ack(100, 0, acked=1)
    flow.rig.call("on_loss", **(NETWORK | {"now_ns": 110 * US, "lost_bytes": SEGMENT}))
    window = flow.ack(130, 50, acked=2)
    assert window == 2 * SEGMENT


def test_strack__losses_take_their_bytes() -> None:
    flow = Flow()
    lost = NETWORK | {"now_ns": 100 * US, "lost_bytes": 5 * SEGMENT, "lost_segments": 5}
    assert flow.rig.call("on_loss", **lost)["window_bytes"] == WINDOW - 5 * SEGMENT
