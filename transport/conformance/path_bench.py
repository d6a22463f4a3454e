"""A test harness for one path policy, with paths that work, drop everything, or recover.

The policy runs alone; the harness calls it as the core would.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import Any

import numpy as np

from congestion.api import ECN, GOOD, NACK, PICK, TIMEOUT, Policy
from transport.compiler.library import Library
from transport.conformance.native_side import Guarded, NativeSide

START, CHOOSE, FEEDBACK = 0, 1, 2
GAP_NS = 10_000  # time between two picks of a path
RTT_NS = 100_000
RTO_NS = 1_000_000
SEGMENT_BYTES = 4_096
READY_BYTES = 1 << 20
FLOWS = 16


@dataclass(frozen=True)
class Conduct:
    """The harness's treatment of a path that timed out."""

    retires: bool = True  # True: the path is not usable until feedback arrives
    rto_ns: int = RTO_NS


class PathBench:
    """Asks a policy for paths at a steady pace; acknowledges a burst after an RTT, or loses it."""

    def __init__(
        self, policy: Policy, library: Library, paths: int, conduct: Conduct | None = None
    ) -> None:
        self.side = NativeSide(policy, library)
        self.side.restart(paths)
        self.paths = paths
        self.conduct = conduct or Conduct()
        self.event = Guarded(policy.family.event.dtype, 1)
        self.result = Guarded(policy.family.result.dtype, 1)
        self.zeros = dict.fromkeys(policy.family.event.dtype.names or (), 0)
        self.draw = np.random.Generator(np.random.PCG64(paths))
        self.now_ns = 1_000_000_000_000
        self.dead: set[int] = set()
        self.slow_ns: dict[int, int] = {}  # path -> time that it adds to the round trip
        self.marking: set[int] = set()  # paths on which all feedback is ECN
        self.nacking: set[int] = set()  # paths on which all feedback is NACK
        self.told_rtt_ns: dict[int, int] = {}  # path -> the round trip that feedback tells
        self.mute = -1  # kind of feedback that the policy does not get
        self.heard_ns = [-1] * paths
        # Pending feedback: due time, kind, path; send time, bytes and flow of the burst.
        self.due: list[tuple[int, int, int, int, int, int]] = []
        self.failed = False
        self.picks: list[int] = []
        heads = self.side.shared.records
        heads["usable"] = 1
        self.call(START, -1)

    def call(self, hook: int, kind: int, **fields: Any) -> tuple[int, int]:
        given = self.zeros | {
            "now_ns": self.now_ns,
            "kind": kind,
            "n_paths": self.paths,
            "segment_bytes": SEGMENT_BYTES,
            "avoid_path": -1,
            "flow": -1,
            "rand": self.draw.random(),
            "rand2": self.draw.random(),
        }
        if kind == self.mute:
            return -1, 0
        self.event.records[0] = tuple((given | fields).values())
        self.result.records[0] = (-1 if hook == CHOOSE else 0, 0)
        status = self.side.witnessed(hook, self.event, self.result)
        self.failed = self.failed or status != 0
        path, burst_bytes = self.result.records[0].item()
        return path, burst_bytes

    def pick(self, **fields: Any) -> int:
        """Picks a path for one burst, after delivering all feedback that is due."""
        self.now_ns += GAP_NS
        while self.due and self.due[0][0] <= self.now_ns:
            self.feed(heapq.heappop(self.due))
        flow = int(self.draw.integers(0, FLOWS)) * 0x9E3779B1 % (1 << 31)
        flow = fields.get("flow", flow)
        given = {"ready_bytes": READY_BYTES} | fields | {"flow": flow}
        path, burst_bytes = self.call(CHOOSE, PICK, **given)
        burst_bytes = min(max(burst_bytes, SEGMENT_BYTES), READY_BYTES)
        self.picks.append(path)
        if not 0 <= path < self.paths:
            self.failed = True
            return path
        heads = self.side.shared.records
        heads["inflight_bytes"][path] += burst_bytes
        sent = (self.now_ns, burst_bytes, flow)
        if path in self.dead:
            heapq.heappush(self.due, (self.now_ns + self.conduct.rto_ns, TIMEOUT, path, *sent))
        else:
            rtt_ns = RTT_NS + int(self.draw.exponential(RTT_NS / 20)) + self.slow_ns.get(path, 0)
            kind = ECN if path in self.marking else NACK if path in self.nacking else GOOD
            heapq.heappush(self.due, (self.now_ns + rtt_ns, kind, path, *sent))
        return path

    def feed(self, due: tuple[int, int, int, int, int, int]) -> None:
        at_ns, kind, path, sent_ns, burst_bytes, flow = due
        heads = self.side.shared.records
        heads["inflight_bytes"][path] -= burst_bytes
        if kind == TIMEOUT:
            if self.heard_ns[path] >= sent_ns:
                return
            heads["usable"][path] = 0 if self.conduct.retires else 1
            self.call(FEEDBACK, TIMEOUT, path=path, flow=flow)
            self.heard_ns[path] = at_ns  # at most one TIMEOUT per timeout period, as in the core
            return
        self.heard_ns[path] = at_ns
        heads["usable"][path] = 1
        rtt_ns = self.told_rtt_ns.get(path, at_ns - sent_ns)
        heads["rtt_ns"][path] = rtt_ns
        self.call(FEEDBACK, kind, path=path, rtt_ns=rtt_ns, bytes=burst_bytes, flow=flow)

    def heal(self, path: int) -> None:
        """Makes a path work again and reports a successful probe."""
        self.dead.discard(path)
        self.heard_ns[path] = self.now_ns
        self.side.shared.records["usable"][path] = 1
        self.call(FEEDBACK, GOOD, path=path, rtt_ns=RTT_NS)

    def shares(self, last: int) -> np.ndarray[Any, Any]:
        """The share of each path in the last `last` picks, as a multiple of the fair share."""
        counts = np.bincount(np.array(self.picks[-last:]), minlength=self.paths)
        return counts * self.paths / last
