"""Makes and reads traces of shipped window policies over time, in two scenarios.

Standard: one flow from 0 ms on, a second flow from 20 to 90 ms, a burst of losses at 60 ms. Wide,
for aimd and cubic: one flow, an RTT of 40 ms, a queue of a third of the bandwidth-delay product.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from congestion.registry import find
from tests.golden.tables import FOLDER, names
from transport import native
from transport.conformance.scenes import DELAY_NS, MS, US, Cast, bottleneck, plan_of, run
from transport.conformance.window_arena import link_for

JOIN_NS, BURST_NS, LEAVE_NS, END_NS = 20 * MS, 60 * MS, 90 * MS, 110 * MS
SAMPLE_NS = 200 * US
WIDE_BYTES_PER_S = 125_000_000
WIDE_END_NS = 60_000 * MS
HEADING = (
    "at_us,window_0,window_1,inflight_0,inflight_1,pacing_0,pacing_1,delivered_0,delivered_1,queue"
)


def standard(name: str) -> native.ArenaPlan:
    plan = plan_of(
        Cast({"window": name}),
        links=[link_for(find("window", name))],
        flows=2,
        limit_ns=END_NS,
        trace_ns=SAMPLE_NS,
        changes=[
            native.PathChange(at_ns=BURST_NS, path=0, loss=0.2),
            native.PathChange(at_ns=BURST_NS + 300 * US, path=0, loss=0.0),
        ],
    )
    first, second = plan.flows
    second.start_ns, second.stop_ns = JOIN_NS, LEAVE_NS
    plan.flows = [first, second]
    return plan


def wide(name: str) -> native.ArenaPlan:
    """The plan of the wide scenario. It has two flows, but the second flow never starts."""
    link = bottleneck(bytes_per_s=WIDE_BYTES_PER_S, delay_ns=20 * MS, queue_bytes_max=1_600_000)
    plan = plan_of(
        Cast({"window": name}), links=[link], flows=2, limit_ns=WIDE_END_NS, trace_ns=100 * MS
    )
    first, second = plan.flows
    first.ahead, second.start_ns = 64, WIDE_END_NS
    plan.flows = [first, second]
    plan.window_bytes_max = 16 << 20
    plan.rto_ns_min = 100 * MS
    return plan


def stages() -> dict[str, native.ArenaPlan]:
    found = {f"standard_{name}": standard(name) for name in names("window")}
    return found | {"wide_cubic": wide("cubic"), "wide_aimd": wide("aimd")}


def trace(plan: native.ArenaPlan) -> str:
    report = run(plan)
    assert not report.violation, report.violation
    seen = report.trace
    at_us = (np.array(seen.at_ns, np.int64) // 1_000).reshape(-1, 1)
    two = [
        np.array(column, np.int64).reshape(-1, 2)
        for column in (
            seen.window_bytes,
            seen.inflight_bytes,
            seen.pacing_bytes_per_s,
            seen.delivered_bytes,
        )
    ]
    queue = np.array(seen.queue_bytes, np.int64).reshape(-1, 1)
    lines = [",".join(map(str, row)) for row in np.hstack([at_us, *two, queue]).tolist()]
    return "\n".join([HEADING, *lines]) + "\n"


def path_of(stage: str) -> Path:
    return FOLDER / f"trace_{stage}.csv"


def read(stage: str) -> dict[str, np.ndarray]:
    """A committed trace: column name -> values as float64."""
    values = np.loadtxt(path_of(stage), delimiter=",", skiprows=1)
    return dict(zip(HEADING.split(","), values.T, strict=True))


assert DELAY_NS == 25 * US  # the committed traces were made with this delay
