"""Generates random events for policies: plausible sequences, and extreme values.

All values derive from one seed. Events are generated in chunks, column by column.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from congestion.api import MAX_HOPS, PATH_HEAD, Policy

Array = np.ndarray[Any, Any]

CHUNK = 2_000
HEADS_EVERY = 50  # number of events between changes of the paths' state
DEAD_SHARE = 0.02  # share of path states with no path usable, where policies search longest
EXTREME_SHARE = 0.08  # share of chunks with extreme values, which are compared event by event
EXTREME_CHUNK = 400
EXTREME_LIFE = 40  # events between restarts of the policy; after an overflow, results mean nothing

_INT_EDGES = np.array(
    [0, 1, -1, 2, 1 << 31, 1 << 53, (1 << 53) + 1, -(1 << 53), 1 << 62, (1 << 63) - 1, -(1 << 63)],
    np.int64,
)
_FLOAT_EDGES = np.array([0.0, -0.0, 1.0, -1.0, np.nan, np.inf, -np.inf, 1e308, 5e-324, 2.0**63])
_CHANCES = np.array([0.0, 2.0**-53, 0.5, 1.0 - 2.0**-53])
_SEGMENTS = (1_408, 4_096, 8_936, 65_408)
_PATHS = (1, 2, 3, 4, 8, 8, 8, 16, 64, 256)


@dataclass(frozen=True)
class Chunk:
    """Consecutive events of one instance of a policy, beginning with on_start."""

    hooks: list[int]  # indices into the family's hooks; 0 (on_start) restarts the policy
    events: Array
    presets: Array  # contents of the result record before each call
    shared: int  # records that the flows share: for a path policy one for each path, otherwise 1
    heads: Array | None  # path policies: state of the paths, shape (events / heads_every, paths)
    extreme: bool
    heads_every: int = HEADS_EVERY


class Stream:
    """Generates events for the hooks of one policy from a seed."""

    def __init__(self, policy: Policy, seed: int) -> None:
        self.policy, self.family = policy, policy.family
        self.hooks = np.array([hook for hook in policy.hook_numbers if hook != 0])
        self.draw = np.random.Generator(np.random.PCG64(seed))

    def chunks(self, events: int) -> Iterator[Chunk]:
        """Yields chunks with at least `events` events in total."""
        while events > 0:
            extreme = bool(self.draw.random() < EXTREME_SHARE)
            chunk = self.chunk(extreme)
            events -= len(chunk.hooks)
            yield chunk

    def chunk(self, extreme: bool) -> Chunk:
        draw, family = self.draw, self.family
        paths = int(draw.choice(_PATHS)) if self.policy.shares == "path" else 1
        size = self.size(EXTREME_CHUNK if extreme else CHUNK, paths)
        hooks = self.hooks[draw.integers(0, len(self.hooks), size)]
        hooks[0] = 0
        if extreme:
            hooks[::EXTREME_LIFE] = 0
        events = np.zeros(size, family.event.dtype)
        for name, column in self.columns(hooks, paths).items():
            if name in (events.dtype.names or ()):
                events[name] = column
        if extreme:
            self.spoil(events, paths)
        heads = None
        if family.shared_head.size_bytes:
            heads = self.heads((size + HEADS_EVERY - 1) // HEADS_EVERY, paths)
        return Chunk(
            hooks.tolist(), events, self.presets(hooks, events), max(paths, 1), heads, extreme
        )

    def size(self, events: int, paths: int) -> int:
        """The number of events of a chunk, chosen so that every chunk costs about the same.

        A hook loops over all paths. If there is only one, it is often the path to avoid, and the
        hook's search takes as long as it can, so chunks with one path are short, too.
        """
        if self.policy.shares == "path" and paths == 1:
            return events // 4
        return events if paths <= 8 else max(events * 8 // paths, 2 * HEADS_EVERY)

    def presets(self, hooks: Array, events: Array) -> Array:
        presets = np.zeros(len(hooks), self.family.result.dtype)
        if self.family.name == "window":
            presets["window_bytes"] = events["window_bytes"]
        elif self.family.name == "path":
            presets["path"] = np.where(hooks == 1, -1, 0)
        elif self.family.name == "loss":
            for name in ("lost_below_seq", "lost_sent_before_ns", "next_check_ns"):
                presets[name] = -1
        else:
            presets["granted_bytes"] = events["granted_bytes"]
            presets["next_tick_ns"] = -1
        return presets

    def columns(self, hooks: Array, paths: int) -> dict[str, Any]:
        """Plausible events of a connection with a given RTT, in changing network conditions."""
        draw, size = self.draw, len(hooks)
        payload = int(draw.choice(_SEGMENTS))
        base_ns = int(np.exp(draw.uniform(np.log(5e3), np.log(2e7))))
        steps_ns = draw.exponential(base_ns / 16, size)
        steps_ns[draw.random(size) < 0.01] *= 1_000
        now_ns = 1_000_000_000 + np.cumsum(steps_ns.astype(np.int64))
        # 0: no congestion, 1: marks, 2: losses, 3: a standing queue. Changes every 100 events.
        weather = draw.integers(0, 4, size // 100 + 1).repeat(100)[:size]
        queue_ns = (draw.exponential(base_ns * np.where(weather == 3, 4.0, 0.1))).astype(np.int64)
        rtt_ns = base_ns + queue_ns
        acked = draw.integers(0, 65, size)
        marked = np.where(weather == 1, draw.integers(0, 65, size), 0)
        lost = np.where(weather == 2, draw.integers(0, 40, size), 1)
        known = draw.random(size) >= 0.03
        inflight = draw.integers(0, 2_000, size) * payload
        sent_ns = now_ns - rtt_ns - draw.integers(0, base_ns, size)
        delivered = np.cumsum(acked) * payload
        return {
            **self._facts(size, paths, payload),
            "now_ns": now_ns,
            "kind": np.where(hooks == 0, -1, self._kinds(hooks)),
            "rtt_ns": np.where(known, rtt_ns, 0),
            "rtt_min_ns": base_ns,
            "srtt_ns": np.where(known, base_ns + queue_ns // 2, 0),
            "rttvar_ns": draw.integers(0, base_ns, size),
            "rto_ns": 1_000_000 + 4 * base_ns,
            "ack_delay_ns": draw.integers(0, 30_000, size),
            "acked_bytes": acked * payload,
            "acked_segments": acked,
            "ecn_segments": np.minimum(marked, acked),
            **self._losses(lost, inflight, payload),
            **self._sends(acked, payload, rtt_ns),
            "inflight_bytes": inflight,
            "delivered_bytes": delivered,
            "window_bytes": inflight + payload * draw.integers(1, 100, size),
            "app_limited": draw.random(size) < 0.1,
            **self._places(now_ns, sent_ns, known, acked, base_ns),
            "inflight_segments": inflight // payload,
            "spurious_segments": np.where(draw.random(size) < 0.03, lost, 0),
            "sacked_segments": draw.integers(0, 64, size) * (weather == 2),
            "received_bytes": delivered,
            **self._hops(now_ns),
            "demand_bytes": delivered + draw.integers(0, 1 << 24, size),
            "granted_bytes": delivered + draw.integers(0, 1 << 20, size),
        }

    def _places(
        self, now_ns: Array, sent_ns: Array, known: Array, acked: Array, base_ns: int
    ) -> dict[str, Any]:
        """Makes the send times and sequence numbers in events."""
        draw, size = self.draw, len(now_ns)
        first = draw.integers(0, 1 << 20, size)
        oldest = sent_ns - draw.integers(-base_ns, base_ns, size)
        return {
            "newest_acked_sent_ns": np.where(known, sent_ns, -1),
            "oldest_inflight_sent_ns": np.where(draw.random(size) < 0.1, -1, oldest),
            "newest_inflight_sent_ns": now_ns - draw.integers(0, 1_000, size),
            "highest_acked_seq": first + acked,
            "cumulative_seq": first,
            "probed_sent_ns": np.where(draw.random(size) < 0.05, sent_ns, -1),
        }

    def _losses(self, lost: Array, inflight: Array, payload: int) -> dict[str, Any]:
        return {
            "lost_bytes": lost * payload,
            "lost_segments": lost,
            "trimmed_segments": lost // 2,
            "message_bytes": inflight + 3 * payload,
            "message_left_bytes": inflight + payload,
        }

    def _sends(self, acked: Array, payload: int, rtt_ns: Array) -> dict[str, Any]:
        """What was sent, and samples of the delivery rate."""
        if self.family.name != "window":
            return {}
        # A generator of its own, so that the other columns stay as they were without these.
        draw, size = np.random.Generator(np.random.PCG64(int(rtt_ns[0]))), len(acked)
        rates = acked * payload * 1e9 / rtt_ns * draw.random(size)
        return {
            "sent_bytes": acked * payload,
            "sent_segments": acked,
            "delivery_bytes_per_s": np.where(draw.random(size) < 0.1, 0.0, rates),
            "delivery_app_limited": draw.random(size) < 0.1,
            "one_way_ns": rtt_ns // 2,
        }

    def _hops(self, now_ns: Array) -> dict[str, Any]:
        """Telemetry of up to MAX_HOPS ports, each with a rate, a queue and bytes sent so far."""
        if self.family.name != "window":
            return {}
        draw, size = self.draw, len(now_ns)
        hops = np.where(draw.random(size) < 0.2, 0, int(draw.integers(1, MAX_HOPS + 1)))
        known = np.arange(MAX_HOPS) < hops[:, np.newaxis]
        rates = draw.choice([1_250_000_000, 12_500_000_000, 100_000_000_000], MAX_HOPS)
        sent = (now_ns[:, np.newaxis] - now_ns[0]) * 1e-9 * rates * draw.random(MAX_HOPS)
        queued = draw.exponential(1e5, (size, MAX_HOPS)) * (draw.random((size, MAX_HOPS)) < 0.5)
        values = {
            "hop_queue_bytes": queued,
            "hop_tx_bytes": sent,
            "hop_timestamp_ns": now_ns[:, np.newaxis] - np.arange(MAX_HOPS, 0, -1) * 1_000,
            "hop_link_bytes_per_s": np.broadcast_to(rates, (size, MAX_HOPS)),
        }
        cut = {name: np.where(known, value, 0).astype(np.int64) for name, value in values.items()}
        return {"hops": hops, **cut}

    def _kinds(self, hooks: Array) -> Array:
        if self.family.name != "path":
            return hooks - 1
        feedback = np.array([1, 1, 1, 2, 3, 4])[self.draw.integers(0, 6, len(hooks))]
        return np.where(hooks == 1, 0, feedback)

    def _facts(self, size: int, paths: int, payload: int) -> dict[str, Any]:
        """Makes event fields that are constant for a connection or independent of other events."""
        draw = self.draw
        resend = draw.random(size) < 0.2
        return {
            "path": draw.integers(0, max(paths, 1), size),
            "n_paths": paths,
            "segment_bytes": payload + 64,
            "window_bytes_max": int(draw.choice([1 << 20, 4 << 20, 16 << 20, 64 << 20])),
            "link_bytes_per_s": int(draw.choice([0, 1_250_000_000, 12_500_000_000])),
            "active_flows": draw.integers(1, 40, size),
            "rand": draw.random(size),
            "rand2": draw.random(size),
            "hint_window_bytes": np.where(draw.random(size) < 0.5, 0.0, draw.random(size) * 1e7),
            "bytes": draw.integers(0, 65, size) * payload,
            "ready_bytes": draw.integers(0, 1 << 22, size),
            "is_resend": resend,
            "avoid_path": np.where(resend, draw.integers(0, max(paths, 1), size), -1),
            "flow": np.where(draw.random(size) < 0.02, -1, draw.integers(0, 16, size) << 20),
        }

    def spoil(self, events: Array, paths: int) -> None:
        """Puts extreme values into 30% of the events' fields; random numbers stay in [0, 1)."""
        draw = self.draw
        for name, (kind, *_) in (events.dtype.fields or {}).items():
            if name in ("kind", "n_paths"):
                continue
            edges = _CHANCES if name.startswith("rand") else _FLOAT_EDGES
            if kind.base.kind == "i":  # a field may be an array
                edges = _INT_EDGES
                if name in ("path", "avoid_path"):
                    edges = np.array([0, -1, paths - 1, paths, -paths, -paths - 1, 255, 1 << 62])
            hit = draw.random(events[name].shape) < 0.3
            events[name][hit] = draw.choice(edges, int(hit.sum()))

    def heads(self, count: int, paths: int) -> Array:
        """The random state of each path: mostly usable; sometimes all paths are dead."""
        draw = self.draw
        heads = np.zeros((count, paths), PATH_HEAD.dtype)
        dead = draw.random((count, 1)) < DEAD_SHARE
        usable = draw.random((count, paths)) < 0.75
        # Keep one path usable, or a connection's only path would be dead a quarter of the time.
        usable[np.arange(count), draw.integers(0, paths, count)] = True
        heads["usable"] = usable & ~dead
        heads["inflight_bytes"] = draw.integers(0, 1 << 20, (count, paths))
        heads["rtt_ns"] = draw.integers(0, 1 << 20, (count, paths))
        return heads
