"""Compares ranks of pipelines with those of the same stage, over the whole trace.

A rank that is slow from the first iteration on has no time of its own to be compared with.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from transport.diagnose import places
from transport.diagnose.alone import FEW_PEERS
from transport.diagnose.facts import Facts
from transport.diagnose.finding import Finding
from transport.diagnose.measures import roles_of, stages_of
from transport.diagnose.own_times import own_times_of
from transport.diagnose.windows import Windows
from transport.ground.units import percent, time_text

Array = NDArray[Any]

WINDOWS_MIN = 6
SLOWER_SHARE = 0.06  # of an iteration
ALWAYS = 0.9  # in this part of the windows it takes longer by half of that
SLOW_MAX = 0.5  # more of the ranks of a stage are its usual time
QUERY = (
    "SELECT process, function, count(*), min(begin_ns) AS begin_ns, max(end_ns) AS end_ns "
    "FROM operations GROUP BY ALL ORDER BY process"
)


def beside_peers(facts: Facts, windows: Windows) -> Array:
    """[window, process]: its own time beyond the quicker quarter of its stage; nan: too few
    peers."""
    own = own_times_of(facts, windows)
    process = facts.calls["process"]
    roles = roles_of(process, facts.kinds, stages_of(facts))
    role = np.full(own.shape[1], -1)
    role[process] = roles
    made = np.full(own.shape, np.nan)
    for one in np.unique(role[role >= 0]).tolist():
        mine = np.flatnonzero((role == one) & ~np.isnan(own).any(axis=0))
        if len(mine) > FEW_PEERS:
            usual = np.quantile(own[:, mine], 0.25, axis=1, keepdims=True, method="lower")
            made[:, mine] = own[:, mine] - usual
    return made


def always_slower(facts: Facts, windows: Windows) -> Array:
    """[process]: whether it always takes longer than others of its stage; without stages, than all
    others."""
    none = np.zeros(len(facts.processes), bool)
    if windows.count < WINDOWS_MIN:
        return none
    apart, limit_ns = beside_peers(facts, windows)[1:-1], SLOWER_SHARE * windows.usual_ns
    known = ~np.isnan(apart).any(axis=0)
    apart = np.where(known, apart, 0.0)
    slow = np.median(apart, axis=0) > limit_ns
    slow &= (apart > limit_ns / 2).mean(axis=0) >= ALWAYS
    return slow if slow.sum() <= SLOW_MAX * known.sum() else none


def slower_than_peers(facts: Facts, windows: Windows) -> list[Finding]:
    """The ranks of a pipeline that always take longer than others of their stage."""
    if (facts.calls["kind"] == "collective").all():
        return []  # ranks that always differ are found by when they come
    slow = always_slower(facts, windows)
    if not slow.any():
        return []
    apart = beside_peers(facts, windows)[1:-1]
    ones = np.flatnonzero(slow)
    names, longer = facts.named(ones), float(np.median(apart[:, ones]))
    each = time_text(longer / windows.iterations)
    return [
        Finding(
            "non_communication_slow",
            places.of_ranks(facts, ones),
            int(windows.starts_ns[0]),
            facts.end_ns,
            0.9,
            True,
            f"In all iterations {names} took {each} longer between operations than "
            f"the quicker ranks of the same stage ({percent(longer / windows.usual_ns, 0)} of an "
            "iteration).",
            QUERY,
            "Check clocks, power and errors of its GPU (nvidia-smi -q), its host, and its share of "
            "the work.",
            lost_ns=int(longer * windows.count),
            weight=longer,
        )
    ]
