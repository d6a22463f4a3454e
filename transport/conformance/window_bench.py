"""A test harness for one window policy: round trips with acknowledgments, marks and losses.

The policy runs alone; the harness calls it as the core would.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from congestion.api import Policy
from transport.compiler.library import Library
from transport.conformance.native_side import Guarded, NativeSide
from transport.conformance.scenes import WINDOW_SEGMENTS_MIN
from transport.ground.units import time_text

SEGMENT_BYTES = 4_096
RTT_NS = 100_000
WINDOW_BYTES_MAX = 64 << 20
START_NS = 1_000_000_000_000
LONG_RUN_BYTES = 1 << 40  # bytes that an old flow has delivered
START, ACK, LOSS, TIMEOUT, TIMER, SEND = range(6)


@dataclass
class Weather:
    """The congestion signals of a round trip."""

    ecn: bool = False
    ecn_share: float = 0.0  # share of segments that are marked, evenly spaced, unless ecn is True
    loss_share: float = 0.0  # share of the window that is lost
    queue_rtts: float = 0.0  # queueing delay, as a multiple of the minimum RTT
    paced: bool = (
        False  # True: besides the window, the policy's pacing rate limits the bytes in flight
    )


class WindowBench:
    """A flow that always has data to send, on a path whose marks, losses and delay are given."""

    def __init__(self, policy: Policy, library: Library, rtt_ns: int = RTT_NS) -> None:
        self.side = NativeSide(policy, library)
        self.event = Guarded(policy.family.event.dtype, 1)
        self.result = Guarded(policy.family.result.dtype, 1)
        self.zeros = dict.fromkeys(policy.family.event.dtype.names or (), 0)
        self.rtt_ns = rtt_ns
        self.srtt_ns = float(rtt_ns)
        self.now_ns = START_NS
        self.delivered_bytes = 0
        self.window_bytes = 0.0
        self.pacing_bytes_per_s = 0.0
        self.failed = False
        self.timer_ns = 0  # when the policy wants on_timer; 0: never
        self._unmarked = 0.0
        self.windows: list[float] = []  # the window after each event, clamped as in the core
        self.answers: list[float] = []  # the policy's answers after each event, not clamped
        self.in_flight: list[float] = []  # effective_bytes after each event
        self.shortfall_bytes = 0.0  # by how much the least answer was below the core's minimum
        self.path = 0
        self.app_limited = 0

    def start(self, hint_bytes: float = 0.0) -> float:
        self.call(START, -1, hint_window_bytes=hint_bytes)
        return self.window_bytes

    def take_over(self, hint_bytes: float) -> float:
        """Starts the policy on an old flow with a known RTT, and returns its window."""
        self.delivered_bytes = LONG_RUN_BYTES
        live = {"rtt_min_ns": self.rtt_ns, "srtt_ns": int(self.srtt_ns)}
        self.window_bytes = hint_bytes  # the replaced policy's window, which is fully in flight
        self.call(START, -1, hint_window_bytes=hint_bytes, **live)
        return self.window_bytes

    @property
    def effective_bytes(self) -> float:
        """Bytes in flight: the window, or the pacing rate times an RTT if that is less."""
        paced = self.pacing_bytes_per_s * self.srtt_ns * 1e-9
        return min(self.window_bytes, paced) if paced > 0.0 else self.window_bytes

    def call(self, hook: int, kind: int, **fields: Any) -> None:
        started = hook != START
        given = self.zeros | {
            "now_ns": self.now_ns,
            "kind": kind,
            "path": self.path,
            "segment_bytes": SEGMENT_BYTES,
            "rtt_min_ns": self.rtt_ns if started else 0,
            "srtt_ns": int(self.srtt_ns) if started else 0,
            "rtt_ns": int(self.srtt_ns) if started else 0,
            "inflight_bytes": int(self.window_bytes),
            "delivered_bytes": self.delivered_bytes,
            "window_bytes": int(self.window_bytes),
            "window_bytes_max": WINDOW_BYTES_MAX,
            "app_limited": self.app_limited,
            "rand": 0.5,
        }
        self.event.records[0] = tuple((given | fields).values())
        self.result.records[0] = (int(self.window_bytes), 0.0, 0.0, 0)
        status = self.side.witnessed(hook, self.event, self.result)
        self.failed = self.failed or status != 0
        answer, self.pacing_bytes_per_s, allowed, timer_ns = self.result.records[0].item()
        if not math.isfinite(answer + self.pacing_bytes_per_s + allowed):
            self.failed = True  # the core would replace the policy by `fixed`
            self.side.note_unfinite(hook, answer, self.pacing_bytes_per_s)
            answer = self.pacing_bytes_per_s = 0.0
        if timer_ns != 0:
            self.timer_ns = max(timer_ns, 0)
        # Clamp the window as the core does.
        self.answers.append(answer)
        if not 0.0 < allowed < WINDOW_SEGMENTS_MIN:
            allowed = WINDOW_SEGMENTS_MIN
        self.shortfall_bytes = max(self.shortfall_bytes, allowed * SEGMENT_BYTES - answer)
        least = allowed * SEGMENT_BYTES
        self.window_bytes = min(max(answer, least), float(WINDOW_BYTES_MAX))
        self.windows.append(self.window_bytes)
        self.in_flight.append(self.effective_bytes)

    def round(self, segments_an_ack: int = 8, weather: Weather | None = None) -> None:
        """Plays one round trip: what is in flight at its start is acknowledged, marked or lost."""
        weather = weather or Weather()
        rtt_ns = int(self.rtt_ns * (1.0 + weather.queue_rtts))
        if weather.queue_rtts:
            self.srtt_ns = float(rtt_ns)  # a standing queue: earlier RTT samples had the same delay
        wanted = self.effective_bytes if weather.paced else self.window_bytes
        in_flight = max(int(wanted) // SEGMENT_BYTES, 1) * SEGMENT_BYTES
        share = int(in_flight * weather.loss_share) // SEGMENT_BYTES * SEGMENT_BYTES
        lost = max(share, SEGMENT_BYTES) if weather.loss_share else 0
        acks = max(in_flight // SEGMENT_BYTES // segments_an_ack, 1)
        begin_ns, left, left_lost = self.now_ns, in_flight - lost, lost
        self.send(in_flight)
        for ack in range(acks):
            self.now_ns = begin_ns + rtt_ns * ack // acks + rtt_ns // acks // 2
            self.srtt_ns += (rtt_ns - self.srtt_ns) / 8
            self.run_timer()
            part = left // (acks - ack) // SEGMENT_BYTES * SEGMENT_BYTES
            part = left if ack == acks - 1 else part
            left -= part
            self.ack(part, rtt_ns, 1.0 if weather.ecn else weather.ecn_share)
            gone = left_lost // (acks - ack) // SEGMENT_BYTES * SEGMENT_BYTES
            gone = left_lost if ack == acks - 1 else gone
            left_lost -= gone
            if gone:
                self.call(LOSS, 1, lost_bytes=gone, lost_segments=gone // SEGMENT_BYTES)
        self.now_ns = begin_ns + rtt_ns

    def send(self, sent_bytes: int) -> None:
        if SEND in self.side.policy.hook_numbers:
            self.call(SEND, 4, sent_bytes=sent_bytes, sent_segments=sent_bytes // SEGMENT_BYTES)

    def run_timer(self) -> None:
        if TIMER in self.side.policy.hook_numbers and 0 < self.timer_ns <= self.now_ns:
            self.timer_ns = 0
            self.call(TIMER, 3)

    def ack(self, acked_bytes: int, rtt_ns: int, marked_share: float) -> None:
        segments = acked_bytes // SEGMENT_BYTES
        self.delivered_bytes += acked_bytes
        if segments == 0:
            return
        self.call(
            ACK,
            0,
            rtt_ns=rtt_ns,
            acked_bytes=acked_bytes,
            acked_segments=segments,
            ecn_segments=self.marked(segments, marked_share),
        )

    def marked(self, segments: int, share: float) -> int:
        """The number of marked segments; the fraction is carried over to the next call."""
        self._unmarked += segments * share
        whole = min(int(self._unmarked), segments)
        self._unmarked -= whole
        return whole

    def age(self) -> None:
        """Makes the flow a week older, with a petabyte more delivered, and on another path."""
        self.now_ns += 7 * 86_400 * 1_000_000_000
        self.delivered_bytes += 1 << 50
        self.path = 5

    def timeout(self) -> None:
        self.now_ns += max(1_000_000, 2 * self.rtt_ns)
        gone = min(int(self.window_bytes), 16 * SEGMENT_BYTES)
        self.call(LOSS, 1, lost_bytes=gone, lost_segments=gone // SEGMENT_BYTES)
        self.call(TIMEOUT, 2)

    def where(self) -> str:
        """The path as text, and the virtual time since the start."""
        since = time_text(self.now_ns - START_NS)
        return f"one path without a network, RTT {time_text(self.rtt_ns)}; after {since}"

    @property
    def segments(self) -> float:
        return self.window_bytes / SEGMENT_BYTES
