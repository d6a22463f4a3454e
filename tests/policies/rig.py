"""Runs one interpreted policy event by event; tests set only the fields that matter."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from congestion.api import Policy
from congestion.registry import find
from transport.compiler.interpret import Interpreted

SEGMENT = 8_192
US = 1_000
MS = 1_000_000


class Rig:
    """Runs one policy on one flow or peer."""

    def __init__(self, policy: Policy, shared: int = 1, **params: float) -> None:
        self.policy = policy
        self.runner = Interpreted(policy)
        self.flow, self.shared = policy.flow.zeros(), policy.shared.zeros(shared)
        self.params = policy.params.filled()
        for name, value in params.items():
            self.params[name] = value

    def call(self, hook: str, **fields: float) -> Mapping[str, Any]:
        event, result = self.policy.family.event.zeros(), self.policy.family.result.zeros()
        event["segment_bytes"] = SEGMENT
        for name, value in fields.items():
            event[name] = value
        self.runner.run(
            hook, flow=self.flow, shared=self.shared, params=self.params, event=event, result=result
        )
        return {name: result[name][0].item() for name in result.dtype.names}

    def state(self, name: str) -> Any:
        return self.flow[name][0].item()


class WindowRig(Rig):
    """One flow of a window policy; windows are in segments. All events get the fields `network`."""

    def __init__(
        self, name: str, segments: float = 0.0, network: Mapping[str, float] | None = None, **p: Any
    ) -> None:
        super().__init__(find("window", name), **p)
        self.network = {
            "segment_bytes": SEGMENT,
            "rtt_ns": 100 * US,
            "srtt_ns": 100 * US,
            "rtt_min_ns": 100 * US,
            "window_bytes_max": 1 << 26,
        } | dict(network or {})
        self.segment = self.network["segment_bytes"]
        self.start = self.tell("on_start", 0, hint_window_bytes=segments * self.segment)

    def tell(self, hook: str, now_us: float, **fields: float) -> float:
        self.answer = self.call(hook, now_ns=int(now_us * US), **(self.network | fields))
        return float(self.answer["window_bytes"]) / self.segment

    def ack(self, now_us: float, acked: float, marked: int = 0, **fields: Any) -> float:
        counts = {"acked_segments": max(int(acked), 1), "acked_bytes": int(acked * self.segment)}
        return self.tell("on_ack", now_us, ecn_segments=marked, **(counts | fields))

    def lose(self, now_us: float, lost: int = 1) -> float:
        fields = {"lost_segments": lost, "lost_bytes": lost * self.segment}
        return self.tell("on_loss", now_us, **fields)
