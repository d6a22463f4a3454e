"""Tries policies in a dumbbell network: real protocol stacks, a virtual clock, bottlenecks.

The same seed gives the same run. It needs no GPU, no sockets and no privileges.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from congestion.api import MAX_PATHS
from transport.errors import InvalidArgumentError
from transport.policies import dumbbell
from transport.policies.choice import OneSet, PolicyName, choose, labels, short_text
from transport.policies.dumbbell import (
    BEYOND_NS,
    BURST_BYTES_MAX,
    SEGMENT_BYTES,
    Change,
    Flow,
    Link,
    Plan,
)

RECORDING_BYTES_MAX = 1 << 30
FIGURE_MAX = 1 << 50  # largest size, rate or time: sums over paths and flows fit in 64 bits
FLOWS_MAX = 2048
SEGMENT_BYTES_MIN, BURST_BYTES_END = 128, (1 << 20) + 1  # as of [hosts] of a scenario
RATE_BYTES_PER_S = 1_250_000_000  # 10 Gb/s
DELAY_NS = 25_000  # one-way delay, without the time to transmit


@dataclass(frozen=True, kw_only=True)
class Network:
    """The simulated network. All paths are equal; `loss` and `jitter_ns` apply to each datagram.

    queue_bytes: the size of a path's queue. mark_bytes: the queue length at which ECN marking
    begins; from twice that length on, every datagram is marked; 0: no marks.
    loss_burst: (from_ns, until_ns, loss) replaces `loss` on every path during that time.
    """

    paths: int = 1
    bytes_per_s: int = RATE_BYTES_PER_S
    delay_ns: int = DELAY_NS
    queue_bytes: int = 400_000
    mark_bytes: int = 50_000
    loss: float = 0.0
    jitter_ns: int = 0
    loss_burst: tuple[int, int, float] | None = None
    dead_path: tuple[int, int, int] | None = None  # path, from_ns, until_ns


@dataclass(frozen=True, kw_only=True)
class Traffic:
    """`flows` flows, each between its own pair of hosts, started `stagger_ns` apart.

    segment_bytes: the size of a packet, with weft's header of 64 bytes. burst_bytes_max: bytes
    that one decision sends on one path. Both as in [hosts] of a scenario.
    """

    flows: int = 2
    stagger_ns: int = 0
    message_bytes: int = 1 << 20
    ahead: int = 4  # number of messages that each flow has posted at a time
    duration_ns: int = 50_000_000
    segment_bytes: int = SEGMENT_BYTES
    burst_bytes_max: int = BURST_BYTES_MAX


@dataclass(frozen=True, kw_only=True)
class Beside:
    """Further flows with other policies. Families that it does not name are as of the first flows.

    The flows of both kinds begin in turn.
    """

    policies: Mapping[str, PolicyName]
    flows: int = 2


@dataclass(frozen=True)
class Outcome:
    """The result of a run. Trace arrays have a row per sample and a column per flow or path.

    group_of: for each flow 0, or 1 for those of Beside. labels: the policies of each group, where
    they differ; empty without Beside.
    """

    report: dumbbell.Report
    network: Network
    traffic: Traffic
    names: dict[str, str] = field(default_factory=dict)  # family -> name of its policy
    group_of: tuple[int, ...] = ()
    labels: tuple[str, ...] = ()

    @property
    def goodput_share(self) -> float:
        """Delivered payload as a share of what all paths together could carry."""
        delivered = sum(flow.delivered_bytes for flow in self.report.flows)
        whole = self.network.bytes_per_s * self.network.paths * self.report.ended_ns / 1e9
        return delivered / max(whole, 1.0)

    @cached_property
    def at_ms(self) -> np.ndarray[Any, Any]:
        """The times of the samples, in ms."""
        return self.report.trace.at_ns / 1e6

    def trace(self, name: str) -> np.ndarray[Any, Any]:
        """window_bytes, inflight_bytes, pacing_bytes_per_s or delivered_bytes by flow; queue_bytes
        by path. Float64, shape (samples, flows or paths)."""
        values: np.ndarray[Any, Any] = getattr(self.report.trace, name)
        return values.astype(np.float64)

    def resent(self) -> int:
        """The number of resent segments of all flows."""
        return sum(flow.counters["segments_resent"] for flow in self.report.flows)

    def lost(self) -> int:
        """The number of datagrams lost on all paths, for any reason."""
        return sum(path.lost + path.dropped for path in self.report.paths)


def run(
    policies: Mapping[str, PolicyName] | None = None,
    network: Network = Network(),
    traffic: Traffic = Traffic(),
    *,
    params: Mapping[str, Mapping[str, Any]] | None = None,
    seed: int = 1,
    samples: int = 500,
    record: bool = False,
    beside: Beside | None = None,
    alone: int | None = None,
) -> Outcome:
    """Runs a simulation with the given policies, by family; other families use weft's defaults.

    samples: number of trace samples, or 0. record: keep every decision in Outcome.report. beside:
    flows with other policies; goodput and fairness are then measured from when the last flow
    begins. alone: 0 or 1: only the flows of this group begin. Raises InvalidArgumentError for an
    unknown policy or an invalid value.
    """
    _check(network, traffic, seed, samples)
    groups = _groups(traffic, beside)
    plan = _plan(network, traffic, groups, seed, samples, record)
    if beside is not None:
        plan.measure_from_ns = plan.flows[-1].start_ns
        if plan.measure_from_ns >= traffic.duration_ns:
            raise InvalidArgumentError(
                f"stagger_ns: the last of {len(groups)} flows begins at {plan.measure_from_ns} ns, "
                f"and the run ends at {traffic.duration_ns} ns: begin flows closer together"
            )
    for flow, group in zip(plan.flows, groups, strict=True):
        if alone is not None and group != alone:
            flow.start_ns = plan.limit_ns + BEYOND_NS  # never
    names, said = _choose(plan, policies or {}, params or {}, beside)
    return Outcome(dumbbell.run(plan), network, traffic, names, tuple(groups), said)


def _choose(
    plan: Plan,
    policies: Mapping[str, PolicyName],
    params: Mapping[str, Mapping[str, Any]],
    beside: Beside | None,
) -> tuple[dict[str, str], tuple[str, ...]]:
    """Gives the plan its policies. Returns their names by family, and the labels of the groups."""
    chosen: dict[str, PolicyName] = {"window": "swift", "path": "power_of_two", "loss": "rack"}
    chosen |= policies
    for family in params:
        if family not in chosen:
            raise InvalidArgumentError(
                f"params: no {family} policy is chosen; give parameters of "
                f"{', '.join(sorted(chosen))}"
            )
    names = {}
    for family, policy in chosen.items():
        names[family] = choose(plan, family, policy, params.get(family, {}))
    if beside is None:
        return names, ()
    for family, policy in beside.policies.items():
        choose(OneSet(plan, 1), family, policy, {})
        if policy == "none" and family == "credit":
            plan.choose_text(family, "none", [], 1)
    return names, _labels(chosen, chosen | dict(beside.policies))


def _groups(traffic: Traffic, beside: Beside | None) -> list[int]:
    """For each flow its group: the flows of both groups in turn, then those that are left."""
    counts = [traffic.flows, beside.flows if beside is not None else 0]
    if beside is not None:
        _whole("beside: flows", beside.flows, FLOWS_MAX + 1, 1)
        if not beside.policies:
            raise InvalidArgumentError("beside: name a policy of the other flows")
    places = [(place, group) for group, count in enumerate(counts) for place in range(count)]
    return [group for _, group in sorted(places)]


def _plan(
    network: Network, traffic: Traffic, groups: list[int], seed: int, samples: int, record: bool
) -> Plan:
    return Plan(
        seed=seed,
        paths=_paths(network),
        changes=_changes(network),
        flows=[
            Flow(
                from_host=2 * index,
                to_host=2 * index + 1,
                start_ns=index * traffic.stagger_ns,
                message_bytes=traffic.message_bytes,
                policy_set=group,
            )
            for index, group in enumerate(groups)
        ],
        ahead=traffic.ahead,
        limit_ns=traffic.duration_ns,
        segment_bytes=traffic.segment_bytes,
        burst_bytes_max=traffic.burst_bytes_max,
        link_bytes_per_s=network.bytes_per_s * network.paths,
        trace_ns=max(traffic.duration_ns // samples, 1) if samples else 0,
        recording_bytes_max=RECORDING_BYTES_MAX if record else 0,
    )


def _labels(mine: Mapping[str, PolicyName], other: Mapping[str, PolicyName]) -> tuple[str, str]:
    """The policies in which two groups of flows differ, as texts."""
    texts = [
        {family: short_text(policy) for family, policy in one.items()} for one in (mine, other)
    ]
    one, two = labels(texts)
    if one:
        return one, two
    window = texts[0]["window"]
    return window, f"{window} beside"


def _whole(name: str, value: object, below: int, least: int = 0) -> None:
    number = value if isinstance(value, int) else getattr(value, "item", lambda: None)()
    if not isinstance(number, int) or not least <= number < below:
        raise InvalidArgumentError(
            f"{name}: must be a whole number from {least} to {below - 1}, not {value!r}"
        )


def _share(name: str, value: float) -> None:
    if not 0.0 <= value <= 1.0:
        raise InvalidArgumentError(f"{name}: must be a share from 0 to 1, not {value!r}")


def _span(name: str, from_ns: int, until_ns: int) -> None:
    _whole(f"{name}: from_ns", from_ns, FIGURE_MAX)
    _whole(f"{name}: until_ns", until_ns, FIGURE_MAX)
    if from_ns >= until_ns:
        raise InvalidArgumentError(f"{name}: from_ns {from_ns} must be before until_ns {until_ns}")


def _check(network: Network, traffic: Traffic, seed: int, samples: int) -> None:
    """Checks values that the native plan cannot represent; the plan checks all others itself."""
    _whole("seed", seed, 1 << 63)
    _whole("samples", samples, 1 << 24)
    _whole("paths", network.paths, MAX_PATHS + 1, 1)
    _whole("bytes_per_s", network.bytes_per_s, FIGURE_MAX, 1)
    for name in ("delay_ns", "queue_bytes", "mark_bytes", "jitter_ns"):
        _whole(name, getattr(network, name), FIGURE_MAX)
    _whole("flows", traffic.flows, FLOWS_MAX + 1)
    _whole("segment_bytes", traffic.segment_bytes, 1 << 16, SEGMENT_BYTES_MIN)
    _whole("burst_bytes_max", traffic.burst_bytes_max, BURST_BYTES_END, SEGMENT_BYTES_MIN)
    for name in ("stagger_ns", "message_bytes", "ahead", "duration_ns"):
        _whole(name, getattr(traffic, name), FIGURE_MAX if name != "ahead" else 1 << 32)
    _share("loss", network.loss)
    if network.loss_burst is not None:
        _span("loss_burst", *network.loss_burst[:2])
        _share("loss_burst", network.loss_burst[2])
    if network.dead_path is not None:
        _whole("dead_path", network.dead_path[0], network.paths)
        _span("dead_path", *network.dead_path[1:])


def _paths(network: Network) -> list[Link]:
    return [
        Link(
            bytes_per_s=network.bytes_per_s,
            delay_ns=network.delay_ns,
            queue_bytes_max=network.queue_bytes,
            mark_from_bytes=network.mark_bytes,
            mark_full_bytes=2 * network.mark_bytes,
            loss=network.loss,
            reorder=1.0 if network.jitter_ns else 0.0,
            reorder_ns_max=network.jitter_ns,
        )
        for _ in range(network.paths)
    ]


def _changes(network: Network) -> list[Change]:
    changes = []
    if network.loss_burst is not None:
        from_ns, until_ns, loss = network.loss_burst
        for path in range(network.paths):
            changes.append(Change(at_ns=from_ns, path=path, loss=loss))
            changes.append(Change(at_ns=until_ns, path=path, loss=network.loss))
    if network.dead_path is not None:
        path, from_ns, until_ns = network.dead_path
        changes.append(Change(at_ns=from_ns, path=path, up=0))
        changes.append(Change(at_ns=until_ns, path=path, up=1))
    return changes
