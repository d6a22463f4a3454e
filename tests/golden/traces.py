"""Makes and reads traces of shipped window policies over time, in two scenarios.

Standard: one flow from 0 ms on, a second flow that sends 56 MB
from 20 ms on, a burst of losses at 60 ms. Wide,
for aimd and cubic: one flow, an RTT of 40 ms, a queue of a third of the bandwidth-delay product.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from congestion.registry import find
from tests.golden.tables import FOLDER, names
from transport.conformance.scenes import DELAY_NS, MS, US, Cast, bottleneck, plan_of
from transport.conformance.window_dumbbell import link_for
from transport.policies.dumbbell import Change, Plan, run

JOIN_NS, BURST_NS, END_NS = 20 * MS, 60 * MS, 150 * MS
MESSAGES = 214  # 56 MB: half of what the bottleneck carries in 90 ms
SAMPLE_NS = 200 * US
WIDE_BYTES_PER_S = 125_000_000
WIDE_END_NS = 60_000 * MS
HEADING = (
    "at_us,window_0,window_1,inflight_0,inflight_1,pacing_0,pacing_1,delivered_0,delivered_1,queue"
)


def standard(name: str) -> Plan:
    plan = plan_of(
        Cast({"window": name}),
        links=[link_for(find("window", name))],
        flows=2,
        limit_ns=END_NS,
        trace_ns=SAMPLE_NS,
        changes=[
            Change(at_ns=BURST_NS, path=0, loss=0.2),
            Change(at_ns=BURST_NS + 300 * US, path=0, loss=0.0),
        ],
    )
    plan.flows[1].start_ns, plan.flows[1].messages = JOIN_NS, MESSAGES
    return plan


def wide(name: str) -> Plan:
    """The plan of the wide scenario. It has two flows, but the second flow never starts."""
    link = bottleneck(bytes_per_s=WIDE_BYTES_PER_S, delay_ns=20 * MS, queue_bytes_max=1_600_000)
    plan = plan_of(
        Cast({"window": name}), links=[link], flows=2, limit_ns=WIDE_END_NS, trace_ns=100 * MS
    )
    plan.flows[1].start_ns, plan.ahead = WIDE_END_NS, 64
    plan.window_bytes_max = 16 << 20
    plan.rto_ns_min = 100 * MS
    return plan


def stages() -> dict[str, Plan]:
    found = {f"standard_{name}": standard(name) for name in names("window")}
    return found | {"wide_cubic": wide("cubic"), "wide_aimd": wide("aimd")}


def trace(plan: Plan) -> str:
    report = run(plan)
    assert not report.violation, report.violation
    seen = report.trace
    at_us = (seen.at_ns // 1_000).reshape(-1, 1)
    two = (seen.window_bytes, seen.inflight_bytes, seen.pacing_bytes_per_s, seen.delivered_bytes)
    queue = seen.queue_bytes
    lines = [",".join(map(str, row)) for row in np.hstack([at_us, *two, queue]).tolist()]
    return "\n".join([HEADING, *lines]) + "\n"


def path_of(stage: str) -> Path:
    return FOLDER / f"trace_{stage}.csv"


def read(stage: str) -> dict[str, np.ndarray]:
    """A committed trace: column name -> values as float64."""
    values = np.loadtxt(path_of(stage), delimiter=",", skiprows=1)
    return dict(zip(HEADING.split(","), values.T, strict=True))


assert DELAY_NS == 25 * US  # the committed traces were made with this delay
