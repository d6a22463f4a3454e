"""Computes measures of fairness: Jain's index, and harm.

Harm is that of R. Ware et al., "Beyond Jain's Fairness Index: Setting the Bar For The Deployment of
Congestion Control Algorithms", HotNets 2019: by how much something is worse beside others than
alone, as a share of the better value.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np


def jain(values: np.ndarray[Any, Any]) -> float:
    """Jain's fairness index: 1 if all values are equal, 1/n if all but one are 0."""
    square = float((values.astype(np.float64) ** 2).sum())
    return float(values.sum()) ** 2 / (len(values) * square) if square else 1.0


def harm_of_rate(alone: float, beside: float) -> float:
    """The harm to something of which more is better; negative: it is better beside others."""
    return (alone - beside) / alone if alone > 0 else 0.0


def harm_of_time(alone: float, beside: float) -> float:
    """The harm to something of which less is better; negative: it is better beside others."""
    return (beside - alone) / beside if beside > 0 else 0.0


def harms(alone: Mapping[str, float], beside: Mapping[str, Any]) -> dict[str, float]:
    """The harm to each measure that both have: harm_goodput from goodput_bytes_per_s, and so on.

    More is better of what ends in per_s; of all other measures, less.
    """
    found = {}
    for name, value in alone.items():
        if beside.get(name) is not None:
            of = harm_of_rate if name.endswith("per_s") else harm_of_time
            plain = name.removesuffix("_bytes_per_s").replace("_ns", "")
            found[f"harm_{plain}"] = of(value, beside[name])
    return found
