"""Decides which random events a policy is tried on: plausible ones, edges included, from a seed.

Never touches a policy.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np

from congestion.api import PATH_HEAD, Policy

SEGMENT_BYTES = 8_192


class EventSource:
    """A stream of events for one family, with a clock that moves on."""

    def __init__(self, policy: Policy, seed: int, paths: int = 8) -> None:
        self.policy = policy
        self.random = random.Random(seed)
        self.paths = paths
        self.now_ns = 1_000_000_000
        self.received_bytes = self.demand_bytes = 0
        self.event = policy.family.event.zeros()

    def next(self, hook: str, result: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """The next event for a hook; `result` is what the policy answered last."""
        draw = self.random
        self.now_ns += draw.choice((0, 100, 10_000, 300_000, 20_000_000))
        self.received_bytes += draw.choice((0, SEGMENT_BYTES, 64 * SEGMENT_BYTES))
        self.demand_bytes = max(self.demand_bytes + draw.choice((0, 1 << 20)), self.received_bytes)
        values = self.measured() | self.placed()
        values["kind"] = self.policy.family.hooks.index(hook) - 1
        if hook == "on_feedback":
            values["kind"] = draw.randint(1, 4)
        if "granted_bytes" in self.event.dtype.names:
            values["granted_bytes"] = int(result["granted_bytes"][0])
        for name in self.event.dtype.names:
            self.event[name] = values[name]
        return self.event

    def measured(self) -> dict[str, float]:
        """Times and amounts."""
        draw = self.random
        rtt_ns = draw.choice((0, draw.randint(20_000, 60_000), draw.randint(20_000, 3_000_000)))
        return {
            "now_ns": self.now_ns,
            "path": draw.randrange(self.paths),
            "n_paths": self.paths,
            "segment_bytes": SEGMENT_BYTES,
            "rtt_ns": rtt_ns,
            "rtt_min_ns": 20_000,
            "srtt_ns": draw.choice((0, 40_000, 250_000)),
            "rttvar_ns": draw.randint(0, 100_000),
            "rto_ns": draw.randint(1_000_000, 8_000_000),
            "ack_delay_ns": draw.randint(0, 9_000),
            "acked_segments": draw.randint(0, 64),
            "ecn_segments": draw.choice((0, 0, 0, 3)),
            "acked_bytes": draw.randint(0, 64) * SEGMENT_BYTES,
            "lost_segments": draw.randint(0, 4),
            "lost_bytes": draw.choice((0, 1, 90)) * SEGMENT_BYTES,
            "inflight_bytes": draw.randint(0, 1 << 22),
            "window_bytes_max": 1 << 24,
            "window_bytes": 1 << 20,
            "delivered_bytes": self.received_bytes,
            "app_limited": draw.choice((0, 0, 1)),
            "rand": draw.random(),
            "rand2": draw.random(),
            "hint_window_bytes": draw.choice((0.0, 123_456.0)),
        }

    def placed(self) -> dict[str, float]:
        """Places, sequence numbers and credit."""
        draw = self.random
        sent_ns = self.now_ns - draw.randint(0, 1_000_000)
        return {
            "bytes": SEGMENT_BYTES,
            "ready_bytes": draw.randint(0, 1 << 20),
            "is_resend": draw.choice((0, 0, 1)),
            "avoid_path": draw.randint(-1, self.paths - 1),
            "newest_acked_sent_ns": draw.choice((-1, sent_ns)),
            "oldest_inflight_sent_ns": draw.choice((-1, sent_ns - draw.randint(0, 500_000))),
            "newest_inflight_sent_ns": sent_ns,
            "highest_acked_seq": draw.randint(0, 1 << 30),
            "cumulative_seq": draw.randint(0, 1 << 30),
            "inflight_segments": draw.randint(0, 999),
            "sacked_segments": draw.randint(0, 999),
            "probed_sent_ns": draw.choice((-1, sent_ns)),
            "flow": draw.choice((-1, draw.randint(0, (1 << 31) - 1))),
            "spurious_segments": draw.choice((0, 0, 0, 2)),
            "demand_bytes": self.demand_bytes,
            "received_bytes": self.received_bytes,
            "active_flows": draw.randint(0, 40),
            "link_bytes_per_s": draw.choice((0, 12_500_000_000)),
        }

    def heads(self) -> np.ndarray[Any, Any]:
        """What the core says of each path: mostly usable, never all dead for long."""
        draw = self.random
        heads = PATH_HEAD.zeros(self.paths)
        for index in range(self.paths):
            head = (draw.choice((0, 1, 1, 1)), draw.randint(0, 1 << 20), draw.randint(0, 90_000))
            heads[index] = head
        return heads
