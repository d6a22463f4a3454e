"""The time that ranks spend on their own in each iteration: between operations.

A stage of a pipeline computes between its calls, and it waits in a Recv and in a collective
operation. In the order in which it made its calls, what is between the end of such a wait, or the
begin of the last Send, and the next call is its own.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from transport.diagnose.distinct import rows_by
from transport.diagnose.facts import Facts
from transport.diagnose.measures import input_ns, own_ns, relaying_of, roles_of
from transport.diagnose.windows import Windows, own_windows_of

Array = NDArray[Any]

AT_ONCE = 0.1  # a call begins at once if it does within this part of its time since the last wait


def program_own_ns(facts: Facts) -> Array:
    """For each call, the ns that its rank spent on its own before it; -1: the call has not ended.

    A Recv that was called before the data of an earlier one were used hides a part of it.
    """
    calls = facts.calls
    made = np.full(len(calls["process"]), -1, np.int64)
    receives = (calls["function"] == "Recv") & (calls["arrival_ns"] < 0)
    waits = receives | (calls["kind"] == "collective")
    begun = np.where(calls["arrival_ns"] >= 0, calls["arrival_ns"], calls["begin_ns"])
    kinds = facts.kinds
    done = np.maximum(begun, np.where(waits, calls["end_ns"], begun))
    for _, mine in rows_by(calls["process"]):
        mine = mine[np.argsort(calls["begin_ns"][mine], kind="stable")]
        ready = np.maximum.accumulate(done[mine])
        before = np.concatenate([begun[mine[:1]], ready[:-1]])
        sends = mine[(calls["function"] == "Send")[mine]]
        # What begins just when the data of an earlier Send are away may have waited for that.
        ended = np.sort(calls["end_ns"][sends])
        freed = np.concatenate([[-1], ended])[np.searchsorted(ended, begun[mine], side="right")]
        waited = begun[mine] - freed <= AT_ONCE * (begun[mine] - before)
        own = np.maximum(begun[mine] - before, 0)
        made[mine] = _as_usual(own, waited & (own > 0), kinds[mine])
    made[calls["end_ns"] < 0] = -1
    return made


def _as_usual(own: Array, unknown: Array, kinds: Array) -> Array:
    """The times; in place of those not known, the median of the known ones of the same kind."""
    made = own.copy()
    for one in np.unique(kinds[unknown]).tolist():
        alike = kinds == one
        known = own[alike & ~unknown]
        made[alike & unknown] = int(np.median(known)) if len(known) else 0
    return made


def own_times_of(facts: Facts, windows: Windows) -> Array:
    """[window, process]: its own time in each iteration, between operations; nan: not known.

    A rank that sends nothing but in collectives, as the last stage of a pipeline without a way
    back, hides what it computes between two Recvs while more data wait. Of its time only that
    counts by which it exceeds that of the quickest rank of its role.
    """
    calls = facts.calls
    alone = bool((calls["kind"] != "collective").any())
    own = program_own_ns(facts) if alone else _own_of_collectives(facts)
    known = own >= 0
    total = np.zeros((windows.count, len(facts.processes)))
    window = own_windows_of(facts, windows)
    np.add.at(total, (window[known], calls["process"][known]), own[known])
    seen = np.zeros(len(facts.processes), bool)
    seen[calls["process"][known]] = True
    total = np.where(seen, total, np.nan)
    if alone:
        for peers in _silent_roles(facts):
            least = total[:, peers].min(axis=1, keepdims=True) if len(peers) > 1 else np.nan
            total[:, peers] -= least
    return total


def _own_of_collectives(facts: Facts) -> Array:
    """For each call, the time on its own before it; of an inner rank of a tree, which sends what it
    has received, at most the time since its input came."""
    calls = facts.calls
    own = own_ns(calls)
    relaying = relaying_of(facts, facts.kinds)
    since: Array = np.where(relaying, calls["arrival_ns"] - input_ns(facts), own)
    return np.minimum(own, since)


def own_beside(facts: Facts, windows: Windows) -> Array:
    """[window, process]: its own time beside the median of all ranks in the same iteration."""
    own = own_times_of(facts, windows)
    silent = np.zeros(own.shape[1], bool)
    silent[silent_of(facts)] = True
    heard = np.flatnonzero(~silent & ~np.isnan(own).any(axis=0))
    if len(heard):
        own[:, heard] -= np.median(own[:, heard], axis=1, keepdims=True)
    return own


def silent_of(facts: Facts) -> Array:
    """The processes that receive from single peers and send to none."""
    process, function = facts.calls["process"], facts.calls["function"]
    return np.setdiff1d(process[function == "Recv"], process[function == "Send"])


def _silent_roles(facts: Facts) -> list[list[int]]:
    """The processes of silent_of(), those of each role."""
    calls = facts.calls
    process = calls["process"]
    role = roles_of(process, facts.kinds, np.zeros(len(facts.processes), np.int64))
    made: dict[int, list[int]] = {}
    for one in silent_of(facts).tolist():
        made.setdefault(int(role[process == one][0]), []).append(one)
    return list(made.values())
