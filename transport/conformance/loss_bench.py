"""A test harness for one loss policy: segments sent at a steady pace, some lost or late.

The policy runs alone; the harness calls it and applies its answers as the core would.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field

from congestion.api import Policy
from transport.compiler.library import Library
from transport.conformance.native_side import Guarded, NativeSide

START, ACK, TIMER = 0, 1, 2
RTT_NS = 100_000
GAP_NS = RTT_NS // 32  # time between two segments, so that 32 are in flight
RTO_NS = 1_000_000
# A segment in flight for this many RTOs counts as lost, whatever the policy says
# (kBackstopTimeouts of native/core/loss_control.cc).
BACKSTOP = 4
CHECK_NS_MIN = 10_000
SEGMENT_BYTES = 4_096
NEVER = 1 << 62
START_NS = 1_000_000_000_000
PROBE = -1  # in place of the sequence number of a segment


@dataclass
class Segment:
    """One segment and its retransmissions."""

    seq: int
    sent_ns: int
    first_ns: int
    verdicts: list[int] = field(default_factory=list)  # times at which it was declared lost
    # Segments delivered beyond the first missing one when this segment was first declared lost.
    beyond: int = 0
    acked: bool = False


class LossBench:
    """Simulates a path. `late_ns(seq)`: delay of an acknowledgment beyond an RTT; None: lost."""

    def __init__(
        self,
        policy: Policy,
        library: Library,
        late_ns: Callable[[int], int | None],
        *,
        window_segments: int = 64,
        rto_ns: int = RTO_NS,
        dead_ns: int = NEVER,
        probes_return: bool = True,
    ) -> None:
        """From `dead_ns` after the start on, the path drops everything that is sent."""
        self.probes_return = probes_return
        self.window_segments, self.rto_ns = window_segments, rto_ns
        self.timers = 0
        self.probes: list[int] = []  # times at which the policy asked for a probe
        self.probes_back_ns = -1
        self.probed_ns = -1  # send time of the newest probe that returned
        self.side = NativeSide(policy, library)
        self.event = Guarded(policy.family.event.dtype, 1)
        self.result = Guarded(policy.family.result.dtype, 1)
        self.zeros = dict.fromkeys(policy.family.event.dtype.names or (), 0)
        self.late_ns = late_ns
        self.now_ns = START_NS
        self.dead_from_ns = START_NS + dead_ns
        self.segments: list[Segment] = []
        self.order: list[int] = []  # sequence numbers in flight, by send time
        self.due: list[tuple[int, int, int]] = []  # acknowledgments: arrival time, seq, send time
        self.check_ns = NEVER
        self.newest_acked_ns = -1
        self.highest_acked = self.cumulative = self.acked_count = 0
        self.needless = 0  # spurious retransmissions not yet reported to the policy
        self.failed = False
        self.call(START, -1, 0)

    def call(self, hook: int, kind: int, acked: int) -> None:
        in_flight = [self.segments[seq].sent_ns for seq in self.order]
        given = self.zeros | {
            "now_ns": self.now_ns,
            "kind": kind,
            "segment_bytes": SEGMENT_BYTES,
            "rtt_ns": RTT_NS if acked else 0,
            "srtt_ns": RTT_NS,
            "rttvar_ns": RTT_NS // 16,
            "rtt_min_ns": RTT_NS,
            "rto_ns": self.rto_ns,
            "newest_acked_sent_ns": self.newest_acked_ns,
            "oldest_inflight_sent_ns": in_flight[0] if in_flight else -1,
            "newest_inflight_sent_ns": in_flight[-1] if in_flight else -1,
            "highest_acked_seq": self.highest_acked,
            "cumulative_seq": self.cumulative,
            "acked_segments": acked,
            "inflight_segments": len(in_flight),
            "spurious_segments": self.needless if acked else 0,
            "sacked_segments": self.acked_count - self.cumulative,
            "window_bytes": self.window_segments * SEGMENT_BYTES,
            "probed_sent_ns": self.probed_ns,
            "rand": 0.5,
        }
        if acked:
            self.needless = 0
        self.event.records[0] = tuple(given.values())
        self.result.records[0] = (-1, -1, -1, 0)
        self.failed |= self.side.witnessed(hook, self.event, self.result) != 0
        if hook != START:
            self.obey(kind, in_flight)

    def obey(self, kind: int, in_flight: list[int]) -> None:
        """Applies the loss cutoff and the next timer check, as LossControl does."""
        below_seq, before_ns, check_ns, probe = self.result.records[0].item()
        if probe:
            self.probes.append(self.now_ns)
            # As in the core, a probe that is asked for while one is under way is that one.
            due = self.probes_back_ns <= self.now_ns
            self.probes_back_ns = self.now_ns + RTT_NS if due else self.probes_back_ns
            if due and self.probes_return and self.now_ns < self.dead_from_ns:
                heapq.heappush(self.due, (self.now_ns + RTT_NS, PROBE, self.now_ns))
        before_ns = min(before_ns, self.now_ns)
        if not in_flight:
            self.check_ns = NEVER
            return
        backstop_ns = in_flight[0] + BACKSTOP * self.rto_ns
        if kind == 1 and backstop_ns <= self.now_ns:
            before_ns = max(before_ns, self.now_ns - BACKSTOP * self.rto_ns + 1)
        asked_ns = check_ns if check_ns >= 0 else in_flight[0] + self.rto_ns
        self.check_ns = max(min(asked_ns, backstop_ns), self.now_ns + CHECK_NS_MIN)
        lost: list[int] = []
        for seq in self.order:
            if not (self.segments[seq].sent_ns < before_ns or seq < below_seq):
                break
            lost.append(seq)
        del self.order[: len(lost)]
        for turn, seq in enumerate(lost):
            segment = self.segments[seq]
            if not segment.verdicts:
                segment.beyond = self.acked_count - self.cumulative
            segment.verdicts.append(self.now_ns)
            segment.sent_ns = self.now_ns + turn
            self.order.append(seq)
            if segment.sent_ns < self.dead_from_ns:
                heapq.heappush(self.due, (segment.sent_ns + RTT_NS, seq, segment.sent_ns))

    def send(self) -> None:
        seq = len(self.segments)
        self.segments.append(Segment(seq, self.now_ns, self.now_ns))
        self.order.append(seq)
        late_ns = self.late_ns(seq)
        if late_ns is not None and self.now_ns < self.dead_from_ns:
            heapq.heappush(self.due, (self.now_ns + RTT_NS + late_ns, seq, self.now_ns))

    def run(self, segments: int, after_ns: int = 2_000_000_000) -> None:
        """Sends `segments` segments, and goes on for `after_ns` unless all are acknowledged."""
        begin_ns = self.now_ns
        for index in range(segments):
            self.until(begin_ns + index * GAP_NS)
            self.send()
        self.until(self.now_ns + after_ns)

    def until(self, then_ns: int) -> None:
        while True:
            next_ns = min(self.due[0][0] if self.due else NEVER, self.check_ns)
            if next_ns > then_ns or (next_ns == NEVER):
                break
            self.now_ns = max(self.now_ns, next_ns)
            if self.due and self.due[0][0] <= next_ns:
                self.acknowledge(*heapq.heappop(self.due)[1:])
            else:
                self.check_ns = NEVER
                self.timers += 1
                self.call(TIMER, 1, 0)
        self.now_ns = max(self.now_ns, min(then_ns, NEVER - 1))

    def acknowledge(self, seq: int, sent_ns: int) -> None:
        if seq == PROBE:
            self.probed_ns = max(self.probed_ns, sent_ns)
            self.call(ACK, 0, 0)
            return
        segment = self.segments[seq]
        if segment.acked:
            self.needless += 1
            return
        if segment.verdicts and sent_ns == segment.first_ns:
            self.needless += 1
        segment.acked = True
        if seq in self.order:
            self.order.remove(seq)
        self.acked_count += 1
        self.newest_acked_ns = max(self.newest_acked_ns, sent_ns)
        self.highest_acked = max(self.highest_acked, seq)
        while self.cumulative < len(self.segments) and self.segments[self.cumulative].acked:
            self.cumulative += 1
        self.call(ACK, 0, 1)
