"""Computes, for each window, how late each rank came and how long messages took between ranks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from transport.diagnose.facts import Facts
from transport.diagnose.windows import Windows, begun_ns, kinds_of

Array = NDArray[Any]


@dataclass(frozen=True, eq=False)
class Lateness:
    """How much longer than the others each rank took between operations, in ns.

    own: [window, process], summed over the operations of the window. gpu: the part of it that
    passed between the rank's call and its first message. noise: what is usual for a rank and a
    window.
    """

    own: Array
    gpu: Array
    noise_ns: float


def ordinals(*keys: Array) -> Array:
    """For each row its number among the rows with equal keys, in order."""
    order = np.lexsort(keys[::-1])
    sorted_keys = [key[order] for key in keys]
    fresh = np.ones(len(order), bool)
    if len(order) > 1:
        fresh[1:] = np.any([key[1:] != key[:-1] for key in sorted_keys], axis=0)
    starts = np.flatnonzero(fresh)
    inside = np.arange(len(order)) - np.repeat(starts, np.diff([*starts, len(order)]))
    made = np.zeros(len(order), np.int64)
    made[order] = inside
    return made


def medians(groups: Array, values: Array) -> Array:
    """The median of the values of each row's group."""
    if not len(groups):
        return values.astype(np.float64)
    order = np.lexsort((values, groups))
    _, starts, counts = np.unique(groups[order], return_index=True, return_counts=True)
    ranked = values[order].astype(np.float64)
    low, high = starts + (counts - 1) // 2, starts + counts // 2
    middle = (ranked[low] + ranked[high]) / 2
    made = np.zeros(len(groups))
    made[order] = np.repeat(middle, counts)
    return made


def own_ns(calls: dict[str, Array]) -> Array:
    """For each call, the time that the rank spent on its own before it; -1: not known.

    It is the time since the rank's latest other operation ended or, if that still ran, began.
    """
    begun, process = begun_ns(calls), calls["process"]
    made = np.full(len(begun), -1, np.int64)
    for one in np.unique(process):
        mine = np.flatnonzero(process == one)
        ends = np.sort(calls["end_ns"][mine][calls["end_ns"][mine] >= 0])
        starts = np.sort(begun[mine])
        when = begun[mine]
        at = np.searchsorted(ends, when, side="right") - 1
        ended = np.where(at >= 0, ends[np.maximum(at, 0)] if len(ends) else -1, -1)
        at = np.searchsorted(starts, when, side="left") - 1
        before = np.where(at >= 0, starts[np.maximum(at, 0)], -1)
        latest = np.maximum(ended, before)
        made[mine] = np.where(latest >= 0, when - latest, -1)
    return made


def lateness_of(facts: Facts, windows: Windows) -> Lateness:
    calls = facts.calls
    kinds, process = kinds_of(calls), calls["process"]
    alike = np.stack([kinds, ordinals(process, kinds), roles_of(process, kinds)], axis=1)
    _, group = np.unique(alike, axis=0, return_inverse=True)
    group = group.ravel()
    own, begun = own_ns(calls), begun_ns(calls)
    excess = np.where(own >= 0, own - medians(group, np.maximum(own, 0)), 0.0)
    waited = begun - calls["begin_ns"]
    waited = waited - medians(group, waited)
    window = windows.of(medians(group, begun).astype(np.int64))
    shape = (max(windows.count, 1), len(facts.processes))
    totals, gpu = np.zeros(shape), np.zeros(shape)
    np.add.at(totals, (window, process), excess)
    np.add.at(gpu, (window, process), np.clip(waited, 0, np.maximum(excess, 0)))
    spread = np.abs(totals - np.median(totals, axis=1, keepdims=True))
    return Lateness(totals, gpu, 1.4826 * float(np.median(spread)))


def roles_of(process: Array, kinds: Array) -> Array:
    """Numbers the roles of processes: those that call the same kinds of operations have one."""
    known: dict[tuple[int, ...], int] = {}
    role = np.zeros(int(process.max(initial=0)) + 1, np.int64)
    for one in np.unique(process).tolist():
        mine = tuple(np.unique(kinds[process == one]).tolist())
        role[one] = known.setdefault(mine, len(known))
    return role[process]


@dataclass(frozen=True, eq=False)
class Delays:
    """How long messages took, by window and pair of ranks.

    pairs: [pair, 2] sender and receiver. ratio: [window, pair] of the time of a message over what
    is usual for messages of such operations in that window; NaN: none were sent.
    """

    pairs: Array
    ratio: Array
    messages: Array


def delays_of(facts: Facts, windows: Windows) -> Delays:
    edges, calls = facts.edges, facts.calls
    pairs, pair = np.unique(
        np.stack([edges["source"], edges["target"]], axis=1), axis=0, return_inverse=True
    )
    pair = pair.ravel()
    kind_of = np.zeros(facts.instances, np.int64)
    kind_of[calls["instance"]] = kinds_of(calls)
    window = windows.of(edges["first_ns"])
    group = window * (int(kind_of.max(initial=0)) + 1) + kind_of[edges["instance"]]
    latency = np.maximum(edges["latency_ns"].astype(np.float64), 1)
    relative = np.log(latency / np.maximum(medians(group, latency), 1))
    shape = (max(windows.count, 1), len(pairs))
    total, count = np.zeros(shape), np.zeros(shape)
    np.add.at(total, (window, pair), relative * edges["messages"])
    np.add.at(count, (window, pair), edges["messages"])
    with np.errstate(invalid="ignore", divide="ignore"):
        return Delays(pairs, np.exp(total / count), count)
