"""Runs every shipped policy at several loss rates and numbers of paths: four flows, 60 ms.

Each CSV row is the result of one policy at one loss rate and one number of paths.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from congestion.registry import shipped
from transport.conformance.scenes import MS, Cast, marking, plan_of, share
from transport.policies.dumbbell import run

FOLDER = Path(__file__).parent
LOSSES = {"0": 0.0, "2^-12": 2.0**-12, "2^-10": 2.0**-10, "2^-8": 2.0**-8}
PATHS = (1, 4, 8)
FLOWS = 4
LIMIT_NS = 60 * MS
HEADING = "policy,loss,paths,goodput_share,message_us_p99,jain,segments_sent,segments_resent"


def names(family: str) -> list[str]:
    return [one.policy.name for one in shipped() if one.policy.family.name == family]


def rows(family: str, name: str) -> Iterator[str]:
    for loss, probability in LOSSES.items():
        for paths in PATHS:
            plan = plan_of(
                Cast({family: name}),
                links=[marking(loss=probability)] * paths,
                flows=FLOWS,
                limit_ns=LIMIT_NS,
                measure_from_ns=LIMIT_NS // 2,
            )
            if family == "credit":
                plan.link_bytes_per_s = 1_250_000_000 * paths
            report = run(plan)
            assert not report.violation, report.violation
            sent = sum(flow.counters["segments_sent"] for flow in report.flows)
            resent = sum(flow.counters["segments_resent"] for flow in report.flows)
            yield (
                f"{name},{loss},{paths},{share(report) / paths:.4f},"
                f"{report.message_ns_p99 // 1_000},{report.jain:.4f},{sent},{resent}"
            )


def table(family: str) -> str:
    lines = [HEADING]
    for name in names(family):
        lines += rows(family, name)
    return "\n".join(lines) + "\n"


def path_of(family: str) -> Path:
    return FOLDER / f"table_{family}.csv"
