"""A link is lost while the eight jobs of C4P run: how far their rate falls, and for how long.

Only the rail of the lost link is simulated, as rails share no link. Each connection sends messages
one after the other, so that no connection waits for another one. A new plan, which avoids the link,
takes effect some time after the loss, which stands for the time to detect it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from bench.lib.c4p import LOST, Experiment, plan_of, with_plan
from bench.lib.c4p_fabric import Shape, Tables, Way, pairs_of_nodes, scenario
from bench.lib.common import Config
from transport.sim.network import Array
from transport.sim.result import Result
from transport.sim.run import Simulation
from transport.sim.scenario import Scenario

BIN_NS = 100_000
BACK = 0.9  # share of the rate at the end that counts as recovered
MESSAGE_BYTES = 32_768
AHEAD = 32
NIC_BYTES_PER_S = 362e9 / 8


@dataclass(frozen=True)
class Times:
    """lost_ns: when the link goes down. planned_ns: when the new plan takes effect."""

    lost_ns: int = 1_000_000
    planned_ns: int = 2_000_000
    end_ns: int = 8_000_000


TINY = Times(200_000, 400_000, 2_000_000)


def streams(shape: Shape, way: Way, end_ns: int) -> list[Tables]:
    """A workload for each connection: messages from one NIC to another until the end."""
    each = NIC_BYTES_PER_S * end_ns / 1e9 / way.queue_pairs / MESSAGE_BYTES
    return [
        {
            "pattern": "incast",
            "name": f"job{job}",
            "hosts": [shape.host(node, 0) for node in ends],
            "to": 1,
            "size_bytes": MESSAGE_BYTES,
            # Messages for three times a fair share, as some connections get more than their share.
            "repeats": int(3 * each) + 1,
        }
        for job, pair in enumerate(pairs_of_nodes(shape))
        for ends in (pair, pair[::-1])
        for _ in range(way.queue_pairs)
    ]


def losing(experiment: Experiment, way: Way, times: Times, seed: int) -> Scenario:
    whole = replace(experiment.shape, rails=1, lost=())
    event = {"at_ns": times.lost_ns, "link": "-".join(LOST), "up": False}
    made = scenario(whole, streams(whole, way, times.end_ns), way, seed)
    more = {"events": [event], "limit_ns": times.end_ns, "hosts.ahead": AHEAD}
    return made.changed(more)


def run_loss(experiment: Experiment, way: Way, times: Times, seed: int, folder: Path) -> Config:
    """One run. A planned way gets a new plan after the loss; with ECMP, paths keep their links."""
    made = losing(experiment, way, times, seed)
    took_s = 0.0
    if way.planned:
        plan_of(made, folder / "before.json")
        _, took_s = plan_of(made, folder / "after.json", avoid=("-".join(LOST),))
        made = with_plan(
            made, (folder / "before.json", 0), (folder / "after.json", times.planned_ns)
        )
    simulation = Simulation(made)
    while simulation.step():
        pass
    row: Config = {"way": way.name, "seed": seed, "assign_s": took_s}
    return row | _said(_rates(made, simulation.result(), way, times), times)


def _rates(made: Scenario, result: Result, way: Way, times: Times) -> Array:
    """Gb/s by time bin, mean of the jobs; a job is as fast as its slowest connection allows."""
    transfers, bins = made.work.transfers, times.end_ns // BIN_NS
    done = result.done & (result.transfers["received_ns"] < times.end_ns)
    at = result.transfers["received_ns"][done] // BIN_NS
    place = transfers["job"][done].astype(np.int64) * bins + at
    count = len(made.work.names)
    sent = np.bincount(place, transfers["bytes"][done], count * bins).reshape(count, bins)
    names = np.array(made.work.names)
    slowest = [sent[names == name].min(axis=0) for name in np.unique(names)]
    return np.asarray(np.mean(slowest, axis=0) * way.queue_pairs * 8 / BIN_NS)


def _said(rates: Array, times: Times) -> Config:
    """The rate before the loss, the lowest one, the one before the new plan, and the last one."""
    lost, planned = times.lost_ns // BIN_NS, times.planned_ns // BIN_NS
    tail = len(rates) // 4
    before, after = float(rates[lost // 2 : lost].mean()), float(rates[-tail:].mean())
    low = np.flatnonzero(rates[lost:-tail] < BACK * after)
    back = int(low[-1]) + 1 if low.size else 0
    gone = after < before / 4 or lost + back == len(rates) - tail
    return {
        "before": before,
        "least": float(rates[lost:].min()),
        "until_plan": float(rates[planned - (planned - lost) // 2 : planned].mean()),
        "after": after,
        "back_us": None if gone else back * BIN_NS / 1e3,
        "rates": [round(float(rate), 1) for rate in rates],
    }
