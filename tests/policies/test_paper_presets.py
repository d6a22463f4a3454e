"""Tests what only presets `paper` do, interpreted: HyStart++ in cubic, bytes in dctcp."""

from __future__ import annotations

import pytest

from congestion.registry import find

from .rig import SEGMENT, Rig

MS = 1_000_000
RTT_MS = 40


class Flow:
    """A flow of cubic in slow start, whose acknowledgments bring eight RTTs in each round trip."""

    def __init__(self, preset: str) -> None:
        policy = find("window", "cubic")
        self.rig = Rig(policy)
        for field, value in policy.presets[preset].items():
            self.rig.params[field] = value
        self.fields = {
            "segment_bytes": SEGMENT,
            "window_bytes_max": 1 << 30,
            "rtt_min_ns": RTT_MS * MS,
            "srtt_ns": RTT_MS * MS,
        }
        self.window = float(self.rig.call("on_start", **self.fields)["window_bytes"])
        self.now_ms = 1_000
        self.delivered = 0

    def round(self, rtt_ms: float) -> float:
        """By how much the window grows in a round trip, as a share of it."""
        before, part = self.window, self.window / 8
        for _ in range(8):
            self.now_ms += RTT_MS // 8
            self.delivered += int(part)
            row = self.fields | {
                "now_ns": self.now_ms * MS,
                "rtt_ns": int(rtt_ms * MS),
                "srtt_ns": int(rtt_ms * MS),
                "acked_bytes": int(part),
                "acked_segments": 1,
                "delivered_bytes": self.delivered,
                "inflight_bytes": int(self.window),
            }
            self.window = float(self.rig.call("on_ack", **row)["window_bytes"])
        return self.window / before


def test_hystart__doubles_while_round_trips_stay_as_they_were() -> None:
    flow = Flow("paper")
    assert all(1.95 < flow.round(RTT_MS) < 2.05 for _ in range(6))


def test_hystart__grows_by_a_quarter_when_they_get_longer_and_stops_after_five() -> None:
    """The step is an eighth of the last round trip, 5 ms of 40."""
    flow = Flow("paper")
    for _ in range(3):
        flow.round(RTT_MS)
    assert flow.round(RTT_MS + 4) > 1.9
    growth = [flow.round(RTT_MS + 20) for _ in range(8)]
    assert 1.0 < min(growth[1:4]) <= max(growth[1:4]) < 1.3
    assert growth[-1] < 1.1  # congestion avoidance
    assert flow.rig.state("threshold_bytes") < flow.window * 1.01


def test_hystart__goes_on_when_the_delay_goes_away() -> None:
    flow = Flow("paper")
    for rtt_ms in (RTT_MS, RTT_MS, RTT_MS, RTT_MS + 20, RTT_MS + 20):
        flow.round(rtt_ms)
    assert flow.rig.state("slow_rounds") > 0
    flow.round(RTT_MS)
    assert flow.rig.state("slow_rounds") == 0
    assert flow.round(RTT_MS) > 1.9


def test_hystart__the_defaults_do_not_look_at_delay() -> None:
    flow = Flow("host")
    assert all(1.95 < flow.round(RTT_MS * (1 + step)) < 2.05 for step in range(6))


def test_dctcp__paper_weighs_marks_by_bytes() -> None:
    """One marked full segment and one short unmarked one: more than half of the bytes."""
    policy = find("window", "dctcp")
    fields = {"segment_bytes": SEGMENT, "srtt_ns": MS // 10, "window_bytes_max": 1 << 24}
    for preset, share in (("paper", 9_000 / 10_000), ("host", 0.5)):
        rig = Rig(policy)
        for field, value in policy.presets[preset].items():
            rig.params[field] = value
        rig.call("on_start", window_bytes_max=1 << 24, hint_window_bytes=100.0 * SEGMENT)
        for marked, acked in ((1, 9_000), (0, 1_000)):
            row = {"acked_bytes": acked, "acked_segments": 1, "ecn_segments": marked}
            rig.call("on_ack", **(fields | row | {"now_ns": MS // 100}))
        alpha = rig.state("alpha")
        rig.call("on_ack", **(fields | {"now_ns": MS}))
        assert rig.state("alpha") == pytest.approx(alpha + (share - alpha) / 16)
