"""Measures how flows of two groups of policies share a dumbbell, and what that costs each group."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from transport.policies.fairness import harms, jain
from transport.policies.trial import Outcome

QUANTILES = {"p50": 50, "p99": 99}


def measures(outcome: Outcome, group: int) -> dict[str, float]:
    """Of one group, from when the last flow has begun.

    goodput_bytes_per_s: of a flow, on average. message_ns_p50, _p99: of the messages of its flows.
    """
    flows = [
        flow
        for flow, mine in zip(outcome.report.flows, outcome.group_of, strict=True)
        if mine == group
    ]
    row = {"goodput_bytes_per_s": float(np.mean([one.goodput_bytes_per_s for one in flows]))}
    took = np.concatenate([one.message_ns for one in flows])
    if took.size:
        for name, share in QUANTILES.items():
            row[f"message_ns_{name}"] = float(np.percentile(took, share))
    return row


def report(outcome: Outcome, alone: Sequence[Outcome] = ()) -> list[dict[str, Any]]:
    """A row for each group: its share of the goodput beside the fair one, Jain's index, the harm.

    alone: for each group the outcome of its flows alone. Harm: see transport.policies.fairness.
    """
    goodput = np.array([one.goodput_bytes_per_s for one in outcome.report.flows])
    group_of = np.array(outcome.group_of)
    rows = []
    for number, label in enumerate(outcome.labels):
        mine = group_of == number
        row: dict[str, Any] = {"group": label, "flows": int(mine.sum())}
        row["share"] = float(goodput[mine].sum()) / max(float(goodput.sum()), 1.0)
        row["fair_share"] = float(mine.mean())
        row["jain"] = jain(goodput[mine])
        row |= measures(outcome, number)
        if alone:
            row |= harms(measures(alone[number], number), row)
        rows.append(row)
    return rows
