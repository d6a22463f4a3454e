"""The time of a step as the number of GPUs, the network's rate, or its latency changes."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from transport.estimate.computation import Computation
from transport.estimate.models import Model
from transport.estimate.networks import Network
from transport.estimate.plan import Plan
from transport.estimate.rounds import rounds_of
from transport.estimate.schedule import Graph, run, sending
from transport.estimate.step import Step
from transport.estimate.times import difference_ns
from transport.estimate.training import faster, launch_ns, quicker

FACTORS = tuple(2.0**power for power in range(-3, 4))
GPUS_MAX = 1 << 14


@dataclass(frozen=True)
class Point:
    """A point. x: in the curve's unit. exposed_ns: time that communication adds to the step."""

    x: float
    step_ns: float
    exposed_ns: float


@dataclass(frozen=True)
class Curve:
    """The time of a step as one quantity, x, changes. given: x of the step that was asked for."""

    name: str
    unit: str
    given: float
    points: tuple[Point, ...]


def curves(model: Model, plan: Plan, computation: Computation, network: Network) -> list[Curve]:
    """The step's time against GPUs (each with the same batch), rate between nodes, latencies."""
    by_gpus = []
    for data in _replicas(plan):
        batch = plan.global_batch // plan.data * data
        other = replace(plan, data=data, global_batch=batch)
        by_gpus.append(_point(other.gpus, model, other, computation, network))
    rate = network.between.bytes_per_s
    by_rate = [
        _point(rate * one, model, plan, computation, faster(network, one)) for one in FACTORS
    ]
    by_latency = [_point(one, model, plan, computation, quicker(network, one)) for one in FACTORS]
    return [
        Curve("GPUs, each with the same batch", "", plan.gpus, tuple(by_gpus)),
        Curve("rate of a GPU between nodes", "B/s", rate, tuple(by_rate)),
        Curve("latencies, relative to those given", "", 1.0, tuple(by_latency)),
    ]


def _replicas(plan: Plan) -> list[int]:
    """Numbers of data parallel replicas: the plan's own, and powers of two times the fewest."""
    experts = plan.expert * plan.expert_parts
    experts //= math.gcd(experts, plan.tensor)
    found, data = {plan.data}, math.lcm(experts, plan.shard or 1)
    while data * plan.gpus // plan.data <= GPUS_MAX:
        found.add(data)
        data *= 2
    return sorted(found)


def _point(x: float, model: Model, plan: Plan, computation: Computation, network: Network) -> Point:
    step = Step(model, plan, computation, network)
    rounds = rounds_of(step)
    built = [Graph(one.build()) for one in rounds.steps]
    whole_ns, alone_ns = (
        rounds.extended(each)
        for each in (
            [run(graph, slowdown=network.slowdown).length_ns for graph in built],
            [run(graph, sending(graph.tasks)).length_ns for graph in built],
        )
    )
    exposed_ns = difference_ns(whole_ns, alone_ns)
    return Point(x, max(whole_ns, launch_ns(step)), exposed_ns)
